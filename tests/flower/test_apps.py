"""The ClientApp and the ServerApp: which client a SuperNode is, and what is said when Flower is missing."""

import pytest

from idiolect.core.errors import InputError, MissingExtraError
from idiolect.flower import apps
from idiolect.flower.project import Project


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
