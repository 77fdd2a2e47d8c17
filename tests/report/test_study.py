"""A run holds the numbers of its files, and says what it cannot use."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

import idiolect
from idiolect.core.errors import RunFolderError
from idiolect.report import read_study


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
        store.unlink()
    run = read_study([folder]).first("fedavg")
    assert run.costs[1].bytes_up == run.summary["bytes_up"] / 2
    assert run.costs[2].seconds == run.summary["seconds"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"nothing"),
        lambda path: pl.DataFrame({"round": ["a"]}).write_parquet(path),
        lambda path: pl.read_parquet(path).clear().write_parquet(path),
        lambda path: pl.read_parquet(path).filter(round=-1).write_parquet(path),
    ],
    ids=["missing", "no table", "another table", "empty", "without the selected round"],
)
def test_a_damaged_table_is_named(folder, spoil):
    spoil(folder / "local" / "seed-0" / "metrics.parquet")
    with pytest.raises(RunFolderError, match=r"metrics.parquet is missing or damaged.*idiolect resume"):
        _ = read_study([folder]).first("local").scores


def test_data_that_were_given_in_python_cost_what_depends_on_them(tmp_path):
    clients = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(3)]
    model = torch.nn.Linear(3, 2)
    idiolect.run("fedavg", clients, model=model, rounds=2, engine="loop", out=tmp_path / "own")
    study = read_study([tmp_path / "own"])
    assert study.federation is None
    assert study.notes == ["What depends on the clients' data and models is left out: they were given in Python."]


def test_without_its_state_a_run_costs_its_models_and_no_more(folder):
    (folder / "ditto" / "seed-0" / "state.sqlite").unlink()
    study = read_study([folder])
    run = study.first("ditto")
    assert run.costs[1].bytes_up == run.summary["bytes_up"] / 2
    with study.result("ditto") as result:
        assert result is None
    assert "the models of ditto" in study.notes[0]
