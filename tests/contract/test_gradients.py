"""Gradients and products with the Hessian: exact, and zero for what the loss does not depend on."""

import pytest
import torch

from idiolect.contract.gradients import Autograd
from idiolect.engines.stacking import Functional
from idiolect.task.task import Scored

AT = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0]), "unused": torch.tensor([7.0])}


def half_cubes(leaves):
    """a1 a2 b + b^3 / 2."""
    return leaves["a"].prod() * leaves["b"].sum() + leaves["b"].pow(3).sum() / 2


@pytest.fixture(params=[Autograd, Functional])
def gradients(request):
    return request.param()


def test_the_hand_worked_gradient(gradients):
    """At a = (1, 2), b = 3: (a2 b, a1 b) = (6, 3) and a1 a2 + 3 b^2 / 2 = 15.5."""

    def loss(slots):
        value = half_cubes(slots["model"])
        return Scored(value, value, value, {})

    found, scored = gradients.of_loss(loss, {"model": AT})
    assert {name: leaf.tolist() for name, leaf in found["model"].items()} == {"a": [6, 3], "b": [15.5], "unused": [0]}
    assert not scored.loss.requires_grad


def test_the_hand_worked_product_with_the_hessian(gradients):
    """Its rows at a = (1, 2), b = 3 are (0, b, a2), (b, 0, a1) and (a2, a1, 3 b): times (1, 10, 100) that is 230, 103
    and 912."""
    vector = {"a": torch.tensor([1.0, 10.0]), "b": torch.tensor([100.0]), "unused": torch.tensor([5.0])}
    product = gradients.hessian_product(half_cubes, AT, vector)
    assert {name: leaf.tolist() for name, leaf in product.items()} == {"a": [230, 103], "b": [912], "unused": [0]}
