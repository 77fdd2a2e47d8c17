"""Conflict scores: the worked examples, the double loop they must equal, and the tolerance and tie rules."""

import math

import pytest
import torch

from idiolect.analysis import conflict_scores, cosine_matrix, count_conflicts, rank_units, sketch
from idiolect.core.errors import InputError, OptionError

E = torch.eye(3)


def pair_by_pair(updates: torch.Tensor, xi: float) -> int:
    rows = updates.double().tolist()
    count = 0
    for u in range(len(rows)):
        for v in range(u):
            norms = math.hypot(*rows[u]) * math.hypot(*rows[v])
            dot = sum(a * b for a, b in zip(rows[u], rows[v], strict=True))
            count += norms > 0 and dot / norms < xi
    return count


def test_opposed_updates_conflict_and_orthogonal_ones_do_not():
    updates = {"A": torch.stack([E[0], E[0], -E[0]]), "B": E}
    scores = conflict_scores(updates, xi=0.0)
    assert scores == {"A": 2, "B": 0}
    assert rank_units(scores, {unit: cosine_matrix(h) for unit, h in updates.items()}, k=1) == ("A",)


@pytest.mark.parametrize("xi", [0.0, -0.1])
def test_cosines_of_exactly_zero_are_no_conflict(xi):
    assert conflict_scores({"B": E}, xi=xi) == {"B": 0}


def test_a_zero_update_has_finite_cosines_and_no_conflicts():
    cosines = cosine_matrix(torch.stack([E[0], torch.zeros(3), -E[0]]))
    assert cosines.isfinite().all()
    assert (cosines[1] == 0).all()
    assert count_conflicts(cosines, xi=0.0) == 1


