"""Clients of a pool are a few arrays, and everything about them is as if each were kept by itself."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from idiolect.core.errors import DataError
from idiolect.data import Federation, load, pool_clients
from idiolect.data.pool_clients import PoolClients, distinct, label_ranges, names_of, sizes_of, training_targets
from idiolect.data.transforms import build_transforms
from idiolect.runs.practice import warn_of_data


def apart(federation):
    """The same federation, whose clients are kept one by one."""
    return replace(federation, clients=tuple(federation.clients))


def segmentation():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 4, 4, generator=draw), torch.randint(0, 3, (40, 4, 4), generator=draw)
    return Federation.from_pool(x, y, "iid", clients=3)


FEDERATIONS = {
    "classes": lambda: load("digits", partition="dirichlet(0.5, min_size=2)", clients=23),
    "shifted": lambda: load("digits", partition="feature(kind=rotate)", clients=5),
    "transformed": lambda: load("digits", partition="iid", clients=5),
    "numbers": lambda: Federation.from_pool(torch.randn(30, 2), torch.randn(30), "iid", clients=4),
    "segmentation": segmentation,
}


@pytest.fixture(params=FEDERATIONS, scope="module")
def federation(request):
    return FEDERATIONS[request.param]()


def test_clients_have_the_samples_that_they_were_dealt(federation):
    clients = federation.clients
    assert isinstance(clients, PoolClients)
    assert sum(len(client.indices) for client in clients) == len(clients.x) == len(torch.unique(clients.positions))
    for at, client in enumerate(clients):
        assert client.name == clients[at].name == clients[at - len(clients)].name == federation.client_names[at]
        assert federation[client.name].train.tolist() == client.train.tolist()
    assert [client.name for client in clients[1:3]] == federation.client_names[1:3]
    with pytest.raises(IndexError):
        clients[len(clients)]


def test_what_is_asked_of_all_is_what_each_would_answer(federation, monkeypatch):
    monkeypatch.setattr(pool_clients, "BLOCK", 2)
    alone = apart(federation)
    assert federation.fingerprint == alone.fingerprint
    assert names_of(federation.clients) == names_of(alone.clients)
    assert np.array_equal(sizes_of(federation.clients), sizes_of(alone.clients))
    assert len(distinct(federation.clients)) == 1
    chosen = [2, 0]
    assert torch.equal(*(training_targets(f.clients, chosen) for f in (federation, alone)))
    if federation.classes is not None:
        assert torch.equal(federation.label_counts(), alone.label_counts())
        for training in (True, False):
            for ours, theirs in zip(*(label_ranges(f.clients, training) for f in (federation, alone)), strict=True):
                assert np.array_equal(ours, theirs)


def test_they_travel_and_are_changed_as_a_whole(federation):
    again = pickle.loads(pickle.dumps(federation.clients))
    assert again[0].val.tolist() == federation.clients[0].val.tolist()
    doubled = federation.clients.changed(x=2 * federation.clients.x)
    assert torch.equal(doubled[1].x, 2 * federation.clients[1].x)
    assert doubled[1].shift is federation.clients[1].shift


def test_transforms_hold_for_all():
    federation = load("digits", partition="iid", clients=3)
    changed = federation.transformed(build_transforms("normalize"))
    assert isinstance(changed.clients, PoolClients)
    assert not torch.equal(changed.clients[2].split("test")[0], federation.clients[2].split("test")[0])


def test_the_client_with_a_wrong_label_is_named():
    x, y = torch.zeros(12, 2), torch.tensor([0, 1, 2, 9] * 3)
    holder = Federation.from_pool(x, y, "shards:1", clients=4, split=(0.6, 0.2, 0.2)).client_names
    with pytest.raises(DataError, match=rf"client '({'|'.join(holder)})' has the label 9; .* from 0 to 3"):
        Federation.from_pool(x, y, "shards:1", clients=4, classes=4)
    with pytest.raises(DataError, match="has the label -1"):
        Federation.from_pool(x, y - 1, "iid", clients=2)


def test_clients_of_one_class_or_without_samples_to_test_are_counted(caplog):
    x, y = torch.randn(40, 2), torch.arange(40) % 4
    for name, make in (("pool", lambda data: data), ("apart", apart)):
        data = Federation.from_pool(x, y, "shards:1", clients=4, split=(0.8, 0.2, 0), name=name)
        caplog.clear()
        warn_of_data(make(data), "last")
        assert "4 of 4 clients (client-0, client-1, client-2, ...) have training samples of one class" in caplog.text
        assert "no client has test samples" in caplog.text
