"""Where a federation keeps its state, and that only one server uses it."""

from pathlib import Path

import pytest

from idiolect.core.errors import RunFolderError
from idiolect.flower.folders import client_folder, lock_folder, server_folder
from idiolect.flower.settings import Deployment


def test_states_are_below_the_home_of_idiolect(monkeypatch):
    monkeypatch.setenv("IDIOLECT_HOME", "/somewhere")
    deployment = Deployment(federation="clinic")
    assert server_folder(deployment) == Path("/somewhere/clinic/server")
    assert client_folder(deployment, 3) == Path("/somewhere/clinic/client-3")


def test_a_federation_has_one_server_at_a_time(tmp_path):
    with (
        lock_folder(tmp_path, 0.0),
        pytest.raises(RunFolderError, match="another server of this federation"),
        lock_folder(tmp_path, 0.0),
    ):
        pass
    with lock_folder(tmp_path, 0.0):
        pass
