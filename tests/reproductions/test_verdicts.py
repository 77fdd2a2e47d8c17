"""The rules of the verdicts, worked by hand.

Differences 1, 2, 3 have mean 2 and half width 4.3027 / sqrt(3) = 2.484, so the interval is [-0.484, 4.484]; 2, 3, 4
have [0.516, 5.484]."""

import math

import pytest

from idiolect.reproductions.verdicts import judge

ZERO = [0.0, 0.0, 0.0]
SURE, UNSURE = [2.0, 3.0, 4.0], [1.0, 2.0, 3.0]
NAN = math.nan


def negative(values):
    return [-value for value in values]


@pytest.mark.parametrize(
    ("relation", "claimed", "verdict"),
    [
        ("higher", SURE, "holds"),
        ("higher", UNSURE, "no difference"),
        ("higher", negative(UNSURE), "no difference"),
        ("higher", negative(SURE), "contradicted"),
        ("lower", negative(SURE), "holds"),
        ("lower", negative(UNSURE), "no difference"),
        ("lower", SURE, "contradicted"),
    ],
)
def test_a_claim_holds_where_the_paired_interval_lies_on_its_side_of_zero(relation, claimed, verdict):
    assert judge(relation, claimed, {"b": ZERO}).verdict == verdict


def test_scores_are_paired_by_seed_so_that_what_seeds_share_does_not_count():
    assert judge("higher", [102.0, 53.0, 4.0], {"b": [100.0, 50.0, 0.0]}).verdict == "holds"


def test_the_interval_says_how_large_a_difference_is_excluded():
    (difference,) = judge("higher", UNSURE, {"b": ZERO}).differences
    assert difference.paired.difference == pytest.approx(2)
    assert difference.paired.low == pytest.approx(-0.4841, abs=1e-4)
    assert difference.paired.high == pytest.approx(4.4841, abs=1e-4)


def test_above_every_other_holds_only_if_it_is_above_each():
    assert judge("higher", SURE, {"b": ZERO, "c": negative(SURE)}).verdict == "holds"
    verdict = judge("higher", SURE, {"b": ZERO, "c": [1.0, 1.0, 1.0]})
    assert (verdict.verdict, verdict.words) == ("no difference", "above 1 of 2; no difference to c")


def test_below_one_of_the_others_contradicts_above_every_other():
    verdict = judge("higher", SURE, {"b": ZERO, "c": [12.0, 13.0, 14.01]})
    assert (verdict.verdict, verdict.words) == ("contradicted", "above 1 of 2; below c")


def test_one_contradiction_among_many_others_is_corrected_for_their_number():
    """-2, -3, -4 has p = 0.035: enough against one, not against the smallest of two, which needs 0.025."""
    below = negative(SURE)
    assert judge("higher", below, {"b": ZERO}).verdict == "contradicted"
    verdict = judge("higher", below, {"b": ZERO, "c": [-2.0, -3.1, -4.0]})
    assert verdict.differences[0].paired.p == pytest.approx(0.0351, abs=1e-4)
    assert verdict.differences[0].p_holm == pytest.approx(0.0702, abs=1e-4)
    assert verdict.verdict == "no difference"


def test_ties_are_no_difference_and_a_constant_lead_holds():
    assert judge("higher", [1.0, 2.0], {"b": [1.0, 2.0]}).verdict == "no difference"
    assert judge("higher", [2.0, 3.0], {"b": [1.0, 2.0]}).verdict == "holds"
    assert judge("equal", [1.0, 2.0], {"b": [1.0, 2.0]}, within=0.0).verdict == "holds"


@pytest.mark.parametrize("claimed", [[1.0], [NAN, NAN, 5.0], [NAN, NAN, NAN]])
def test_fewer_than_two_pairs_decide_nothing(claimed):
    verdict = judge("higher", claimed, {"b": [0.0] * len(claimed)})
    assert verdict.verdict == "undecided"


def test_a_seed_without_a_score_is_left_out_of_its_pair_alone():
    verdict = judge("higher", [2.0, 3.0, 4.0, NAN], {"b": [0.0, 0.0, 0.0, 9.0], "c": [0.0, 0.0, NAN, 0.0]})
    assert [each.pairs for each in verdict.differences] == [3, 2]
    assert verdict.verdict == "no difference"  # 2 and 3 have [-3.85, 8.85]
    assert verdict.words == "above 1 of 2; no difference to c"


@pytest.mark.parametrize(
    ("within", "verdict"), [(6.0, "holds"), (5.0, "undecided"), (0.6, "undecided"), (0.5, "contradicted")]
)
def test_equal_ones_have_their_interval_within_the_margin(within, verdict):
    assert judge("equal", SURE, {"b": ZERO}, within).verdict == verdict
    assert judge("equal", negative(SURE), {"b": ZERO}, within).verdict == verdict
