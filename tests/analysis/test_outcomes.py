"""What came of runs: targets, wins, classes, distances and likeness of models."""

import math

import pytest
import torch

from idiolect.analysis import (
    best_window,
    effective_classes,
    first_reaching,
    target_score,
    unit_distances,
    win_tie_loss,
)
from idiolect.core.errors import InputError, OptionError


def test_a_target_is_a_share_of_the_best_in_either_direction():
    assert target_score(0.5, 0.9) == pytest.approx(0.45)
    assert target_score(0.45, 0.9, higher_is_better=False) == pytest.approx(0.5)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_outside_of_its_range_is_refused(share):
    with pytest.raises(OptionError, match=r"\(0, 1\]"):
        target_score(0.5, share)


def test_the_first_value_that_reaches_a_target_counts():
    assert first_reaching([0.1, 0.5, 0.4, 0.9], 0.5) == 1
    assert first_reaching([3.0, 2.0, 1.0], 2.0, higher_is_better=False) == 1
    assert first_reaching([0.1, math.nan], 0.5) is None


def test_wins_ties_and_losses_are_counted_pair_by_pair():
    a, b = [0.9, 0.5, 0.7, 0.2], [0.8, 0.5, 0.9, 0.1]
    assert win_tie_loss(a, b) == (2, 1, 1)
    assert win_tie_loss(a, b, higher_is_better=False) == (1, 1, 2)
    assert win_tie_loss(a, b, margin=0.11) == (0, 3, 1)
    with pytest.raises(InputError, match="4 and 1"):
        win_tie_loss(a, [0.1])


def test_effective_classes_lie_between_one_and_the_number_of_classes():
    assert effective_classes([5, 0, 0]) == 1
    assert effective_classes(torch.tensor([3, 3, 3])) == pytest.approx(3)
    assert 1 < effective_classes([9, 1]) < 2
    assert effective_classes([0, 0]) == 0


def test_effective_classes_depend_on_shares_alone():
    """Counts may be weights that sum to less than one."""
    assert effective_classes([0.3, 0.1]) == pytest.approx(effective_classes([3, 1]))


def test_distances_are_per_unit_and_relative_to_the_reference():
    reference = {"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0]), "b.w": torch.zeros(2)}
    model = {"a.w": torch.tensor([3.0]), "a.b": torch.tensor([5.0]), "b.w": torch.zeros(2), "c.w": torch.ones(1)}
    units = {"a": ["a.w", "a.b"], "b": ["b.w"], "c": ["c.w"]}
    assert unit_distances(model, reference, units) == {"a": pytest.approx(0.2), "b": 0.0}
    assert unit_distances({"a.b": model["a.b"]}, reference, units) == {"a": 0.25}
    assert unit_distances({**model, "b.w": torch.ones(2)}, reference, units)["b"] == math.inf


def test_the_best_mean_of_consecutive_values_and_where_it_ends():
    """Means of two: 0.4, 0.7, 0.75 and 0.4 or 0.5; the lowest ends at position 1."""
    assert best_window([0.2, 0.6, 0.8, 0.7, 0.1], 2) == pytest.approx((0.75, 3))
    assert best_window([0.2, 0.6, 0.8, 0.7, 0.3], 2, higher_is_better=False) == pytest.approx((0.4, 1))
    assert best_window([0.5] * 12) == (0.5, 9)
    with pytest.raises(InputError, match="there are 3 values and the window is 10"):
        best_window([0.1, 0.2, 0.3])
