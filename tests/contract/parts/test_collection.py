"""Methods whose server keeps the latest model of every client."""

import pytest
import torch

from idiolect.core import tree
from idiolect.engines.slots import first_client, gather
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import personal_model, train_client


def test_the_own_model_is_kept_with_its_running_statistics():
    plan = tiny_plan("fedamp", norm=True)
    outcome = train_client(plan)
    _, model = personal_model(plan, state=outcome.state, round=1)
    for slot in ("params", "buffers"):
        assert all(torch.equal(leaf, outcome.upload.slots[slot][name]) for name, leaf in model[slot].items())
    assert int(model["buffers"]["1.num_batches_tracked"]) > 0


@pytest.mark.parametrize(("method", "slot"), [("fedfomo", "params"), ("fedamp", "params"), ("ditto", "ditto.own")])
def test_who_trains_late_for_the_first_time_starts_from_what_it_is_sent(method, slot):
    """One rule for all personal models: until then it predicts with that model, too."""
    plan = tiny_plan(method)
    ctx = plan.context(0, 3, newcomer=True)
    sent = {"params": tree.map(lambda leaf: leaf + 5.0, ctx.initial["params"]), "buffers": {}}
    work = plan.method.prepare(ctx, gather(ctx, first_client(ctx), sent))
    assert all(torch.equal(work[slot][n], leaf) for n, leaf in sent["params"].items())
