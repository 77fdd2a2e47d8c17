"""Where a federation keeps its state, and that only one server uses it."""

from pathlib import Path

import pytest

from idiolect.core.errors import InputError, RunFolderError
from idiolect.flower.client import ClientService
from idiolect.flower.folders import client_folder, lock_server, make_private, server_folder
from idiolect.flower.settings import Deployment
from idiolect.testing import tiny_plan


def test_states_are_below_the_home_of_idiolect(monkeypatch):
    monkeypatch.setenv("IDIOLECT_HOME", "/somewhere")
    deployment = Deployment(federation="clinic")
    assert server_folder(deployment) == Path("/somewhere/clinic/server")
    assert client_folder(deployment, 3) == Path("/somewhere/clinic/client-3")


def test_a_federation_has_one_server_at_a_time(tmp_path):
    with (
        lock_server(tmp_path, 0.0),
        pytest.raises(RunFolderError, match=r"is being written by process .* the other server"),
        lock_server(tmp_path, 0.0),
    ):
        pass
    with lock_server(tmp_path, 0.0):
        pass


def test_folders_are_readable_by_their_owner_only(tmp_path):
    folder = tmp_path / "client-0"
    folder.mkdir(mode=0o755)
    (folder / "state.sqlite").touch(0o644)
    make_private(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "state.sqlite")] == [0o700, 0o600]
    service = ClientService(tiny_plan("fedavg"), 0, tmp_path / "client-1")
    service.close()
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "client-1").iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("name", ["..", ".", "", ".hidden", "a/b", "-x", "a" * 101, "a b"])
def test_a_federation_whose_name_leads_elsewhere_is_refused(name):
    with pytest.raises(InputError, match="cannot name a folder"):
        Deployment(federation=name)
