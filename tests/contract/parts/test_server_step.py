"""A server that takes a step of its own length towards the participants' mean."""

from dataclasses import replace

import torch

from idiolect import Task
from idiolect.contract.parts.server_step import step_towards
from idiolect.testing import tiny_plan
from idiolect.testing.tiny import tiny_model


def test_of_several_networks_each_takes_the_step_and_running_statistics_become_the_mean():
    """From 1 towards 3 with a step of 0.25: 1.5, for the parameters of both networks."""
    plan = tiny_plan("fedavg")
    x, y = plan.split(0, "train")
    ctx = plan.server(0)
    tasks = (*ctx.tasks, Task(tiny_model(width=3), (x[:2], y[:2]), classes=3))
    slots = ("params", "buffers", "params@1", "buffers@1")
    before, mean = ({slot: {"w": torch.tensor(value)} for slot in slots} for value in (1.0, 3.0))
    after = step_towards(replace(ctx, tasks=tasks), before, mean, 0.25)
    assert {slot: leaves["w"].item() for slot, leaves in after.items()} == dict(
        zip(slots, (1.5, 3, 1.5, 3), strict=True)
    )
