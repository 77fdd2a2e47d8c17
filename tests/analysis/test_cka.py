"""Linear CKA: what it does not see, what it tells apart, and features without variation."""

import pytest
import torch

from idiolect.analysis import cka, cka_matrix, compress_features
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


def test_the_matrix_holds_the_cka_of_every_pair():
    torch.manual_seed(0)
    features = [torch.randn(20, 3), torch.randn(20, 5), torch.randn(20, 2)]
    found = cka_matrix(features)
    assert torch.equal(found, found.T)
    assert torch.allclose(found.diag(), torch.ones(3, dtype=torch.float64))
    assert found[0, 2] == cka(features[2], features[0])


def test_compressed_features_have_the_same_cka_to_any_others():
    wide, other, narrow = random(9, 40), random(9, 25, seed=1), random(9, 4, seed=2)
    small = compress_features(wide)
    assert small.shape == (9, 9)
    for features in (other, narrow, compress_features(other)):
        assert cka(small, features).item() == pytest.approx(cka(wide, features).item(), abs=1e-12)
    assert compress_features(narrow).shape == (9, 4)
    assert cka(compress_features(torch.full((7, 30), 0.1)), random(7, 3)).item() == 0
