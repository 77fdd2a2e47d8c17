"""Communalities: the golden one-factor example, the plain iteration they must equal, symmetries and edge cases."""

import math

import pytest
import torch

from idiolect.analysis import communalities, communalities_from_correlation, correlation, factor_count, shared_units
from idiolect.analysis import factor as module
from idiolect.core.errors import InputError, OptionError

LOADINGS = torch.tensor([0.9, 0.8, 0.7, 0.2], dtype=torch.float64)
GOLDEN = torch.outer(LOADINGS, LOADINGS).fill_diagonal_(1)
ESTIMATORS = ["paf", "pc", "eigvec"]


def weights(clients=4, inputs=30, units=10, factors=3, seed=0):
    """Weights of `[clients * inputs, units]` with common factors behind the first half of the units."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(clients * inputs, factors, generator=generator)
    loadings = torch.randn(factors, units, generator=generator) * (torch.arange(units) < units // 2)
    return common @ loadings + torch.randn(clients * inputs, units, generator=generator)


def plain_principal_factors(R, kappa, iterations=100):
    """The iteration, step by step, with the loading matrix written out."""
    gamma, u = torch.linalg.eigh(R)
    gamma, u = gamma.flip(0), u.flip(1)
    count = next(m for m in range(1, len(R) + 1) if gamma[:m].sum() / gamma.sum() >= kappa - 1e-9)
    A = u[:, :count] * gamma[:count].clamp(min=0).sqrt()
    psi = (R - A @ A.T).diagonal().clamp(1e-6, 1)
    for _ in range(iterations):
        gamma, u = torch.linalg.eigh(R - torch.diag(psi))
        A = u.flip(1)[:, :count] * gamma.flip(0)[:count].clamp(min=0).sqrt()
        new = (R - A @ A.T).diagonal().clamp(1e-6, 1)
        change, psi = (new - psi).abs().max(), new
        if change < 1e-6:
            break
    return (A**2).sum(1).clamp(max=1)


def close(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("paf", [0.81, 0.64, 0.49, 0.04]),
        ("pc", [0.8079, 0.7531, 0.6753, 0.0972]),
        ("eigvec", [0.3462, 0.3227, 0.2894, 0.0416]),
    ],
)
def test_one_factor_is_recovered(estimator, expected):
    close(communalities_from_correlation(GOLDEN, 0.5, estimator), expected, atol=6e-5)


@pytest.mark.parametrize(("kappa", "count"), [(0.5, 1), (0.75, 2), (0.85, 3), (0.9, 3), (0.95, 4), (1.0, 4)])
def test_number_of_factors(kappa, count):
    eigenvalues = torch.linalg.eigvalsh(GOLDEN)
    close(eigenvalues.flip(0), [2.3335, 0.9427, 0.4542, 0.2696], atol=6e-5)
    assert factor_count(eigenvalues, kappa) == count


def test_negative_and_vanishing_eigenvalues_never_count_as_factors():
    assert factor_count(torch.tensor([2.0, 1.0, 1e-17, -1e-16]), 1.0) == 2
    assert factor_count(torch.zeros(3), 0.85) == 1


@pytest.mark.parametrize("kappa", [0.3, 0.5, 0.85, 0.95])
@pytest.mark.parametrize("seed", range(3))
def test_paf_equals_the_plain_iteration(kappa, seed):
    R = correlation(weights(seed=seed).double())
    close(communalities_from_correlation(R, kappa), plain_principal_factors(R, kappa))


def test_few_factors_of_a_wide_layer_equal_the_full_decomposition(monkeypatch):
    R = correlation(weights(clients=8, inputs=100, units=128, factors=2).double())
    full = communalities_from_correlation(R, 0.25)
    monkeypatch.setattr(module, "_WIDE", 128)
    monkeypatch.setattr(module, "_eigenpairs", only_once(module._eigenpairs))
    close(communalities_from_correlation(R, 0.25), full, atol=1e-8)


def only_once(function):
    calls = []

    def wrapped(matrix):
        calls.append(1)
        assert len(calls) == 1, "the leading eigenpairs need no second full decomposition"
        return function(matrix)

    return wrapped


def test_correlation_is_the_textbook_one_in_blocks_too(monkeypatch):
    Z = weights()
    expected = torch.corrcoef(Z.double().T)
    close(correlation(Z), expected, atol=1e-6)
    close(correlation(Z.double()), expected, atol=1e-12)
    monkeypatch.setattr(module, "_BLOCK", 70)
    close(correlation(Z), expected, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_order_of_clients_does_not_matter(estimator):
    Z = weights(clients=4).double()
    shuffled = torch.cat([Z.chunk(4)[i] for i in (2, 0, 3, 1)])
    close(communalities(shuffled, 0.5, estimator), communalities(Z, 0.5, estimator), atol=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_permuted_units_have_permuted_communalities(estimator):
    Z = weights().double()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(5))
    close(communalities(Z[:, order], 0.5, estimator), communalities(Z, 0.5, estimator)[order], atol=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_identical_clients_say_no_more_than_one(estimator):
    one = weights(clients=1).double()
    close(communalities(one.repeat(3, 1), 0.5, estimator), communalities(one, 0.5, estimator), atol=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_units_behind_common_factors_are_found(estimator):
    nu = communalities(weights(clients=20, units=20, factors=2), 0.25, estimator)
    assert shared_units(nu, tau=0.5).tolist() == [True] * 10 + [False] * 10


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("constant", [0.0, 0.1])
@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_a_unit_without_variance_is_explained_by_nothing(estimator, constant, kappa):
    Z = weights()
    Z[:, 3] = constant
    nu = communalities(Z, kappa, estimator)
    assert nu[3] == 0
    others = [j for j in range(10) if j != 3]
    close(nu[others], communalities(Z[:, others], kappa, estimator), atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_unit_varies(estimator):
    assert communalities(torch.ones(6, 4), 0.85, estimator).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kappa", [0.5, 0.85, 1.0])
def test_fewer_samples_than_units(estimator, kappa):
    nu = communalities(weights(clients=1, inputs=5), kappa, estimator)
    assert nu.isfinite().all()
    assert ((nu >= 0) & (nu <= 1)).all()


def test_all_variance_explained_makes_all_units_equal_and_shared():
    nu = communalities(weights(), kappa=1.0, estimator="pc")
    close(nu, torch.ones(10), atol=1e-9)
    assert shared_units(nu, 0.9).all()


def test_a_heywood_case_stays_within_one():
    R = torch.tensor([[1.0, 0.9, 0.9], [0.9, 1.0, 0.5], [0.9, 0.5, 1.0]], dtype=torch.float64)
    nu = communalities_from_correlation(R, 0.5)
    assert nu.max() <= 1
    close(nu, plain_principal_factors(R, 0.5))


def test_without_a_positive_eigenvalue_the_last_loadings_stay(monkeypatch):
    def none_positive(matrix, count):
        return -torch.ones(count, dtype=matrix.dtype), matrix[:, :count]

    expected = communalities_from_correlation(GOLDEN, 0.5, "pc")
    monkeypatch.setattr(module, "_leading", none_positive)
    close(communalities_from_correlation(GOLDEN, 0.5), expected)


def test_one_factor_fewer_but_at_least_one():
    close(
        communalities_from_correlation(GOLDEN, 0.75, "eigvec", fewer=1),
        communalities_from_correlation(GOLDEN, 0.5, "eigvec"),
    )
    close(
        communalities_from_correlation(GOLDEN, 0.5, "eigvec", fewer=1),
        communalities_from_correlation(GOLDEN, 0.5, "eigvec"),
    )


def test_iterations_are_limited():
    R = correlation(weights().double())
    close(communalities_from_correlation(R, 0.85, iterations=3), plain_principal_factors(R, 0.85, iterations=3))


def test_thresholds():
    nu = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert shared_units(nu, 0.0).tolist() == [True, True, True, True]
    assert shared_units(nu, 0.5).tolist() == [False, False, True, True]
    assert shared_units(nu, 1.0).tolist() == [False, False, False, True]
    assert shared_units(nu, math.inf).tolist() == [False] * 4
    assert shared_units(nu, -math.inf).tolist() == [True] * 4


@pytest.mark.parametrize("tau", [0.0, 0.5, 0.95, 1.0])
def test_units_that_differ_by_less_than_the_iteration_resolves_are_all_shared(tau):
    """That is 1e-6; round-off is much less."""
    for apart in (1e-8, 4e-7):
        assert shared_units(torch.tensor([0.5, 0.5 + apart, 0.5 - apart], dtype=torch.float64), tau).all()


def test_impossible_options_are_refused():
    with pytest.raises(OptionError, match=r"kappa is 1.5.*\(0, 1\]"):
        communalities(weights(), kappa=1.5)
    with pytest.raises(OptionError, match=r"'ml'.*paf, pc, eigvec"):
        communalities(weights(), estimator="ml")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="fewer is -1"):
        communalities(weights(), fewer=-1)
    for tau in (1.5, -0.1, math.nan):
        with pytest.raises(OptionError, match=r"quantile in \[0, 1\]"):
            shared_units(torch.ones(3), tau)


def test_unusable_matrices_are_refused():
    with pytest.raises(InputError, match=r"shape \(5,\)"):
        correlation(torch.ones(5))
    with pytest.raises(InputError, match="not finite"):
        correlation(torch.tensor([[1.0, math.inf], [2.0, 3.0]]))
    with pytest.raises(InputError, match="square"):
        communalities_from_correlation(torch.ones(2, 3))
    with pytest.raises(InputError, match="symmetric"):
        communalities_from_correlation(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
