"""Contexts: learning rates under the run's schedule."""

from dataclasses import replace

import pytest

from idiolect.contract import Phase
from idiolect.contract.phase import look
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.task.schedules import Exponential
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import start_training, take_batch


def test_every_learning_rate_follows_the_runs_schedule():
    """Halved each round: in round 2 the run's 0.4, a phase's 0.8 and a method's own 0.2 are a quarter of that."""
    plan = tiny_plan("fedavg", lr=0.4, schedule=Exponential(gamma=0.5))
    ctx = plan.context(0, 2)
    phase = replace(ctx, phase=Phase(look, lr=0.8))
    assert ctx.lr == pytest.approx(0.1)
    assert phase.lr == pytest.approx(0.2)
    assert ctx.scheduled(0.2) == pytest.approx(0.05)
    assert (ctx.scheduled(None), phase.scheduled(None)) == (ctx.lr, phase.lr)


@pytest.mark.parametrize(
    "method",
    ["fedalt(own_lr=0.3)", "fedrod(own_lr=0.3)", "apfl(alpha_lr=0.3)", "apple(lr_p=0.3)"],
)
def test_a_methods_own_learning_rate_becomes_zero_with_the_schedule(method):
    """Where the schedule is at zero nothing of what a client keeps moves, whatever has a learning rate of its own."""
    plan = tiny_plan(method, schedule=Exponential(gamma=1e-12), rounds=3)
    server = first_server(plan.server(0))
    states = {}
    for round in (0, 1):
        download = plan.method.download(plan.server(round), server, (0,)).of(0)
        states[round] = train(plan, 0, round, states.get(round - 1), download).state
    for slot, leaves in states[0].items():
        for name, leaf in leaves.items():
            assert leaf.allclose(states[1][slot][name]), (slot, name)


def test_only_what_a_phase_trains_has_a_gradient():
    """Of the task's own loss as of any other, and the rest of the model does not move."""
    plan = tiny_plan("fedrep")
    ctx, work = start_training(plan)
    batch, rest = take_batch(plan), work["params"].keys() - ctx.phase.part
    own = ctx.grad(work, "params", batch)
    other = ctx.grad(work, "params", batch, lambda slots: ctx.task.loss(slots["params"], work["buffers"], batch))
    assert rest
    assert own.slots["params"].keys() == other.slots["params"].keys() == set(ctx.phase.part)
    after = ctx.optimize(work, "params", own, batch)["params"]
    assert {name for name in after if not after[name].equal(work["params"][name])} == set(ctx.phase.part)