@pytest.mark.parametrize("xi", [0.0, -0.1, -0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_equal_the_double_loop_over_pairs(xi, dtype):
    generator = torch.Generator().manual_seed(1)
    updates = {f"unit{d}": torch.randn(9, d, generator=generator, dtype=dtype) for d in (1, 4, 50)}
    assert conflict_scores(updates, xi) == {unit: pair_by_pair(h, xi) for unit, h in updates.items()}


@pytest.mark.parametrize("chunk", [7, 30, 1000])
def test_streaming_in_chunks_changes_nothing_but_round_off(chunk):
    updates = torch.randn(6, 100, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(cosine_matrix(updates, chunk), cosine_matrix(updates), atol=1e-7, rtol=0)


def test_half_precision_updates_are_multiplied_in_float32():
    updates = torch.randn(4, 3000, generator=torch.Generator().manual_seed(3)).bfloat16()
    expected = cosine_matrix(updates.double())
    torch.testing.assert_close(cosine_matrix(updates), expected, atol=1e-6, rtol=0)


def test_round_off_below_the_threshold_is_no_conflict():
    assert count_conflicts(torch.tensor([[1.0, -1e-7], [-1e-7, 1.0]]), xi=0.0) == 0
    assert count_conflicts(torch.tensor([[1.0, -1e-5], [-1e-5, 1.0]]), xi=0.0) == 1


def test_one_client_has_no_pairs():
    assert conflict_scores({"A": torch.ones(1, 5)}, xi=0.0) == {"A": 0}


def test_the_order_of_clients_does_not_matter():
    updates = torch.randn(8, 30, generator=torch.Generator().manual_seed(4))
    assert conflict_scores({"A": updates}, -0.1) == conflict_scores({"A": updates.flip(0)}, -0.1)


def test_equal_scores_are_ranked_by_how_strong_the_conflict_is():
    weak, strong = torch.tensor([-0.2, 0.9]), torch.tensor([-0.8, 0.0])
    assert rank_units({"a": 1, "b": 1}, {"a": strong, "b": weak}, k=2) == ("a", "b")
    assert rank_units({"a": 1, "b": 2}, {"a": strong, "b": weak}, k=2) == ("b", "a")


@pytest.mark.parametrize(("tie", "expected"), [("last", ("b", "a")), ("first", ("a", "b"))])
def test_a_full_tie_is_broken_by_the_place_in_the_network_whatever_the_round_off(tie, expected):
    cosines = {"a": torch.tensor([-0.5]), "b": torch.tensor([-0.5 + 1e-9], dtype=torch.float64)}
    assert rank_units({"a": 1, "b": 1}, cosines, k=2, tie=tie) == expected


def test_units_without_conflict_stay_shared_unless_allowed():
    scores, cosines = {"a": 0, "b": 3}, {"a": torch.tensor([0.5]), "b": torch.tensor([-0.5])}
    assert rank_units(scores, cosines, k=2) == ("b",)
    assert rank_units(scores, cosines, k=2, allow_zero=True) == ("b", "a")
    assert rank_units(scores, cosines, k=0) == ()


@pytest.mark.parametrize("xi", [-1.0, 0.1, float("nan")])
def test_a_threshold_outside_its_range_is_refused(xi):
    with pytest.raises(OptionError, match=r"\(-1, 0\]"):
        conflict_scores({"A": E}, xi)


def test_updates_that_cannot_be_scored_are_named():
    with pytest.raises(InputError, match=r"'conv'.*rows \[1\]"):
        conflict_scores({"conv": torch.tensor([[1.0], [float("nan")]])}, 0.0)
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        cosine_matrix(torch.ones(3))
    with pytest.raises(OptionError, match="chunk is 0"):
        cosine_matrix(E, chunk=0)


def test_a_ranking_that_makes_no_sense_is_refused():
    cosines = {"a": torch.tensor([-0.5])}
    with pytest.raises(OptionError, match="k is 2, but there are 1 units"):
        rank_units({"a": 1}, cosines, k=2)
    with pytest.raises(OptionError, match="'middle'"):
        rank_units({"a": 1}, cosines, k=1, tie="middle")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\['b'\]"):
        rank_units({"a": 1, "b": 1}, cosines, k=1)


def test_a_list_of_rows_is_as_good_as_a_matrix():
    updates = torch.randn(6, 100, generator=torch.Generator().manual_seed(5))
    assert torch.equal(cosine_matrix(list(updates)), cosine_matrix(updates))
    torch.testing.assert_close(cosine_matrix(list(updates), 7), cosine_matrix(updates), atol=1e-7, rtol=0)


@pytest.mark.parametrize("size", [64, 1024])
def test_a_sketch_is_off_by_about_what_is_stated(size):
    """500 pairs of updates of 20,000 coordinates with a common part: the root mean square error of the cosines is
    sqrt((1 - rho^2) / size) up to a fifth, and there is no bias."""
    generator = torch.Generator().manual_seed(6)
    updates = torch.randn(40, 20_001, generator=generator) + 0.5 * torch.randn(20_001, generator=generator)
    exact, about = cosine_matrix(updates), cosine_matrix(sketch(updates, size))
    error = (about - exact)[tuple(torch.triu_indices(40, 40, 1))]
    expected = math.sqrt((1 - exact[0, 1].item() ** 2) / size)
    assert 0.7 * expected < error.square().mean().sqrt() < 1.3 * expected
    assert error.mean().abs() < 0.5 * expected


def test_coordinates_that_are_folded_together_have_random_signs():
    """Without signs the folds of a constant update, 1,024 coordinates each, would be 32 times as long as it is, and
    those of one that alternates from fold to fold would vanish."""
    constant = torch.ones(64 * 1024)
    alternating = torch.ones(1024, 64)
    alternating[::2] = -1.0
    for update in (constant, alternating.flatten()):
        assert 0.5 < float(sketch(update, 64).norm() / update.norm()) < 2.0


def test_a_sketch_takes_clients_one_by_one_and_leaves_short_updates_alone():
    updates = torch.randn(3, 1000, generator=torch.Generator().manual_seed(7))
    torch.testing.assert_close(torch.stack([sketch(row, 32) for row in updates]), sketch(updates, 32))
    assert sketch(updates, 1000) is updates
    with pytest.raises(OptionError, match="at least 1"):
        sketch(updates, 0)
