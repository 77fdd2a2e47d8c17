"""Averages are taken once, correctly, in `tree.mean`."""

import pytest
import torch

from idiolect.core import tree


def leaf(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def test_the_mean_is_weighted_by_samples():
    assert tree.mean([leaf(4.0), leaf(8.0)], [1, 3])["w"].item() == 7.0


def test_a_coordinate_counts_only_those_who_sent_it():
    masks = [{"w": torch.tensor([True, False, True])}, {"w": torch.tensor([True, True, False])}]
    mean = tree.mean([leaf(1.0, 99.0, 3.0), leaf(5.0, 6.0, 99.0)], [1, 1], masks, keep=leaf(0.0, 0.0, 0.0))
    assert mean["w"].tolist() == [3.0, 6.0, 3.0]


def test_what_nobody_sent_keeps_its_value():
    masks = [{"w": torch.tensor([False, True])}]
    assert tree.mean([leaf(1.0, 2.0)], [1], masks, keep=leaf(7.0, 7.0))["w"].tolist() == [7.0, 2.0]
    assert tree.mean([{}], [1], None, keep=leaf(7.0))["w"].item() == 7.0


def test_zero_is_a_value_like_any_other():
    masks = [{"w": torch.tensor([True])}, {"w": torch.tensor([True])}]
    assert tree.mean([leaf(0.0), leaf(4.0)], [1, 1], masks, keep=leaf(9.0))["w"].item() == 2.0


def test_what_is_not_sent_may_be_anything_even_not_finite():
    masks = [{"w": torch.tensor([True, False])}]
    assert tree.mean([leaf(1.0, float("nan"))], [1], masks, keep=leaf(0.0, 5.0))["w"].tolist() == [1.0, 5.0]


@pytest.mark.parametrize(("denominator", "expected"), [("uploaders", 4.0), ("all", 3.0), ("zeros", 2.0)])
def test_the_three_denominators(denominator, expected):
    masks = [{"w": torch.tensor([True])}, {"w": torch.tensor([False])}]
    mean = tree.mean([leaf(4.0), leaf(0.0)], [1, 1], masks, keep=leaf(2.0), denominator=denominator)
    assert mean["w"].item() == expected


def test_a_mask_of_ones_changes_no_bit():
    draw = torch.Generator().manual_seed(0)
    trees = [{"w": torch.randn(50, generator=draw)} for _ in range(7)]
    ones = [{"w": torch.ones(50, dtype=torch.bool)}] * 7
    weights = [3.0, 1.0, 17.0, 5.0, 2.0, 9.0, 4.0]
    assert torch.equal(tree.mean(trees, weights)["w"], tree.mean(trees, weights, ones, keep=trees[0])["w"])


def test_one_clients_mean_is_its_value_to_the_bit():
    value = {"w": torch.randn(100, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(tree.mean([value], [137])["w"], value["w"])


def test_integer_leaves_take_the_maximum():
    counters = [{"n": torch.tensor(3)}, {"n": torch.tensor(5)}]
    assert tree.mean(counters, [10, 1])["n"].item() == 5


def test_cosine_of_a_zero_tree_is_zero():
    assert tree.cosine(leaf(0.0, 0.0), leaf(1.0, 0.0)).item() == 0.0
    assert tree.cosine(leaf(1.0, 0.0), leaf(-2.0, 0.0)).item() == -1.0


def test_stack_and_unstack_are_inverse():
    trees = [leaf(1.0, 2.0), leaf(3.0, 4.0)]
    again = tree.unstack(tree.stack(trees))
    assert all(torch.equal(a["w"], b["w"]) for a, b in zip(trees, again, strict=True))
