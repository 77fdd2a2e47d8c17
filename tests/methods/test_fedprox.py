"""FedProx: the proximal term acts, and its gradient is the gradient of its formula."""

import torch

from idiolect.contract import Grad, Scored
from idiolect.core import tree
from idiolect.testing import play, require_equal, tiny_plan
from idiolect.testing.scalar import numeric_gradient, start_training, take_batch, to_double


def test_without_the_term_it_is_fedavg_to_the_bit():
    require_equal(play(tiny_plan("fedprox(mu=0)")), play(tiny_plan("fedavg")), "mu=0")


def test_the_default_acts():
    changed, plain = play(tiny_plan("fedprox")), play(tiny_plan("fedavg"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in changed.server["params"].items())


def test_the_step_follows_the_finite_difference_of_loss_plus_term():
    plan = tiny_plan("fedprox(mu=0.7)", lr=1.0)
    ctx, work = start_training(plan)
    work, task, batch = to_double(work), plan.tasks[0], take_batch(plan)
    batch = batch._replace(x=batch.x.double(), weight=batch.weight.double())
    start, anchor = work["params"], tree.map(lambda leaf: leaf + 0.3, work["params"])
    moved = ctx.phase.step(ctx, {**work, "fedprox.anchor": anchor}, batch)["params"]

    def objective(params):
        away = tree.sub(params, anchor)
        return task.loss(params, {}, batch).loss + 0.35 * tree.dot(away, away)

    for name, wanted in numeric_gradient(objective, start).items():
        assert torch.allclose(start[name] - moved[name], wanted, rtol=1e-5, atol=1e-8)


def test_the_hand_worked_example():
    """At w = 3 with w^t = 1, loss gradient 2 and mu = 0.5 the step is along 2 + 0.5 (3 - 1) = 3."""
    nothing = Scored(torch.zeros(()), torch.zeros(()), torch.zeros(()), {})
    grad = Grad({"params": {"w": torch.tensor(2.0)}}, nothing)
    assert grad.plus({"w": torch.tensor(3.0 - 1.0)}, 0.5).tree["w"].item() == 3.0
