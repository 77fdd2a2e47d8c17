"""`load` takes whatever describes a federation, and refuses what makes no sense."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from idiolect.core.errors import DataError, InputError
from idiolect.data import Federation, load


def samples(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 3), torch.arange(n) % 2


def test_load_takes_whatever_describes_a_federation():
    federation = Federation.from_clients([samples(5)])
    assert load(federation, seed=4) is federation
    assert load("digits").partition == "dirichlet(alpha=0.1)"
    assert len(load("digits")) == 20
    assert load(samples(100), clients=4, partition="iid").name == "pool"
    assert load(TensorDataset(*samples(100)), clients=4, partition="shards").classes == 2
    assert load([samples(5), samples(6)]).partition == "given"
    assert load({"a": samples(5)}).clients[0].name == "a"
    assert load((torch.zeros(100, 2), torch.rand(100))).partition == "iid"


def test_load_resolves_public_data_by_name():
    federation = load("digits", clients=5, public="digits")
    assert federation.public[0].shape == (1797, 1, 8, 8)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (3, {}, r"a int is no data; give the name of a source \(ag-news"),
        ([samples(5)], {"clients": 3}, "cannot be dealt anew"),
        (Federation.from_clients([samples(5)]), {"partition": "iid"}, "already dealt and split"),
        (Federation.from_clients([samples(5)]), {"unseen": 0.5}, "already dealt and split"),
    ],
)
def test_load_refuses_what_makes_no_sense(data, options, message):
    with pytest.raises(DataError, match=message):
        load(data, **options)


def test_a_share_of_a_pool_becomes_public_and_no_client_holds_it():
    x, y = torch.arange(100.0).reshape(100, 1), torch.arange(100) % 4
    data = load((x, y), partition="iid", clients=5, public=0.2, seed=3)
    public = set(data.public[0].flatten().tolist())
    held = {value for client in data.clients for value in client.x[client.indices].flatten().tolist()}
    assert len(public) == 20
    assert public | held == set(x.flatten().tolist())
    assert not public & held
    assert torch.equal(data.public[1], data.public[0].flatten().long() % 4)
    assert torch.equal(load((x, y), partition="iid", clients=5, public="0.2", seed=3).public[0], data.public[0])


def test_clients_with_their_own_data_have_no_pool_to_take_a_share_from():
    clients = [(torch.randn(10, 2), torch.arange(10) % 2)] * 2
    with pytest.raises(DataError, match="these data come as clients"):
        load(clients, public=0.1)


@pytest.mark.parametrize("unseen", ["ü", ["Ward 10", "ü"], ("Ward 10",)])
def test_clients_that_never_train_may_be_named(unseen):
    clients = {name: ([[0.0], [1.0]] * 5, [0, 1] * 5) for name in ("Ward 10", "../x", "ü")}
    data = load(clients, unseen=unseen)
    assert {data.clients[at].name for at in data.unseen} == ({unseen} if isinstance(unseen, str) else set(unseen))


@pytest.mark.parametrize(
    ("unseen", "words"),
    [
        ("Ward 1", "unseen: no client is called 'Ward 1'. Did you mean Ward 10"),
        (["Ward 10", "b"], "all clients, so none is left"),
        (3, r"must lie in \[0, 1\); clients by name are a list of texts, as in unseen=\['3'\]"),
    ],
)
def test_names_that_no_client_has_are_refused(unseen, words):
    clients = {name: ([[0.0], [1.0]] * 5, [0, 1] * 5) for name in ("Ward 10", "b")}
    with pytest.raises(InputError, match=words):
        load(clients, unseen=unseen)
