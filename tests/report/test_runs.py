"""A study holds the numbers of the result files, and says what it cannot use."""

import json
import shutil
import sqlite3
from itertools import pairwise

import numpy as np
import pytest
import torch

import idiolect
from idiolect.errors import InputError, RunFolderError
from idiolect.report import read_study
from idiolect.run.leaderboard import plain

SMALL = {"clients": 4, "rounds": 2, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "a"
    idiolect.compare("local, fedavg, ditto", "digits", seeds=2, out=folder, **SMALL)
    return folder


@pytest.fixture
def folder(originals, tmp_path):
    """A copy of a comparison of three methods and two seeds, to be spoiled."""
    shutil.copytree(originals, tmp_path / "a")
    return tmp_path / "a"


# -- the numbers ---------------------------------------------------------------------------------------


def test_the_leaderboard_is_that_of_the_comparison(comparison, study):
    written = json.loads((comparison / "comparison.json").read_text())
    assert study.methods == [each["method"] for each in written["methods"]]
    for standing, there in zip(study.comparison.standings, written["methods"], strict=True):
        here = json.loads(json.dumps(plain(standing)).replace("NaN", "null"))
        assert here == there
    assert json.loads(json.dumps(study.comparison.protocol)) == written["protocol"]


def test_curves_and_client_scores_are_those_of_the_summaries(study):
    for runs in study.runs.values():
        for run in runs.values():
            block = run.summary["accuracy"]["selected"]
            at = run.curve.rounds.index(block["round"])
            assert run.curve.values[at] == pytest.approx(block["weighted"], abs=1e-12)
            scores = list(run.scores.values())
            assert (np.mean(scores), np.std(scores), min(scores)) == pytest.approx(
                (block["mean"], block["std"], block["worst"])
            )


def test_costs_are_noted_round_by_round_and_end_at_the_totals(study):
    for method in study.methods:
        run = study.first(method)
        costs = list(run.costs.values())
        assert costs[-1] == pytest.approx(
            (run.summary["bytes_up"], run.summary["bytes_down"], run.summary["seconds"]), abs=1e-3
        )
        assert all(a.seconds < b.seconds and a.bytes_up <= b.bytes_up for a, b in pairwise(costs))


def test_without_notes_costs_are_spread_evenly(folder):
    for store in folder.rglob("state.sqlite"):
        with sqlite3.connect(store) as db:
            db.execute("DELETE FROM facts WHERE key LIKE 'cost %'")
    run = read_study([folder]).first("fedavg")
    assert run.costs[1].bytes_up == run.summary["bytes_up"] / 2
    assert run.costs[2].seconds == run.summary["seconds"]


def test_single_runs_make_the_same_study_as_their_comparison(folder):
    together = read_study([folder])
    single = read_study(sorted(path.parent for path in folder.rglob("config.yaml")))
    assert [plain(each)["selected"] for each in single.comparison.standings] == [
        plain(each)["selected"] for each in together.comparison.standings
    ]


def test_reading_changes_nothing(folder):
    def content():
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    study = read_study([folder])
    assert study.first("local").costs
    assert study.federation is not None
    with study.result("ditto") as result:
        assert result is not None
    assert content() == before


# -- the baseline -----------------------------------------------------------------------------------------


def test_the_baseline_is_that_of_the_comparison_unless_another_is_named(folder):
    assert read_study([folder]).baseline == "fedavg"
    study = read_study([folder], baseline="local")
    assert study.baseline == "local"
    assert study.comparison["local"].versus is None
    with pytest.raises(InputError, match=r"fedprox.*is not among the methods"):
        read_study([folder], baseline="fedprox")


# -- what cannot be used --------------------------------------------------------------------------------------


def test_a_run_that_is_not_complete_is_left_out_and_so_is_its_seed(folder):
    (folder / "ditto" / "seed-1" / "summary.json").unlink()
    study = read_study([folder])
    assert study.seeds == [0]
    assert any("ditto/seed-1 is left out" in note and "idiolect resume" in note for note in study.notes)
    assert any(note.startswith("local: seed 1 left out") for note in study.notes)


def test_nothing_complete_is_an_error(folder):
    for path in folder.rglob("summary.json"):
        held = json.loads(path.read_text())
        path.write_text(json.dumps(held | {"rounds_done": 1}))
    with pytest.raises(RunFolderError, match=r"none of the runs is complete.*idiolect resume"):
        read_study([folder])


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}'])
def test_a_damaged_summary_is_named(folder, text):
    (folder / "local" / "seed-0" / "summary.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"local/seed-0/summary.json is damaged.*idiolect resume"):
        read_study([folder])


def test_a_damaged_table_is_named(folder):
    (folder / "local" / "seed-0" / "metrics.parquet").write_bytes(b"nothing")
    with pytest.raises(RunFolderError, match=r"metrics.parquet is missing or damaged.*idiolect resume"):
        _ = read_study([folder]).first("local").scores


def test_no_folder_and_no_runs(tmp_path):
    with pytest.raises(RunFolderError, match="there is no folder"):
        read_study([tmp_path / "x"])
    with pytest.raises(RunFolderError, match="holds no runs"):
        read_study([tmp_path])


def test_runs_under_other_settings_are_refused(folder, tmp_path):
    idiolect.run("fedprox", "digits", out=tmp_path / "b", lr=0.5, **SMALL)
    with pytest.raises(
        RunFolderError, match=r"do not belong into one table \(lr: 0.5 in .*b, 0.05 in .*report them apart"
    ):
        read_study([folder, tmp_path / "b"])


def test_runs_on_other_data_are_refused(folder):
    path = folder / "local" / "seed-1" / "summary.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"partition": held["partition"] | {"hash": "other"}}))
    with pytest.raises(RunFolderError, match=r"partition: other in .*local/seed-1"):
        read_study([folder])


def test_the_same_run_twice_is_refused(folder, tmp_path):
    shutil.copytree(folder / "local" / "seed-0", tmp_path / "b")
    with pytest.raises(RunFolderError, match="both local with seed 0"):
        read_study([folder, tmp_path / "b"])
    assert read_study([folder, folder]).seeds == [0, 1]


def test_methods_without_a_common_seed_are_refused(folder):
    with pytest.raises(RunFolderError, match="local has seed 0; fedavg has seed 1"):
        read_study([folder / "local" / "seed-0", folder / "fedavg" / "seed-1"])


def test_data_that_were_given_in_python_cost_what_depends_on_them(tmp_path):
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(3)]
    model = torch.nn.Linear(3, 2)
    idiolect.run("fedavg", clients, model=model, rounds=2, engine="loop", out=tmp_path / "own")
    study = read_study([tmp_path / "own"])
    assert study.federation is None
    assert study.notes == ["What depends on the clients' data and models is left out: they were given in Python."]
