"""How clients differ, in numbers: nothing where they are dealt at random, much where they are made to differ."""

import pytest
import torch

from idiolect.advice import measure
from idiolect.data import load


def held(partition, clients=20):
    parts = [client.split("train") for client in load("digits", partition=partition, clients=clients).clients]
    return [x for x, _ in parts], [y for _, y in parts]


@pytest.mark.parametrize("clients", [5, 20, 60])
def test_clients_that_are_dealt_at_random_do_not_differ_however_small_they_are(clients):
    x, y = held("iid", clients)
    features = measure.random_features(x)
    assert measure.label_skew(y) < 0.03
    assert measure.feature_shift(features, y) < 0.02
    assert measure.concept_shift(features, y) < 0.02


def test_label_skew_grows_with_the_skew_and_is_nothing_else():
    skews = [measure.label_skew(held(f"dirichlet:{alpha}")[1]) for alpha in (10, 1, 0.1)]
    assert skews == sorted(skews)
    assert skews[0] < 0.1 < 0.4 < skews[2]
    x, y = held("pathological:2")
    features = measure.random_features(x)
    assert measure.feature_shift(features, y) < 0.02
    assert measure.concept_shift(features, y) < 0.1


def test_label_skew_by_hand():
    # Two clients, one class each: every client would have to change half its samples, d = 1/2. Dealt at random, eight
    # samples show some d0 > 0 by chance, which is taken off.
    labels = [torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)]
    found = measure.label_skew(labels)
    assert 0 < found < 0.5
    assert measure.label_skew([torch.tensor([0, 1])] * 2) == pytest.approx(0.0)


def test_labels_may_be_maps():
    alike = torch.randint(0, 3, (50, 4, 4), generator=torch.Generator().manual_seed(0))
    assert measure.label_skew([alike, alike]) < 0.02
    assert measure.label_skew([alike * 0, alike * 0 + 2]) > 0.4


@pytest.mark.parametrize("kind", ["rotate", "noise", "contrast", "scale", "invert", "blur"])
def test_every_kind_of_feature_shift_is_seen(kind):
    x, y = held(f"feature(kind={kind})")
    assert measure.feature_shift(measure.random_features(x), y) > 0.02
    assert measure.label_skew(y) < 0.03


def test_a_class_that_one_client_holds_tells_nothing_about_shift():
    x, y = torch.rand(10, 3), torch.zeros(10).long()
    assert measure.feature_shift([x, x + 100], [y, y + 1]) == 0.0


def test_other_names_for_the_same_things_are_a_concept_shift():
    x, y = held("iid")
    features = measure.random_features(x)
    swapped = [9 - labels if client % 2 else labels for client, labels in enumerate(y)]
    assert measure.concept_shift(features, swapped) > 0.3
    assert measure.label_skew(swapped) < 0.1
    assert measure.feature_shift(features, swapped) < 0.02


@pytest.mark.parametrize("kind", ["rotate", "invert"])
def test_inputs_that_are_moved_are_no_concept_shift(kind):
    x, y = held(f"feature(kind={kind})")
    assert measure.concept_shift(measure.random_features(x), y) < 0.1


def test_tokens_have_features_too():
    low = torch.randint(0, 10, (40, 12), generator=torch.Generator().manual_seed(0))
    features = measure.random_features([low, low + 10], words=20)
    label = torch.zeros(40).long()
    assert measure.feature_shift(features, [label, label]) > 0.3


def test_targets_that_are_numbers_become_tenths():
    classes = measure.as_classes([torch.arange(50.0), torch.arange(50.0, 100.0)])
    assert torch.cat(classes).bincount().tolist() == [10] * 10
    assert measure.label_skew(classes) > 0.4


def test_gini_by_hand():
    # 1, 2, 3: mean absolute difference 8/9 over twice the mean 2 -> 2/9.
    assert measure.gini([3, 1, 2]) == pytest.approx(2 / 9)
