"""Linear CKA: what it does not see, what it tells apart, and features without variation."""

import pytest
import torch

from idiolect.analysis import cka
from idiolect.core.errors import InputError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hsic(x, y):
    n = len(x)
    centring = torch.eye(n, dtype=torch.float64) - 1 / n
    k, m = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    return ((k * m).sum() / ((k * k).sum() * (m * m).sum()).sqrt()).item()


@pytest.mark.parametrize(("p", "q"), [(3, 5), (40, 50), (3, 50)])
def test_cka_is_a_normalised_hsic(p, q):
    x, y = random(20, p), random(20, q, seed=1)
    assert cka(x, y).item() == pytest.approx(by_hsic(x, y))
    assert cka(y, x).item() == pytest.approx(cka(x, y).item())


def test_rotation_shift_and_scale_are_not_seen():
    x = random(30, 4)
    rotation = torch.linalg.qr(random(4, 4, seed=2)).Q
    assert cka(x, 5 * x @ rotation + 3).item() == pytest.approx(1)


def test_unrelated_features_are_far_apart():
    assert cka(random(5000, 4), random(5000, 4, seed=1)).item() < 0.01


def test_features_that_do_not_vary_are_related_to_nothing():
    assert cka(torch.full((7, 3), 0.1), random(7, 3)).item() == 0
    assert cka(torch.full((7, 30), 0.1), torch.full((7, 30), 0.1)).item() == 0


def test_further_dimensions_are_flattened():
    x = random(10, 2, 3)
    assert cka(x, x.flatten(1)).item() == pytest.approx(1)


def test_features_of_different_samples_are_refused():
    with pytest.raises(InputError, match=r"\(4, 3\) and \(5, 3\)"):
        cka(torch.ones(4, 3), torch.ones(5, 3))
