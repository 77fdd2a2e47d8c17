"""FedProx: the proximal term acts, and its gradient is the gradient of its formula."""

import torch

from idiolect import Batch
from idiolect.contract.method import methods
from idiolect.core import tree
from idiolect.testing import play, require_equal, tiny_plan


def test_without_the_term_it_is_fedavg_to_the_bit():
    require_equal(play(tiny_plan("fedprox(mu=0)")), play(tiny_plan("fedavg")), "mu=0")


def test_the_default_acts():
    changed, plain = play(tiny_plan("fedprox")), play(tiny_plan("fedavg"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in changed.server["params"].items())


def test_the_step_follows_the_finite_difference_of_loss_plus_term():
    plan = tiny_plan("fedprox(mu=0.7)", lr=1.0)
    task, ctx = plan.tasks[0], plan.context(0, 0)
    batch = Batch(
        *(part[:4].double() if part.is_floating_point() else part[:4] for part in plan.split(0, "train")),
        torch.ones(4).double(),
    )
    start = tree.map(lambda leaf: leaf.double(), task.net.params)
    anchor = tree.map(lambda leaf: leaf + 0.3, start)
    task.net.module.double()
    work = {
        "params": start,
        "buffers": {},
        "fedprox.anchor": anchor,
        "log": {"loss": torch.zeros(()), "samples": torch.zeros(())},
    }
    moved = methods.build("fedprox(mu=0.7)").step(ctx, work, batch)["params"]

    def objective(params):
        away = tree.sub(params, anchor)
        return task.loss(params, {}, batch).loss + 0.35 * tree.dot(away, away)

    for name in start:
        nudge = torch.zeros_like(start[name]).reshape(-1)
        nudge[0] = 1e-6
        up, down = (({**start, name: start[name] + s * nudge.reshape(start[name].shape)}) for s in (1, -1))
        slope = (objective(up) - objective(down)) / 2e-6
        assert torch.isclose((start[name] - moved[name]).reshape(-1)[0], slope, rtol=1e-5, atol=1e-8)


def test_the_hand_worked_example():
    """At w = 3 with w^t = 1, loss gradient 2 and mu = 0.5 the step is along 2 + 0.5 (3 - 1) = 3."""
    from idiolect.contract.context import Grad
    from idiolect.task.task import Scored

    nothing = Scored(torch.zeros(()), torch.zeros(()), torch.zeros(()), {})
    grad = Grad({"params": {"w": torch.tensor(2.0)}}, nothing)
    assert grad.plus({"w": torch.tensor(3.0 - 1.0)}, 0.5).tree["w"].item() == 3.0
