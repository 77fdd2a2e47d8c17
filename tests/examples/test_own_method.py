"""The method of examples/own_method.py: these are the tests that CONTRIBUTING asks of a new one."""

from pathlib import Path

import pytest
import torch

from idiolect import Batch
from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines.slots import first_client, gather
from idiolect.testing import CHECKS, check_method, play, tiny_plan

PROXHEAD = f"{Path(__file__).parents[2] / 'examples' / 'own_method.py'}:ProxHead"


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_holds(check):
    check_method(PROXHEAD, [check])


def test_the_tether_acts():
    """A stronger pull brings the heads of all clients nearer to the average one."""

    def distance(lam):
        played = play(tiny_plan(f"{PROXHEAD}(lam={lam})"))
        heads = [state["proxhead.own"] for state in played.clients.values()]
        return sum(float(tree.norm(tree.sub(head, played.server["params"]))) for head in heads)

    assert distance(3.0) < distance(0.3) < distance(0.0)


def test_the_step_follows_finite_differences():
    """(before - after) / lr is the gradient of f + lam/2 |h - anchor|^2, in double precision."""
    plan = tiny_plan(f"{PROXHEAD}(lam=0.7)", lr=1.0)
    task, ctx = plan.tasks[0], plan.context(0, 0)
    x, y = plan.split(0, "train")
    task.net.module.double()
    batch = Batch(x[:4].double(), y[:4], torch.ones(4, dtype=torch.float64))
    start = tree.map(torch.Tensor.double, task.net.params)
    anchor = tree.map(lambda leaf: leaf + 0.3, tree.pick(start, task.head()))
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    work = {"params": start, "buffers": {}, "proxhead.anchor": anchor, "log": log}
    moved = plan.method.step(ctx, work, batch)["params"]

    def objective(params):
        away = tree.sub(tree.pick(params, anchor), anchor)
        return task.loss(params, {}, batch).loss + 0.35 * tree.dot(away, away)

    for name, leaf in start.items():
        nudge = torch.zeros_like(leaf)
        nudge.view(-1)[0] = 1e-6
        rise = objective({**start, name: leaf + nudge}) - objective({**start, name: leaf - nudge})
        assert torch.isclose((leaf - moved[name]).view(-1)[0], rise / 2e-6, rtol=1e-5, atol=1e-8)


def test_a_client_that_never_trained_uses_the_average_head():
    plan = tiny_plan(PROXHEAD)
    received = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    for newcomer in (True, False):
        ctx = plan.context(0, 0, newcomer)
        work = gather(ctx, first_client(ctx), received, training=False)
        head = tree.pick(plan.method.personal_model(ctx, work)["params"], plan.tasks[0].head())
        expected = received["params"] if newcomer else plan.tasks[0].net.params
        assert all(torch.equal(leaf, expected[name]) for name, leaf in head.items())


def test_a_negative_pull_is_refused():
    with pytest.raises(OptionError, match=r"lam=-1.0 is not allowed; lam must lie in \[0, inf\)"):
        methods.build(f"{PROXHEAD}(lam=-1)")
