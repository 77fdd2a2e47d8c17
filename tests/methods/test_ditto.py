"""Ditto: a personal model that is pulled towards the received global one."""

import torch

from idiolect import Batch
from idiolect.contract.phase import Phase
from idiolect.core import tree
from idiolect.engines.client import train
from idiolect.testing import play, tiny_plan


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
    from torch import nn

    from idiolect import Task

    x, y = torch.ones(2, 1), torch.full((2, 1), 0.5)
    module = nn.Linear(1, 1, bias=False)
    ctx = plan.context(0, 0)
    ctx.task, ctx.phase = Task(module, (x, y)), Phase("personal", slots=("ditto.own",))
    w = {"weight": torch.tensor([[1.0]])}
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    work = {"params": w, "buffers": {}, "ditto.own": {"weight": torch.tensor([[2.0]])}, "ditto.own.buffers": {}}
    after = plan.method.step(ctx, {**work, "ditto.anchor": w, "log": log}, Batch(x, y, torch.ones(2)))
    assert torch.allclose(after["ditto.own"]["weight"], torch.tensor([[1.6]]))
    assert after["params"] is w


def test_the_reference_is_the_received_model_not_the_trained_one():
    plan = tiny_plan("ditto")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    ctx = plan.context(0, 0)
    work = plan.method.begin(ctx, plan.method.client_init(ctx), {"params": received, "buffers": {}})
    assert all(torch.equal(work["ditto.anchor"][n], leaf) for n, leaf in received.items())


def test_a_client_that_never_trained_uses_the_global_model():
    plan = tiny_plan("ditto")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    ctx = plan.context(0, 0, newcomer=True)
    view = plan.method.view(ctx, plan.method.client_init(ctx), {"params": received, "buffers": {}})
    assert all(torch.equal(view["params"][n], leaf) for n, leaf in received.items())


def test_personal_epochs_are_an_option():
    plan = tiny_plan("ditto(epochs=1)")
    download = plan.method.download(plan.server(0), plan.method.server_init(plan.server(0)), (0,)).of(0)
    assert train(plan, 0, 0, None, download).steps == 4 * 2 + 4 * 1
