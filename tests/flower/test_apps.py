"""The ClientApp and the ServerApp: which client a SuperNode is, and what is said when Flower is missing."""

from types import SimpleNamespace

import pytest
import torch

from idiolect.core.errors import InputError, MissingExtraError, UntrustedCodeError
from idiolect.flower import apps, exposure
from idiolect.flower.folders import MODEL_FILE
from idiolect.flower.messages import Message
from idiolect.flower.personal import load_personal_model
from idiolect.flower.project import Project
from idiolect.runs.store import Store


@pytest.mark.parametrize("node_config", [{"client": 2}, {"partition-id": 2, "num-partitions": 3}])
def test_a_supernode_says_which_client_it_is(node_config):
    assert apps.read_client_index(node_config) == 2


def test_a_supernode_that_does_not_say_it_is_told_how():
    with pytest.raises(InputError, match="start it with a number, as in --node-config 'client=0'"):
        apps.read_client_index({})


@pytest.mark.parametrize("make", [apps.client_app, apps.server_app])
def test_without_flower_the_way_to_install_it_is_named(make, monkeypatch):
    monkeypatch.setattr(apps.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[flower\]"):
        make(Project())


def test_why_a_server_does_not_start_is_in_its_log(tmp_path, monkeypatch):
    flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")
    monkeypatch.setenv("IDIOLECT_HOME", str(tmp_path))
    for name, value in (("handlers", []), ("propagate", True), ("level", apps.log.level)):
        monkeypatch.setattr(apps.log, name, value)  # and back again after the test
    monkeypatch.setattr(exposure, "find_exposure", lambda _: "strangers can reach it")
    config = {"method": "fedavg", "clients": 2, "federation": "open"}
    context = flwr.Context(1, 2, {}, flwr.RecordDict(), config)
    grid = SimpleNamespace(_addr="127.0.0.1:8000", _insecure=True)
    with pytest.raises(InputError, match="strangers can reach it; see"):
        apps.server_app(Project())(grid, context)
    assert "ERROR   strangers can reach it" in (tmp_path / "open" / "server" / "log.txt").read_text()


CODE = """
from dataclasses import dataclass
from idiolect.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""


@pytest.fixture
def settings(tmp_path):
    """The settings of a federation with a method of its own."""
    (tmp_path / "mine.py").write_text(CODE)
    return {"method": f"{tmp_path}/mine.py:Mine", "clients": 3, "data": "digits", "model": "linear"}


def test_code_that_a_client_ran_is_known_when_its_model_is_exported(settings, home, tmp_path):
    context = SimpleNamespace(run_config=settings, node_config={"folder": str(tmp_path / "state")})
    apps.handle_request(Project(), Message({"kind": "hello"}), 0, context)
    assert len((home / "known-code").read_text().split()) == 1


def test_a_received_folder_of_a_client_runs_no_code(settings, tmp_path):
    store = Store(tmp_path / MODEL_FILE)
    facts = {"last": 0, "client": 0, "selected": 0, "own": False, "unseen": False, "settings": settings}
    store.commit(0, {}, {0: {"params": {"w": torch.zeros(1)}}}, [], facts)
    store.close()
    with pytest.raises(UntrustedCodeError, match=r"mine\.py"):
        load_personal_model(tmp_path)
