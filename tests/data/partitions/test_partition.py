"""Partitions are disjoint, complete where they promise it, and determined by name, options and seed."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.core.errors import DataError, OptionError, UnknownNameError
from idiolect.data import Federation, Partition, divide, load, load_partition, save_partition
from idiolect.data.partitions import partitions

LABELS = np.arange(600) % 10
COMPLETE = (
    "iid",
    "dirichlet(0.5, min_size=1)",
    "dirichlet(0.3, min_size=1, balanced=true)",
    "dirichlet(0.2, min_size=1, form=mixture)",
    "pathological:3",
    "shards",
    "quantity(0.8, min_size=1)",
    "feature(noise, base=shards)",
)


@settings(max_examples=40, deadline=None)
@given(
    expression=st.sampled_from(COMPLETE),
    labels=st.lists(st.integers(0, 3), min_size=120, max_size=200),
    clients=st.integers(2, 8),
    seed=st.integers(0, 2**40),
)
def test_every_sample_goes_to_one_client_and_the_seed_decides(expression, labels, clients, seed):
    labels = np.array([0, 1, 2, 3, *labels])
    dealt = divide(expression, labels, clients=clients, seed=seed)
    assert len(dealt.indices) == clients
    assert np.array_equal(np.sort(np.concatenate(dealt.indices)), np.arange(len(labels)))
    assert all(len(index) and np.all(np.diff(index) > 0) for index in dealt.indices)
    assert dealt.hash == divide(expression, labels, clients=clients, seed=seed).hash


@pytest.mark.parametrize("expression", COMPLETE)
def test_another_seed_gives_another_partition(expression):
    assert divide(expression, LABELS, clients=5, seed=0).hash != divide(expression, LABELS, clients=5, seed=1).hash


@pytest.mark.parametrize("expression", [*partitions, "dirichlet:0.3", "pathological:4"])
def test_the_canonical_expression_builds_the_same_partition(expression):
    rule = partitions.build(expression)
    assert partitions.build(str(rule)) == rule


def test_partitions_do_not_change_from_release_to_release():
    assert divide("iid", LABELS, clients=5).hash == "592c7f599ac5"
    assert divide("dirichlet:0.3", LABELS, clients=5).hash == "ae0bc5241ce4"
    assert divide("pathological", LABELS, clients=5).hash == "781ee18b688d"
    assert divide("shards", LABELS, clients=5).hash == "696ffc950033"


def test_iid_sizes_are_even():
    assert sorted(len(index) for index in divide("iid", np.zeros(11), clients=3).indices) == [3, 4, 4]


# -- dirichlet -----------------------------------------------------------------------------------


def test_the_default_serves_the_digits():
    federation = load("digits", partition="dirichlet:0.1", clients=20)
    assert int(federation.label_counts().sum()) == 1797
    assert int(federation.label_counts().sum(1).min()) >= 10


def test_small_alpha_concentrates_labels():
    def largest_share(alpha: float) -> float:
        dealt = divide(f"dirichlet({alpha}, min_size=1)", LABELS, clients=6)
        counts = np.stack([np.bincount(LABELS[index], minlength=10) for index in dealt.indices])
        return float((counts.max(1) / counts.sum(1)).mean())

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_balancing_stops_at_the_even_share():
    # A client may pass the even share with one class, never start another class beyond it.
    dealt = divide("dirichlet(0.1, min_size=1, balanced=true)", LABELS, clients=6, seed=3)
    for index in dealt.indices:
        classes, counts = np.unique(LABELS[index], return_counts=True)
        assert counts[classes < classes.max()].sum() < 100


def test_mixtures_give_clients_of_equal_size():
    dealt = divide("dirichlet(0.1, form=mixture)", LABELS, clients=7)
    assert {len(index) for index in dealt.indices} == {85, 86}
    counts = np.stack([np.bincount(LABELS[index], minlength=10) for index in dealt.indices])
    assert (counts.max(1) / 86).mean() > 0.3


def test_mixtures_survive_an_extreme_alpha():
    dealt = divide("dirichlet(1e-5, form=mixture, min_size=1)", LABELS, clients=4)
    assert sum(len(index) for index in dealt.indices) == 600


def test_presets_carry_the_papers_settings():
    assert str(partitions.build("dirichlet(preset=pfllib)")) == "dirichlet(alpha=0.1, min_size=40, balanced=true)"
    assert str(partitions.build("dirichlet(preset=fedem)")) == "dirichlet(alpha=0.4, form=mixture)"


def test_an_impossible_minimum_ends_with_an_explanation():
    with pytest.raises(
        DataError, match=r"600 samples cannot be dealt to 30 clients with at least 15 each; in 1000 draws"
    ):
        divide("dirichlet(0.01, min_size=15)", LABELS, clients=30)
    with pytest.raises(DataError, match=r"that would take 1500 samples\. Use a larger alpha, fewer clients"):
        divide("dirichlet(min_size=50)", LABELS, clients=30)


@pytest.mark.parametrize(
    "expression", ["dirichlet:0", "dirichlet:-1", "dirichlet:inf", "dirichlet(form=other)", "quantity:0"]
)
def test_options_are_checked(expression):
    with pytest.raises(OptionError):
        partitions.build(expression)


def test_an_unknown_partition_is_met_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean dirichlet"):
        partitions.build("dirichlett")


# -- the others ------------------------------------------------------------------------------------


def test_pathological_clients_have_their_number_of_classes_and_classes_equally_many_clients():
    dealt = divide("pathological:3", LABELS, clients=10)
    held = np.stack([np.bincount(LABELS[index], minlength=10) for index in dealt.indices])
    assert (np.count_nonzero(held, axis=1) == 3).all()
    assert (np.count_nonzero(held, axis=0) == 3).all()
    assert held[held > 0].min() == held.max() == 20


def test_pathological_refuses_what_cannot_be():
    with pytest.raises(DataError, match="the data have 10 classes, so a client cannot have 11"):
        divide("pathological:11", LABELS, clients=5)
    with pytest.raises(DataError, match="cannot hold all 10 classes; use at least 5 clients"):
        divide("pathological:2", LABELS, clients=4)
    with pytest.raises(DataError, match=r"leaves client \d of 4 without samples"):
        divide("pathological:1", np.array([0, 1, 1, 1, 1, 1, 1]), clients=4)


def test_shards_give_few_classes():
    dealt = divide("shards:2", LABELS, clients=10)
    assert max(len(np.unique(LABELS[index])) for index in dealt.indices) <= 4
    with pytest.raises(DataError, match="cannot be cut into 10 x 100 shards"):
        divide("shards:100", LABELS, clients=10)


def test_quantity_skews_sizes_and_keeps_the_minimum():
    sizes = [len(index) for index in divide("quantity:0.5", LABELS, clients=8).indices]
    assert min(sizes) >= 10
    assert max(sizes) > 3 * min(sizes)


def test_groups_become_clients():
    groups = np.array(["b", "a", "c"] * 5)
    everyone = divide("natural", None, groups=groups)
    assert [groups[index[0]] for index in everyone.indices] == ["a", "b", "c"]
    chosen = divide("writer", None, groups=groups, clients=2, seed=1)
    assert len(chosen.indices) == 2
    assert chosen.hash == divide("group", None, groups=groups, clients=2, seed=1).hash
    with pytest.raises(DataError, match="4 clients were asked for, but the data have 3 natural groups"):
        divide("group", None, groups=groups, clients=4)
    with pytest.raises(DataError, match="no natural groups; choose another partition"):
        divide("group", LABELS)


def test_feature_shift_rests_on_another_partition():
    assert divide("feature(blur, base=shards)", LABELS, clients=5).hash == divide("shards", LABELS, clients=5).hash
    groups = np.repeat([0, 1, 2], 200)
    assert len(divide("feature(invert, base=group)", LABELS, groups=groups).indices) == 3
    with pytest.raises(UnknownNameError):
        partitions.build("feature(rotate, base=nothing)")


def test_what_a_partition_needs_is_asked_for():
    with pytest.raises(DataError, match=r"the partition iid needs the number of clients; give it, such as clients=20"):
        divide("iid", LABELS)
    with pytest.raises(DataError, match="deals by label, but the targets are not one class per sample"):
        divide("dirichlet", None, samples=50, clients=2)
    with pytest.raises(DataError, match=r"disagree \(\[600, 601\]\)"):
        divide("iid", LABELS, groups=np.zeros(601), clients=2)
    with pytest.raises(DataError, match="cannot be dealt to 0 clients"):
        divide("iid", LABELS, clients=0)


def test_a_partition_of_ones_own_is_checked():
    @dataclass(frozen=True)
    class Greedy(Partition):
        def assign(self, labels, n, clients, rng, groups):
            return [np.arange(n)] * clients

    with pytest.raises(DataError, match="gives a sample to two clients"):
        divide(Greedy(), LABELS, clients=2)
    with pytest.raises(NotImplementedError):
        divide(Partition(), LABELS, clients=2)


# -- saved partitions --------------------------------------------------------------------------------


def pool() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(600, 1, 4, 4), torch.from_numpy(LABELS)


def test_a_saved_partition_comes_back(tmp_path):
    path = tmp_path / "partition.json"
    first = Federation.from_pool(*pool(), "feature(rotate, base=shards)", clients=5, seed=4)
    save_partition(path, first)
    content = json.loads(path.read_text())
    assert content["name"] == "feature"
    assert content["parameters"] == {"kind": "rotate", "strength": 1.0, "base": "shards"}
    assert (content["seed"], content["hash"], content["samples"]) == (4, first.partition_hash, 600)
    again = Federation.from_pool(*pool(), f"file({path})")
    assert again.partition_hash == first.partition_hash
    assert [c.shift for c in again.clients] == [c.shift for c in first.clients]
    assert load_partition(path).seed == 4


def test_clients_with_their_own_data_have_no_partition_to_save(tmp_path):
    with pytest.raises(DataError, match="hold their own data, so there is no partition"):
        save_partition(tmp_path / "p.json", Federation.from_clients([pool(), pool()]))


def test_a_damaged_file_is_noticed(tmp_path):
    path = tmp_path / "partition.json"
    save_partition(path, divide("iid", LABELS, clients=5))
    content = json.loads(path.read_text())
    content["indices"][0][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged: its content has the hash"):
        load_partition(path)
    path.write_text('{"partition": "iid"')
    with pytest.raises(DataError, match="is no partition file, or damaged"):
        load_partition(path)
    path.write_text("[1, 2]")
    with pytest.raises(DataError, match="is no partition file, or damaged"):
        load_partition(path)
    with pytest.raises(DataError, match="there is no partition file"):
        divide(f"file({tmp_path / 'none.json'})", LABELS)


def test_a_file_made_for_other_data_is_refused(tmp_path):
    path = tmp_path / "partition.json"
    save_partition(path, divide("iid", LABELS, clients=5))
    with pytest.raises(DataError, match="was made for 600 samples, but the data have 500"):
        divide(f"file({path})", LABELS[:500])
    with pytest.raises(DataError, match="has 5 clients, not 4"):
        divide(f"file({path})", LABELS, clients=4)
