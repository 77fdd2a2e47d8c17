"""The output layer by itself."""

import math

import pytest
import torch
from torch import nn

from idiolect import Task
from idiolect.contract.parts.heads import check_head, divergence, head_outputs, no_outputs
from idiolect.core.errors import ModelError
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import context_of


def test_the_hand_worked_divergence():
    """g(h) = (h, 0) at T = 5 and H = 5 predicts softmax(1, 0); for Q = (1, 0) the divergence is ln(1 + 1/e). Of the
    second class nothing is known."""
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2, bias=False))
    task = Task(module, (torch.ones(2, 1), torch.tensor([0, 1])), classes=2)
    logits = head_outputs(task, {"1.weight": torch.tensor([[1.0], [0.0]])}, torch.tensor([[5.0], [0.0]])) / 5
    soft = {"mean": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "count": torch.tensor([4.0, 0.0])}
    assert divergence(soft, logits).item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_the_divergence_is_a_mean_over_known_classes():
    """Uniform predictions are ln 2 from (1, 0), of which one sample tells, and not at all from (0.5, 0.5); of the third
    class nothing is known."""
    means = {"mean": torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]), "count": torch.tensor([1.0, 2.0, 0.0])}
    assert divergence(means, torch.zeros(3, 2)).item() == pytest.approx(math.log(2) / 2)


def test_an_output_layer_on_a_feature_vector_passes():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    check_head("mine", Task(module, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3))


@pytest.mark.parametrize(
    ("module", "x", "y", "words"),
    [
        (nn.Linear(4, 3), torch.randn(2, 6, 4), torch.zeros(2, 6, dtype=torch.long), "mine works with one class per"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Softmax(1)),
            torch.randn(2, 4),
            torch.tensor([0, 1]),
            "the model computes more after it",
        ),
    ],
)
def test_other_models_are_refused(module, x, y, words):
    with pytest.raises(ModelError, match=words):
        check_head("mine", Task(module, (x, y), classes=3))


def test_at_first_nothing_is_known_of_any_class():
    first = no_outputs(context_of(tiny_plan("fedavg")))
    assert {name: leaf.tolist() for name, leaf in first.items()} == {"mean": [[0.0] * 3] * 3, "count": [0.0] * 3}
