"""Weights on the simplex that minimise a quadratic form: scipy finds none better, and no slope leads further down."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from idiolect.analysis.simplex import simplex_weights
from idiolect.core.errors import InputError


def form(size: int, rank: int, seed: int) -> torch.Tensor:
    """A random positive semi-definite matrix."""
    points = torch.randn(size, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (points + 0.5) @ (points + 0.5).T


def by_scipy(matrix: torch.Tensor) -> float:
    """The least value that scipy finds, from a uniform start."""
    p, start = matrix.numpy(), np.full(len(matrix), 1 / len(matrix))
    found = minimize(
        lambda a: a @ p @ a,
        start,
        jac=lambda a: 2 * p @ a,
        bounds=[(0, 1)] * len(p),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("size", "rank"), [(2, 2), (5, 5), (12, 20), (12, 3), (30, 40)])
def test_no_weights_are_better_by_scipy(size, rank, seed):
    matrix = form(size, rank, seed)
    weights = simplex_weights(matrix)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert bool((weights >= 0).all())
    assert float(weights @ matrix @ weights) == pytest.approx(by_scipy(matrix), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("size", "rank"), [(20, 30), (20, 4), (80, 100)])
def test_the_conditions_of_a_minimum_hold(size, rank, seed):
    matrix = form(size, rank, seed)
    weights = simplex_weights(matrix)
    slope, value = matrix @ weights, float(weights @ matrix @ weights)
    scale = float(matrix.abs().max())
    assert float(slope.min()) >= value - 1e-9 * scale
    assert torch.allclose(slope[weights > 0], torch.tensor(value, dtype=torch.float64), atol=1e-9 * scale)


def test_a_diagonal_form_has_weights_inverse_to_it():
    """min sum_j v_j a_j^2 has a_j in proportion to 1 / v_j: 1, 1/2 and 1/4 over 7/4."""
    weights = simplex_weights(torch.diag(torch.tensor([1.0, 2.0, 4.0])))
    assert weights.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_one_weight_is_one():
    assert simplex_weights(torch.tensor([[3.0]])).tolist() == [1.0]


def test_forms_without_a_single_minimum_still_give_one():
    for matrix in (torch.zeros(3, 3), torch.ones(4, 4), torch.tensor([[0.0, 0.0], [0.0, 1.0]])):
        weights = simplex_weights(matrix)
        assert float(weights.sum()) == pytest.approx(1.0)
        assert float(weights @ matrix.double() @ weights) == pytest.approx(float(matrix.min()))


def test_the_scale_of_the_form_does_not_matter():
    matrix = form(8, 8, 0)
    assert torch.allclose(simplex_weights(matrix * 1e-12), simplex_weights(matrix), atol=1e-9)


def test_small_eigenvalues_of_a_semidefinite_form_count():
    """min 1e-5 a^2 + 1e-3 b^2 has a : b = 100 : 1."""
    weights = simplex_weights(torch.diag(torch.tensor([1e-5, 1e-3], dtype=torch.float64)))
    assert weights.tolist() == pytest.approx([100 / 101, 1 / 101])


def test_of_an_indefinite_form_only_large_eigenvalues_count():
    """Eigenvalues 1, 0.5, 0.005 and -0.5: the third goes with the fourth, because the form is not semi-definite."""
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))

    def turned(*values: float) -> torch.Tensor:
        return turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T

    mended = turned(1.0, 0.5, 0.0, 0.0)
    weights = simplex_weights(turned(1.0, 0.5, 0.005, -0.5))
    assert float(weights @ mended @ weights) == pytest.approx(by_scipy(mended), abs=1e-9)


def test_round_off_below_zero_is_no_negative_eigenvalue():
    """With the floor applied nothing would be left of this form, and any weights would do."""
    matrix = torch.diag(torch.tensor([1e-3, 2e-3, -1e-15], dtype=torch.float64))
    assert simplex_weights(matrix).tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("bad", [torch.ones(2, 3), torch.ones(3), torch.ones(0, 0)])
def test_a_form_is_a_square_matrix(bad):
    with pytest.raises(InputError, match="square"):
        simplex_weights(bad)


def test_numbers_must_be_finite():
    with pytest.raises(InputError, match="finite"):
        simplex_weights(torch.tensor([[float("nan")]]))
