"""The server from settings to a finished run, with clients in this process."""

import pytest

import idiolect
from idiolect.core.errors import InputError, RunFolderError
from idiolect.flower.client import ClientService
from idiolect.flower.loopback import LoopbackTransport
from idiolect.flower.personal import load_personal_model
from idiolect.flower.project import Project
from idiolect.flower.server import serve
from idiolect.flower.settings import read_settings
from idiolect.runs.export import personal_of
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


def make_services(settings, folder):
    config, deployment = read_settings(settings)
    project = Project()
    notes = {"settings": settings, "own": False}
    return {
        i: ClientService(
            project.build_plan(config, project.load_federation(config, deployment, i)), i, folder / str(i), notes
        )
        for i in range(3)
    }


def run_server(settings, folder):
    config, deployment = read_settings(settings)
    (folder / "server").mkdir(exist_ok=True)
    return serve(LoopbackTransport(make_services(settings, folder)), Project(), config, deployment, folder / "server")


def test_a_run_leaves_what_every_run_leaves(tmp_path):
    result = run_server(SETTINGS, tmp_path)
    assert {"config.yaml", "metrics.parquet", "summary.json", "state.sqlite"} <= {
        each.name for each in (tmp_path / "server").iterdir()
    }
    assert result.summary["rounds_done"] == 2
    assert result.summary["engine"] == "flower"


def test_a_client_exports_the_model_that_the_simulation_would_give(tmp_path):
    run_server(SETTINGS, tmp_path)
    here = load_personal_model(tmp_path / "1")
    config = read_settings(SETTINGS)[0].as_dict()
    there = personal_of(idiolect.run(**config | {"engine": "loop"}), 1)
    assert all((leaf == there.personal["params"][name]).all() for name, leaf in here.personal["params"].items())
    assert here.scores == there.scores
    assert here.facts["round"] == there.facts["round"]


def test_a_model_of_an_app_with_its_own_functions_needs_the_app(tmp_path):
    run_server(SETTINGS, tmp_path)
    store = Store(tmp_path / "1" / "model.sqlite")
    store.commit(0, {}, {}, [], {"own": True})
    store.close()
    with pytest.raises(InputError, match="give the folder of its app: --app my-app"):
        load_personal_model(tmp_path / "1")
    assert load_personal_model(tmp_path / "1", Project()).index == 1


def test_a_client_without_a_model_says_so(tmp_path):
    Store(tmp_path / "model.sqlite").close()
    with pytest.raises(RunFolderError, match="holds no model yet"):
        load_personal_model(tmp_path)


def test_other_settings_under_the_same_name_are_refused(tmp_path):
    run_server(SETTINGS, tmp_path)
    with pytest.raises(RunFolderError, match=r'other settings .* another name, as in federation = "second"'):
        run_server({**SETTINGS, "lr": 0.2}, tmp_path)


def test_a_complete_run_is_not_run_again(tmp_path):
    first = run_server(SETTINGS, tmp_path).metrics
    assert run_server(SETTINGS, tmp_path).metrics.equals(first)
