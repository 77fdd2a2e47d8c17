"""Ditto: a personal model that is pulled towards the received global one."""

import torch

from idiolect import Batch
from idiolect.contract import Training, methods
from idiolect.core import tree
from idiolect.engines import Plan
from idiolect.testing import play, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    half_squared_error,
    personal_model,
    scalar,
    scalar_federation,
    scalar_task,
    train_client,
    with_log,
)


def test_the_shared_model_is_fedavgs():
    ditto, plain = play(tiny_plan("ditto")), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in ditto.server["params"].items())


def test_a_stronger_pull_brings_the_personal_models_nearer():
    def spread(lam: float) -> float:
        played = play(tiny_plan(f"ditto(lam={lam})", lr=0.02))
        return sum(float(tree.norm(tree.sub(s["ditto.own"], played.server["params"]))) for s in played.clients.values())

    assert spread(10.0) < spread(1.0) < spread(0.0)


def test_the_hand_worked_example():
    """At v = 2 with w^t = 1, loss gradient 3, lambda = 1 and rate 0.1, v becomes 2 - 0.1 (3 + 1) = 1.6.

    The model is v x with squared error: gradient 2 (v x - y) x = 3 at x = 1, y = 0.5.
    """
    plan = tiny_plan("ditto(lam=1)", lr=0.1)
    x, y, w = torch.ones(2, 1), torch.full((2, 1), 0.5), scalar(1.0)
    ctx = context_of(plan, 1, task=scalar_task(1.0, x, y))
    work = {"params": w, "buffers": {}, "ditto.own": scalar(2.0), "ditto.own.buffers": {}, "ditto.anchor": w}
    after = ctx.phase.step(ctx, with_log(work), Batch(x, y, torch.ones(2)))
    assert torch.allclose(after["ditto.own"]["weight"], torch.tensor([[1.6]]))
    assert after["params"] is w


def test_the_pull_is_towards_the_received_model_not_the_trained_one():
    """One sample of loss (w - 4)^2 / 2, w^t = 2 and v = 1, rate 0.1: the shared model becomes 2 - 0.1 (2 - 4) = 2.2,
    and the personal one 1 - 0.1 ((1 - 4) + (1 - 2)) = 1.4; towards the trained shared model it would become 1.42."""
    x, y = torch.ones(1, 1), torch.full((1, 1), 4.0)
    task, data = scalar_task(1.0, x, y, loss=half_squared_error), scalar_federation(4.0)
    plan = Plan(methods.build("ditto(lam=1)"), (task,), data, 1, Training(lr=0.1, epochs=1, batch_size=1))
    own = {"ditto.own": scalar(1.0), "ditto.own.buffers": {}}
    outcome = train_client(plan, server={"params": scalar(2.0), "buffers": {}}, state=own)
    assert torch.allclose(outcome.upload.slots["params"]["weight"], torch.tensor([[2.2]]))
    assert torch.allclose(outcome.state["ditto.own"]["weight"], torch.tensor([[1.4]]))


def test_a_client_that_never_trained_uses_the_global_model():
    plan = tiny_plan("ditto")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    _, model = personal_model(plan, {"params": received, "buffers": {}})
    assert all(torch.equal(model["params"][n], leaf) for n, leaf in received.items())


def test_personal_epochs_are_an_option():
    plan = tiny_plan("ditto(epochs=1)")
    assert train_client(plan).steps == 4 * 2 + 4 * 1
