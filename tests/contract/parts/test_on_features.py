"""What methods share that predict from the features in a way of their own."""

import pytest

from idiolect.testing import tiny_plan
from idiolect.testing.scalar import start_training, take_batch


@pytest.mark.parametrize("method", ["fedcp", "gpfl", "feddbe", "fedrod"])
def test_a_batch_is_logged_once_however_many_slots_are_trained(method):
    plan = tiny_plan(method)
    ctx, work = start_training(plan)
    after = ctx.phase.step(ctx, work, take_batch(plan))
    assert after["log"]["samples"].item() == 4
    assert after["log"]["loss"].item() > 0
