"""Plans on both sides: the server has no data, a client only its own."""

import pytest
import torch
from torch import nn

from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.data.description import describe, read_description
from idiolect.flower.project import Project, hide_other_clients
from idiolect.flower.settings import read_settings
from idiolect.runs.setup import make_plan, weights_hash

SETTINGS = {"method": "fedavg", "clients": 3, "rounds": 1}


def own_data(client):
    return torch.randn(20, 5) + client, torch.arange(20) % 2


def test_the_settings_of_the_run_and_of_the_deployment_are_separated():
    config, deployment = read_settings({**SETTINGS, "split": "[0.5, 0.25, 0.25]", "quorum": 0.9, "model": ""})
    assert (config.clients, config.split, config.model) == (3, (0.5, 0.25, 0.25), None)
    assert [deployment.count_needed(n) for n in (1, 2, 10)] == [1, 2, 9]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rounds": 1}, "the number of clients is not set"),
        ({**SETTINGS, "quorm": 1}, "there is no setting 'quorm'"),
        ({**SETTINGS, "federation": "../x"}, "cannot name a folder"),
        ({**SETTINGS, "timeout": -1.0}, r"timeout must lie in \(0, inf\)"),
    ],
)
def test_impossible_settings_are_refused(given, problem):
    with pytest.raises(InputError, match=problem):
        read_settings(given)


def test_a_client_has_only_its_own_data():
    whole = load("digits", clients=3)
    data = hide_other_clients(whole, 1)
    assert torch.equal(data.clients[1].split("train")[0], whole.clients[1].split("train")[0])
    assert not data.clients[0].x.any()
    assert data.clients[0].x.shape == (1, 1, 8, 8)


def test_both_sides_build_the_same_model():
    config, deployment = read_settings({**SETTINGS, "data": "digits"})
    project = Project()
    client = project.build_plan(config, project.load_federation(config, deployment, 2))
    server = project.build_server_plan(config, str(describe(client.data, 2)), {0: 10})
    whole = make_plan(config, {})
    assert weights_hash(client) == weights_hash(server) == weights_hash(whole)
    assert [int(server.facts(index)[0]) for index in (0, 1)] == [10, 8]


def test_own_code_by_name_is_the_same_on_both_sides(tmp_path, monkeypatch):
    (tmp_path / "own_site.py").write_text(
        "import torch\n"
        "def sites(): return {f'site-{i}': (torch.randn(20, 5) + i, torch.arange(20) % 2) for i in range(3)}\n"
        "def net(outputs): return torch.nn.Linear(5, outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # as Flower does with the folder of an app
    config, deployment = read_settings({**SETTINGS, "data": "own_site:sites", "model": "own_site:net"})
    client = Project().build_plan(config, Project().load_federation(config, deployment, 1))
    server = Project().build_server_plan(config, str(describe(client.data, 1)), {})
    assert client.data.clients[1].name == "site-1"
    assert weights_hash(client) == weights_hash(server)


def test_own_data_and_model():
    config, deployment = read_settings({**SETTINGS, "classes": 2})
    project = Project(own_data, lambda: nn.Linear(5, 2))
    torch.manual_seed(1)
    first = project.build_plan(config, project.load_federation(config, deployment, 0))
    torch.manual_seed(2)
    second = project.build_server_plan(config, str(describe(first.data, 0)), {})
    assert weights_hash(first) == weights_hash(second), "initial weights follow the seed of the run"
    assert (first.data.classes, len(first.data.clients[0])) == (2, 12)


def test_own_classes_must_be_said():
    config, deployment = read_settings(SETTINGS)
    with pytest.raises(InputError, match="write their number into the app's configuration, as in classes = 10"):
        Project(own_data).load_federation(config, deployment, 0)


def test_a_number_that_no_client_has_is_refused():
    config, deployment = read_settings({**SETTINGS, "data": "digits"})
    with pytest.raises(InputError, match="there is no client 3; the federation has 3, 0 to 2"):
        Project().load_federation(config, deployment, 3)


HUGE = '{"x": [[1000000, 1000000], "float32"], "y": [[], "int64"], "classes": 2, "words": null}'


@pytest.mark.parametrize("description", ["", "[]", '{"x": [[4], "float32"]}', '{"x": 1, "y": 2}', HUGE])
def test_data_that_cannot_be_described_are_refused(description):
    with pytest.raises(InputError, match="a client's description of its data cannot be used"):
        read_description(description)
