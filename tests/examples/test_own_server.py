"""The method of examples/own_server.py, worked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from idiolect.contract import Batch
from idiolect.engines.slots import aggregate
from idiolect.testing import CHECKS, check_method, tiny_plan
from idiolect.testing.scalar import make_upload, scalar, scalar_task, start_training, with_log

FEDDYN = f"{Path(__file__).parents[2] / 'examples' / 'own_server.py'}:FedDyn"


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_holds(check):
    check_method(FEDDYN, [check])


def test_the_server_goes_beyond_the_mean():
    plan = tiny_plan(f"{FEDDYN}(alpha=0.5)")
    server = {"params": scalar(1.0), "buffers": {}, "feddyn.drift": scalar(0.0)}
    ctx = plan.server(0)
    assert len(ctx.clients) == 5
    after = aggregate(ctx, server, {i: make_upload({"params": scalar(w)}) for i, w in ((0, 2.0), (1, 4.0))})
    torch.testing.assert_close(after["feddyn.drift"], scalar(-0.5 / 5 * (1 + 3)))
    torch.testing.assert_close(after["params"], scalar(3 + 0.4 / 0.5))


def test_a_step_and_the_linear_term():
    plan = tiny_plan(f"{FEDDYN}(alpha=0.5)", lr=0.1)
    ctx, _ = start_training(plan)
    method = plan.method
    task = scalar_task(2.0, torch.ones(1, 1), torch.full((1, 1), 0.5))  # (w - y)^2 has gradient 2 (2 - 0.5) = 3
    ctx = replace(ctx, task=task)
    work = with_log(
        {"params": scalar(2.0), "buffers": {}, "feddyn.gradient": scalar(0.2), "feddyn.anchor": scalar(1.0)}
    )
    batch = Batch(torch.ones(1, 1), torch.full((1, 1), 0.5), torch.ones(1))
    torch.testing.assert_close(method.step(ctx, work, batch)["params"], scalar(1.67))
    torch.testing.assert_close(method.finish(ctx, work)["feddyn.gradient"], scalar(-0.3))
