"""A federation is built from the user's own clients or from a pool, and refuses data it cannot use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from idiolect.core.errors import DataError, InputError, OptionError
from idiolect.data import Federation, Shift


def samples(n: int, features: int = 3, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n * features, dtype=torch.float32).reshape(n, features), torch.arange(n) % classes


class Pairs(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0), (torch.ones(2), 1)])


# -- splits --------------------------------------------------------------------------------------


def test_a_client_is_split_60_20_20_and_loses_nothing():
    client = Federation.from_clients([samples(50)]).clients[0]
    assert [len(client.train), len(client.val), len(client.test), len(client)] == [30, 10, 10, 30]
    assert client.indices.tolist() == list(range(50))
    assert all(each.dtype == torch.int64 for each in (client.train, client.val, client.test))


@pytest.mark.parametrize(("n", "sizes"), [(1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (7, (5, 1, 1))])
def test_small_clients_always_keep_a_training_sample(n, sizes):
    client = Federation.from_clients([samples(n)]).clients[0]
    assert (len(client.train), len(client.val), len(client.test)) == sizes


def test_little_training_share_still_leaves_one_training_sample():
    client = Federation.from_clients([samples(2)], split=(0.1, 0.45, 0.45)).clients[0]
    assert (len(client.train), len(client.val), len(client.test)) == (1, 0, 1)


def test_splits_follow_from_seed_and_position_alone():
    one = Federation.from_clients([samples(20), samples(20)], seed=1)
    two = Federation.from_clients([samples(20), samples(20), samples(9)], seed=1)
    other = Federation.from_clients([samples(20)], seed=2)
    assert torch.equal(one.clients[1].train, two.clients[1].train)
    assert not torch.equal(one.clients[0].train, one.clients[1].train)
    assert not torch.equal(one.clients[0].train, other.clients[0].train)


def test_split_gathers_inputs_and_targets():
    x, y = samples(10)
    client = Federation.from_clients([(x, y)]).clients[0]
    got_x, got_y = client.split("test")
    assert torch.equal(got_x, x[client.test])
    assert torch.equal(got_y, y[client.test])
    with pytest.raises(InputError, match=r"no split 'dev'; choose train, val, test"):
        client.split("dev")


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0, 0.5, 0.5), (0.6, 0.2, 0.3), (0.8, -0.2, 0.4), "abc", None])
def test_wrong_shares_are_refused(shares):
    with pytest.raises(OptionError, match="three numbers that add up to 1"):
        Federation.from_clients([samples(5)], split=shares)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "a"])
def test_a_seed_is_a_whole_number_from_zero(seed):
    with pytest.raises(OptionError, match="a seed must be a whole number"):
        Federation.from_clients([samples(5)], seed=seed)


# -- what a client may be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client",
    [
        samples(4),
        tuple(each.numpy() for each in samples(4)),
        [[[1.0, 2.0]] * 4, [0, 1, 0, 1]],
        TensorDataset(*samples(4)),
        Pairs([(torch.zeros(3), 1)] * 4),
        Pairs([(np.zeros(3), np.int64(1))] * 4),
        {"train": samples(4)},
    ],
)
def test_a_client_may_be_arrays_a_dataset_or_a_mapping(client):
    federation = Federation.from_clients([client])
    assert len(federation.clients[0].x) == 4
    assert federation.clients[0].x.dtype == torch.float32
    assert federation.clients[0].y.dtype == torch.int64
    assert federation.classes == 2


def test_an_iterable_dataset_is_read_once():
    assert len(Federation.from_clients([Stream()]).clients[0].x) == 2


def test_given_splits_are_kept_and_missing_ones_come_from_training_data():
    train, test = samples(40), samples(7)
    client = Federation.from_clients([{"train": train, "test": test}]).clients[0]
    assert (len(client.train), len(client.val), len(client.test)) == (30, 10, 7)
    assert torch.equal(client.split("test")[0], test[0])
    full = Federation.from_clients([{"test": test, "val": samples(5), "train": train}]).clients[0]
    assert (len(full.train), len(full.val), len(full.test)) == (40, 5, 7)
    assert torch.equal(full.split("val")[0], samples(5)[0])


def test_names_come_from_a_mapping_or_are_numbers():
    assert [c.name for c in Federation.from_clients({"north": samples(3), 7: samples(3)}).clients] == ["north", "7"]
    assert Federation.from_clients([samples(2)] * 11).clients[3].name == "client-03"


@pytest.mark.parametrize(
    ("x", "kept"),
    [
        (np.ones((2, 3), np.float64), torch.float32),
        (np.ones((2, 3), np.uint8), torch.float32),
        (np.ones((2, 3), bool), torch.float32),
        (np.ones((2, 3), np.int32), torch.int64),
        (np.ones((2, 3), np.uint16), torch.int64),
        (np.ones((2, 3), ">f4"), torch.float32),
        (torch.ones(2, 3, dtype=torch.float16), torch.float32),
    ],
)
def test_inputs_become_float32_and_tokens_stay_int64(x, kept):
    assert Federation.from_clients([(x, [0, 1])]).clients[0].x.dtype == kept


def test_bytes_are_not_rescaled():
    x = np.full((2, 3), 255, np.uint8)
    x.setflags(write=False)
    assert Federation.from_clients([(x, [0, 1])]).clients[0].x.max() == 255


def test_float_targets_mean_regression_unless_classes_are_given():
    x = torch.zeros(2, 1)
    assert Federation.from_clients([(x, [0.0, 2.5])]).classes is None
    labelled = Federation.from_clients([(x, [0.0, 2.0])], classes=3)
    assert labelled.classes == 3
    assert labelled.clients[0].y.dtype == torch.int64


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (torch.zeros(3), "client 'client-0', train is a Tensor; give a tuple"),
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), "client 'client-0' is empty"),
        (Pairs([]), "is empty"),
        (
            {"train": (torch.zeros(0, 2), torch.zeros(0).long()), "test": samples(2, 2)},
            "no training samples .0 for val",
        ),
        ({"val": samples(2)}, "has the keys val; give train"),
        ({"train": samples(2), "dev": samples(2)}, "has the keys train, dev; give train"),
        ({"train": samples(2), "test": samples(2, 5)}, "its splits differ in the shape"),
        ((torch.zeros(3, 2), torch.zeros(2).long()), "3 inputs but 2 targets"),
        ((torch.zeros(3), torch.zeros(3).long()), r"need one row per sample; give a single feature as x\[:, None\]"),
        ((torch.tensor(1.0), [1]), "a single value or complex"),
        ((torch.zeros(2, 1, dtype=torch.complex64), [1, 0]), "a single value or complex"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "the inputs differ in shape among themselves"),
        ((torch.zeros(2, 1), ["cat", 3]), "the targets are of type <U21, not numbers"),
        ((torch.zeros(2, 1), [[0], [1]]), r"the labels have the shape \[2, 1\]; give them as y.reshape"),
        (
            (torch.tensor([[float("nan")], [1.0], [float("inf")]]), [0, 1, 0]),
            "2 of 3 samples with NaN or infinite inputs",
        ),
        ((np.array([[1e300], [1.0]]), [0, 1]), "1 of 2 samples with NaN or infinite inputs"),
        ((torch.zeros(2, 1), [0.5, float("nan")]), "1 of 2 samples with NaN or infinite targets"),
        ((torch.zeros(2, 1), [[0.5, 1.0], [0.5, float("inf")]]), "1 of 2 samples with NaN or infinite targets"),
        ((torch.zeros(2, 1), [0, -1]), "the label -1; number the classes from 0 on"),
        (Pairs([(torch.zeros(1, 2), 0), (torch.zeros(1, 3), 0)]), "samples cannot be stacked"),
        (Pairs([("text", 0)]), "samples cannot be stacked"),
        (Pairs([torch.zeros(2)]), "must yield pairs .x, y., but yields Tensor"),
        (Dataset(), "the dataset Dataset has no length"),
    ],
)
def test_an_unusable_client_is_named_with_the_reason(client, message):
    with pytest.raises(DataError, match=message):
        Federation.from_clients([client])


@pytest.mark.parametrize(
    ("clients", "classes", "message"),
    [
        ([], None, "needs clients, but none"),
        ([samples(3), samples(3, features=4)], None, r"client 'client-1' have the shape \[4\]"),
        (
            [samples(3), (torch.zeros(2, 3), [0.5, 1.5])],
            None,
            "the targets of client 'client-1'.*all clients must agree",
        ),
        ([samples(3), (torch.ones(2, 3).long(), [0, 1])], None, "the inputs of client 'client-1'.*int64"),
        ({1: samples(3), "1": samples(3)}, None, "several clients are called '1'"),
        ([samples(3)], 1, "client 'client-0' has the label 1; labels must be whole numbers from 0 to 0"),
        ([(torch.zeros(2, 1), [0.0, 0.5])], 3, "0.5 is no label; labels are whole numbers from 0 to 2"),
    ],
)
def test_unusable_clients_together(clients, classes, message):
    with pytest.raises(DataError, match=message):
        Federation.from_clients(clients, classes=classes)


# -- from a pool ------------------------------------------------------------------------------------


def test_a_pool_is_held_once():
    federation = Federation.from_pool(*samples(40), "iid", clients=4)
    assert len({client.x.data_ptr() for client in federation.clients}) == 1
    held = torch.cat([client.indices for client in federation.clients])
    assert held.sort().values.tolist() == list(range(40))


def test_a_pool_may_be_a_dataset():
    assert len(Federation.from_pool(TensorDataset(*samples(40)), None, "shards", clients=4)) == 4


def test_clients_are_named_after_their_groups():
    groups = np.array(["rome", "oslo"] * 10)
    federation = Federation.from_pool(*samples(20), "group", groups=groups)
    assert [client.name for client in federation.clients] == ["oslo", "rome"]
    mixed = Federation.from_pool(*samples(20), "iid", clients=2, groups=groups)
    assert [client.name for client in mixed.clients] == ["client-0", "client-1"]


def test_the_expression_of_the_partition_is_canonical():
    assert Federation.from_pool(*samples(80), "dirichlet:0.5", clients=2).partition == "dirichlet(alpha=0.5)"
    assert Federation.from_clients([samples(3)]).partition == "given"


def test_a_bad_sample_in_a_pool_is_traced_to_its_client():
    x, y = samples(20)
    x[7] = float("nan")
    owner = next(c.name for c in Federation.from_pool(*samples(20), "iid", clients=4).clients if 7 in c.indices)
    with pytest.raises(DataError, match=f"client '{owner}' has 1 of 5 samples with NaN"):
        Federation.from_pool(x, y, "iid", clients=4)


def test_a_bad_sample_that_no_client_holds_does_no_harm():
    x, y = samples(20)
    x[7] = float("nan")
    saved = Federation.from_pool(x[:, :1].nan_to_num(), y, "group", clients=1, groups=np.arange(20) // 10, seed=0)
    kept = 7 not in saved.clients[0].indices
    groups = np.arange(20) // 10 if kept else 1 - np.arange(20) // 10
    assert len(Federation.from_pool(x, y, "group", clients=1, groups=groups, seed=0)) == 1


def test_fewer_samples_than_clients_is_refused():
    with pytest.raises(DataError, match="3 samples cannot be dealt to 5 clients"):
        Federation.from_pool(*samples(3), "iid", clients=5)


def test_feature_shift_reaches_the_samples():
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
    federation = Federation.from_pool(x, y, "feature:rotate", clients=4)
    client = federation.clients[1]
    assert client.shift == Shift("rotate", 90.0, seed=1)
    assert torch.equal(client.split("train")[0], torch.rot90(x[client.train], 1, (2, 3)))
    assert federation.clients[0].shift is None
    with pytest.raises(DataError, match="needs images"):
        Federation.from_pool(*samples(40), "feature:rotate", clients=4)


# -- what a federation knows ---------------------------------------------------------------------------


def test_label_counts_cover_all_splits():
    counts = Federation.from_clients([samples(5), samples(4)]).label_counts()
    assert counts.tolist() == [[3, 2], [2, 2]]
    with pytest.raises(DataError, match="predicts numbers, so there are no labels"):
        Federation.from_clients([(torch.zeros(2, 1), [0.5, 1.5])]).label_counts()


def test_the_fingerprint_names_data_and_splits():
    first, again = (Federation.from_clients([samples(10), samples(12)]) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 12
    x, y = samples(10)
    changed = Federation.from_clients([(x + 1e-3, y), samples(12)])
    resplit = Federation.from_clients([samples(10), samples(12)], seed=1)
    public = Federation.from_clients([samples(10), samples(12)], public=samples(4))
    assert len({each.fingerprint for each in (first, changed, resplit, public)}) == 4


def test_shape_outputs_and_kind_are_told():
    federation = Federation.from_clients([(torch.zeros(4, 2, 5), torch.zeros(4, 3))])
    assert (federation.input_shape, federation.outputs, federation.tokens) == ((2, 5), 3, False)
    assert Federation.from_clients([samples(4)]).outputs == 2
    assert Federation.from_clients([(torch.zeros(4, 2), torch.zeros(4))]).outputs == 1
    assert Federation.from_clients([(torch.zeros(4, 2).long(), [0, 1, 0, 1])]).tokens


def test_unseen_clients_are_drawn_by_seed_and_never_all():
    federation = Federation.from_clients([samples(5)] * 20, unseen=0.1)
    assert len(federation.unseen) == 2
    assert set(federation.seen) == set(range(20)) - federation.unseen
    assert federation.unseen == Federation.from_clients([samples(5)] * 20, unseen=0.1).unseen
    assert len(Federation.from_clients([samples(5)] * 3, unseen=0.01).unseen) == 1
    assert len(Federation.from_clients([samples(5)] * 3, unseen=0.99).unseen) == 2
    with pytest.raises(DataError, match="would hold out the only client"):
        Federation.from_clients([samples(5)], unseen=0.5)
    with pytest.raises(OptionError, match=r"must lie in \[0, 1\)"):
        Federation.from_clients([samples(5)] * 3, unseen=1.0)


def test_public_data_must_look_like_the_clients():
    assert len(Federation.from_clients([samples(5)], public=samples(9)).public[0]) == 9
    with pytest.raises(DataError, match="they must be alike"):
        Federation.from_clients([samples(5)], public=samples(9, features=2))


def test_representations_are_short():
    federation = Federation.from_clients([samples(5)] * 4, unseen=0.25)
    assert repr(federation) == "Federation('custom', 4 clients, 1 unseen, 2 classes, given)"
    assert repr(federation.clients[0]) == "Client('client-0', train=3, val=1, test=1)"
