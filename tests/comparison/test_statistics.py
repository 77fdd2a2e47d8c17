"""Intervals, paired tests and the correction for several tests, against SciPy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from idiolect.comparison.statistics import compare_pairs, holm, interval

SEEDS = np.random.default_rng(3)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_interval_is_that_of_scipy(n):
    values = SEEDS.normal(0.8, 0.02, n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-12)


def test_interval_by_hand():
    """1, 2, 3: s = 1, t(0.975, 2) = 4.302653, so half the width is 4.302653 / sqrt(3) = 2.484138."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.484138), abs=1e-6)


def test_one_seed_has_a_mean_and_no_interval():
    mean, half = interval([0.7])
    assert mean == 0.7
    assert math.isnan(half)
    assert all(map(math.isnan, interval([])))


@pytest.mark.parametrize("n", [2, 3, 10])
def test_paired_is_that_of_scipy(n):
    a, b = SEEDS.normal(0.8, 0.02, n), SEEDS.normal(0.78, 0.02, n)
    expected = stats.ttest_rel(a, b)
    bounds = expected.confidence_interval(0.95)
    result = compare_pairs(a, b)
    assert result.difference == pytest.approx((a - b).mean())
    assert (result.low, result.high) == pytest.approx((bounds.low, bounds.high))
    assert result.p == pytest.approx(expected.pvalue)


def test_pairing_sees_what_separate_intervals_do_not():
    """Scores that vary a lot from seed to seed, and a difference that does not."""
    a, b = [0.60, 0.75, 0.90], [0.58, 0.735, 0.875]
    assert interval(a).half > 0.3
    assert compare_pairs(a, b).p < 0.05


def test_differences_that_do_not_vary():
    assert compare_pairs([0.5, 0.6], [0.5, 0.6]) == (0.0, 0.0, 0.0, 1.0)
    assert compare_pairs([3.0, 4.0], [2.0, 3.0]) == (1.0, 1.0, 1.0, 0.0)


def test_one_pair_has_a_difference_and_no_test():
    result = compare_pairs([0.75], [0.5])
    assert result.difference == 0.25
    assert all(map(math.isnan, result[1:]))


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])


def test_holm_keeps_the_order_and_stays_below_one():
    assert holm([0.04, 0.011, 0.9]) == pytest.approx([0.08, 0.033, 0.9])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_leaves_out_tests_that_were_not_made():
    result = holm([0.02, math.nan, 0.04])
    assert result[0] == pytest.approx(0.04)
    assert math.isnan(result[1])
    assert result[2] == pytest.approx(0.04)
