"""Tuning and comparison in one step, what it remembers, and presets that are given to others."""

import pytest
import torch
import yaml

from idiolect import compare_tuned
from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.tuning import tune, use_presets
from idiolect.tuning.tables import failed_lines

pytest.importorskip("optuna")
DATA = load([(torch.rand(30, 4, generator=torch.Generator().manual_seed(k)), torch.arange(30) % 3) for k in range(3)])
QUICK = {"rounds": 3, "engine": "loop", "model": "linear"}


def test_every_method_competes_as_it_was_tuned_and_nothing_is_done_twice(tmp_path):
    given = {"data": "digits", "clients": 3, "trials": 2, "seeds": 2, "out": tmp_path / "c", **QUICK}
    found, board = compare_tuned("fedprox, local", **given)
    assert [(each.method, each.trials) for each in found.methods] == [("fedprox", 2), ("local", 2)]
    assert {row.method for row in board.rows} == {each.expression for each in found.methods}
    assert board.protocol["rates"] == {each.expression: each.lr for each in found.methods}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("summary.json")}
    again = compare_tuned("fedprox, local", **given)
    assert again.comparison.rows == board.rows
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("summary.json")}
    held = yaml.safe_load((tmp_path / "c" / "tuning" / "presets.yaml").read_text())
    assert held["methods"]["fedprox"]["lr"] == found["fedprox"].lr
    assert held["found_on"]["clients"] == 3


def test_presets_are_taken_by_run_and_compare(tmp_path, call):
    tune("fedprox, local", DATA, trials=2, space=["lr=0.2,0.3", "mu=0.5"], out=tmp_path / "t", **QUICK)
    path = tmp_path / "t" / "presets.yaml"
    taken = use_presets("local, fedprox", path)
    assert taken["methods"] == ["local", "fedprox(mu=0.5)"]
    assert set(taken["rates"].values()) <= {0.2, 0.3}
    options = ["--clients", 3, "--rounds", 1, "--model", "linear", "-q"]
    code, out, _ = call("run", "fedprox", "--preset", path, *options, "--out", tmp_path / "r")
    assert (code, "mu=0.5" in out) == (0, True)
    code, out, _ = call(
        "compare", "-m", "local, fedprox", "--presets", path, "--seeds", 1, *options, "--out", tmp_path / "c"
    )
    assert (code, "Own learning rates" in " ".join(out.split())) == (0, True)
    with pytest.raises(InputError, match=r"says nothing of ditto.* It has fedprox, local"):
        use_presets("ditto", path)
    path.write_text("methods: [a]")
    with pytest.raises(InputError, match="is no file of presets"):
        use_presets("local", path)


def test_pruned_trials_count_and_are_shown(tmp_path):
    given = {"data": DATA, "space": ["lr=0.0001,0.5,0.4,0.3"], "prune": True, **QUICK, "rounds": 4}
    tuning = tune("fedavg", trials=12, out=tmp_path / "t", **given)
    (tuned,) = tuning.methods
    stopped = [trial for trial in tuning.trials if trial.pruned]
    assert (tuned.trials, tuned.pruned, tuned.failed) == (12, len(stopped), 0)
    assert 0 < len(stopped) < 9
    assert all((trial.score, trial.pruned) == (None, 2) and trial.early is not None for trial in stopped)
    assert any("pruned after round 2" in line for line in failed_lines(tuning))
    again = tune("fedavg", trials=12, out=tmp_path / "t", **given)
    assert again.trials == tuning.trials
    with pytest.raises(InputError, match="prune: True there, False now"):
        tune("fedavg", trials=12, out=tmp_path / "t", **{**given, "prune": False})


def test_a_fair_tuning_always_tries_the_learning_rate(call):
    with pytest.raises(InputError, match="keeps the learning rate, which a fair tuning always tries"):
        compare_tuned("fedavg", DATA, space=["lr=0.1"], **QUICK)
    code, _, err = call("compare", "-m", "fedavg", "--prune")
    assert (code, "--prune is for a tuning" in err) == (2, True)
    code, _, err = call("compare", "-m", "fedavg", "--tuned", 2, "--presets", "x.yaml")
    assert (code, "leave out --presets" in err) == (2, True)
