"""The server from settings to a finished run, with clients in this process."""

import pytest

import idiolect
from idiolect.core.errors import InputError, RunFolderError
from idiolect.flower.client import Desk
from idiolect.flower.loopback import Loopback
from idiolect.flower.personal import personal_of
from idiolect.flower.project import Project
from idiolect.flower.server import only_one, serve
from idiolect.flower.settings import read_settings
from idiolect.runs.export import personal_of as personal_of_run
from idiolect.runs.store import Store

SETTINGS = {
    "data": "digits",
    "clients": 3,
    "rounds": 2,
    "method": "ditto",
    "lr": 0.1,
    "federation": "here",
    "wait": 5.0,
}


def desks(settings, folder):
    config, deployment = read_settings(settings)
    project = Project()
    notes = {"settings": settings, "own": False}
    return {
        i: Desk(project.plan(config, project.federation(config, deployment, i)), i, folder / str(i), notes)
        for i in range(3)
    }


def served(settings, folder):
    config, deployment = read_settings(settings)
    (folder / "server").mkdir(exist_ok=True)
    return serve(Loopback(desks(settings, folder)), Project(), config, deployment, folder / "server")


def test_a_run_leaves_what_every_run_leaves(tmp_path):
    result = served(SETTINGS, tmp_path)
    assert {"config.yaml", "metrics.parquet", "summary.json", "state.sqlite"} <= {
        each.name for each in (tmp_path / "server").iterdir()
    }
    assert result.summary["rounds_done"] == 2
    assert result.summary["engine"] == "flower"


def test_a_client_exports_the_model_that_the_simulation_would_give(tmp_path):
    served(SETTINGS, tmp_path)
    here = personal_of(tmp_path / "1")
    config = read_settings(SETTINGS)[0].as_dict()
    there = personal_of_run(idiolect.run(**config | {"engine": "loop"}), 1)
    assert all((leaf == there.view["params"][name]).all() for name, leaf in here.view["params"].items())
    assert here.scores == there.scores
    assert here.facts["round"] == there.facts["round"]


def test_a_model_of_an_app_with_its_own_functions_needs_the_app(tmp_path):
    served(SETTINGS, tmp_path)
    store = Store(tmp_path / "1" / "model.sqlite")
    store.commit(0, {}, {}, [], {"own": True})
    store.close()
    with pytest.raises(InputError, match="say where its app is, as in --app my-app"):
        personal_of(tmp_path / "1")
    assert personal_of(tmp_path / "1", Project()).index == 1


def test_a_client_without_a_model_says_so(tmp_path):
    Store(tmp_path / "model.sqlite").close()
    with pytest.raises(RunFolderError, match="holds no model yet"):
        personal_of(tmp_path)


def test_other_settings_under_the_same_name_are_refused(tmp_path):
    served(SETTINGS, tmp_path)
    with pytest.raises(RunFolderError, match=r'other settings .* another name, as in federation = "second"'):
        served({**SETTINGS, "lr": 0.2}, tmp_path)


def test_a_complete_run_is_not_run_again(tmp_path):
    first = served(SETTINGS, tmp_path).metrics
    assert served(SETTINGS, tmp_path).metrics.equals(first)


def test_a_federation_has_one_server_at_a_time(tmp_path):
    with (
        only_one(tmp_path, 0.0),
        pytest.raises(RunFolderError, match="another server of this federation"),
        only_one(tmp_path, 0.0),
    ):
        pass
    with only_one(tmp_path, 0.0):
        pass
