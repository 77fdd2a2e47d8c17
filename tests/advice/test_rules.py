"""Thresholds and rules are data: every rule can be read, names what exists and says why."""

import math
from pathlib import Path

import pytest

from idiolect.advice import RULES, SCALES, Rule, findings, recommend
from idiolect.advice.rules import LEVELS, Recommendation
from idiolect.contract.method import methods

NAMES = {scale.name for scale in SCALES}


def first(**numbers):
    named = {name.replace("_", " "): value for name, value in numbers.items()}
    return [each.method for each in recommend(findings(named))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.method} {rule.points:+}")
def test_every_rule_names_a_method_that_exists_and_numbers_that_are_measured(rule):
    methods.build(rule.method)
    assert set(rule.when) <= NAMES
    assert set(rule.when.values()) <= set(LEVELS)
    assert rule.points != 0
    assert rule.reason


def test_every_threshold_is_explained():
    text = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    for scale in SCALES:
        assert f"| {scale.name} | {scale.some:g} | {scale.strong:g} |" in text


def test_levels_begin_at_their_thresholds():
    for scale in SCALES:
        assert scale.level(scale.some) == "some"
        assert scale.level(scale.strong) == "strong"
        assert scale.level(math.nan) == "none"
    few = next(scale for scale in SCALES if scale.name == "few samples")
    assert [few.level(each) for each in (1000, 100, 10)] == ["none", "some", "strong"]


def test_a_condition_means_at_least_that_much_and_none_means_none():
    rule = Rule("fedavg", 1, {"label skew": "some", "concept shift": "none"}, "why")
    assert rule.applies({"label skew": "strong", "concept shift": "none"})
    assert not rule.applies({"label skew": "none", "concept shift": "none"})
    assert not rule.applies({"label skew": "strong", "concept shift": "some"})


def test_clients_that_are_alike_need_one_model():
    assert first(label_skew=0.0, feature_shift=0.0, concept_shift=0.0)[0] == "fedavg"


def test_classes_of_ones_own_ask_for_a_head_of_ones_own():
    assert "fedper" in first(label_skew=0.6, head_conflict=0.5, hidden_layers=2)[:3]
    assert "fedper" not in first(label_skew=0.6, head_conflict=0.5, hidden_layers=0)


def test_shifted_inputs_ask_for_private_normalisation_where_there_is_any():
    assert first(feature_shift=0.3, normalisation=4, hidden_layers=4)[0] == "fedbn"
    assert "fedbn" not in first(feature_shift=0.3, normalisation=0, hidden_layers=4)


def test_concepts_that_differ_ask_for_models_that_differ():
    assert set(first(concept_shift=0.5)[:3]) == {"ditto", "fedamp", "fedem"}
    assert "fedamp" not in first(concept_shift=0.5, many_clients=500)


def test_three_methods_are_always_recommended():
    for label in (0.0, 0.2, 0.9):
        for feature in (0.0, 0.05, 0.9):
            for concept in (0.0, 0.2, 0.9):
                for absence in (0.0, 0.9):
                    found = first(label_skew=label, feature_shift=feature, concept_shift=concept, absence=absence)
                    assert len(found) >= 3, (label, feature, concept, absence)


def test_what_speaks_against_a_method_is_said_and_counted():
    rules = (Rule("ditto", 3, {}, "clients differ"), Rule("ditto", -2, {}, "they are absent"))
    assert Recommendation("ditto", rules).points == 1
    assert Recommendation("ditto", rules).reason == "clients differ; but they are absent"
