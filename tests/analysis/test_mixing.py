"""The mixing ratio: the worked example, dead and single features, dense features, and tracing."""

import math

import pytest
import torch

from idiolect.analysis import feature_values, mixing_ratio, ratio_of_traces, trace
from idiolect.core.errors import InputError


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_features_of_norm_two_and_one():
    assert mixing_ratio(2 * torch.eye(3), torch.eye(3)).item() == pytest.approx(0.8)


def test_the_trace_is_that_of_the_feature_matrix():
    h = random(20, 5)
    assert trace(h).item() == pytest.approx(sum(torch.outer(x, x) for x in h).trace().item(), rel=1e-5)
    assert trace(h, centered=True).item() == pytest.approx(20 * h.T.cov(correction=0).trace().item(), rel=1e-5)


@pytest.mark.parametrize("centered", [False, True])
def test_dead_features_mix_half_and_half(centered):
    assert mixing_ratio(torch.zeros(4, 3), torch.zeros(4, 3), centered).item() == 0.5


def test_one_sample_has_no_spread():
    assert mixing_ratio(random(1, 3), random(1, 3, seed=1), centered=True).item() == 0.5


def test_constant_features_have_no_spread_whatever_the_round_off():
    local, global_ = torch.full((7, 3), 0.1), torch.full((7, 3), 0.7)
    assert mixing_ratio(local, global_, centered=True).item() == 0.5
    assert mixing_ratio(local, global_).item() == pytest.approx(0.02)


def test_only_one_dead_model():
    assert mixing_ratio(torch.zeros(2, 3), torch.ones(2, 3)).item() == 0
    assert mixing_ratio(torch.ones(2, 3), torch.zeros(2, 3)).item() == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_trace_that_is_not_finite_falls_back(bad):
    assert ratio_of_traces(torch.tensor(bad), torch.tensor(1.0)).item() == 0.5
    assert ratio_of_traces(torch.tensor(1.0), torch.tensor(bad), fallback=torch.tensor(0.25)).item() == 0.25


def test_dense_features_are_averaged_over_their_positions():
    h = random(4, 3, 2, 5)
    torch.testing.assert_close(trace(h), trace(h.mean((2, 3))))


def test_samples_of_weight_zero_do_not_count():
    h, weight = random(5, 3), torch.tensor([1, 1, 1, 0, 0])
    for centered in (False, True):
        torch.testing.assert_close(trace(h, weight, centered), trace(h[:3], centered=centered))
    assert trace(h, torch.zeros(5), centered=True).item() == 0


def test_half_precision_features_are_summed_in_float32():
    h = random(5000, 8).bfloat16()
    assert trace(h).dtype == torch.float32
    assert trace(h).item() == pytest.approx(trace(h.double()).item(), rel=1e-5)


@pytest.mark.parametrize("centered", [False, True])
def test_many_clients_are_traced_at_once(centered):
    local, global_ = random(6, 9, 4), random(6, 9, 4, seed=1)
    local[2], global_[2] = 0, 0
    together = torch.func.vmap(lambda a, b: mixing_ratio(a, b, centered))(local, global_)
    one_by_one = torch.stack([mixing_ratio(a, b, centered) for a, b in zip(local, global_, strict=True)])
    torch.testing.assert_close(together, one_by_one)


def test_features_of_different_samples_are_refused():
    with pytest.raises(InputError, match=r"\(4, 3\).*\(5, 3\).*same samples"):
        mixing_ratio(torch.ones(4, 3), torch.ones(5, 3))
    with pytest.raises(InputError, match=r"shape \(4,\)"):
        trace(torch.ones(4))


def test_active_features_and_their_percentiles():
    """Of 0 .. 10 ten are above 0, 1 .. 10, whose percentiles are 1 + 9 * share; above 9, one."""
    found = feature_values(torch.arange(11.0).reshape(11, 1))
    assert found.active == pytest.approx(10 / 11)
    assert found.percentiles == pytest.approx((1.9, 3.25, 5.5, 7.75, 9.1))
    assert feature_values(torch.arange(11.0), threshold=9).percentiles == (10.0,) * 5


def test_features_that_are_never_active_have_no_percentiles():
    dead = feature_values(torch.zeros(3, 2))
    assert dead.active == 0
    assert all(map(math.isnan, dead.percentiles))
    with pytest.raises(InputError, match="no features"):
        feature_values(torch.zeros(0, 2))
