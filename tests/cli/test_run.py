"""`idiolect run`: what it prints, writes and returns, for good input and for bad."""

import json
import os
from pathlib import Path

import polars as pl
import pytest
import yaml

import idiolect
from idiolect.advice import Preset

QUICK = ("--clients", "4", "--rounds", "2", "--model", "linear", "--quiet")


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_run_writes_a_folder_and_shows_the_result(call, folder):
    code, out, err = call("run", "--method", "fedprox", "-o", "method.mu=0.5", "--out", "runs/a", *QUICK)
    assert (code, err) == (0, "")
    assert "results: runs/a" in out
    assert "selected: sample-weighted validation" in out
    held = summary(folder / "runs" / "a")
    assert held["method"] == "fedprox(mu=0.5)"
    assert pl.read_parquet(folder / "runs" / "a" / "metrics.parquet").height > 0
    assert {path.name for path in (folder / "runs" / "a").iterdir()} == {
        *("config.yaml", "metrics.parquet", "state.mark", "state.sqlite", "summary.json")
    }


def test_flags_override_the_file_and_overrides_both(call, folder):
    (folder / "c.yaml").write_text("method: fedprox\nlr: 0.5\nrounds: 9\nbatch_size: 5\n")
    code, _, _ = call("run", "c.yaml", "--lr", "0.25", "-o", "rounds=1", "--out", "x", *QUICK)
    assert code == 0
    held = yaml.safe_load((folder / "x" / "config.yaml").read_text())
    assert (held["method"], held["lr"], held["rounds"], held["batch_size"]) == ("fedprox", 0.25, 1, 5)


def test_all_kinds_of_settings_reach_the_run(call, folder):
    arguments = ("--split", "0.5,0.25,0.25", "--after-local", "--momentum", "0.5", "--weighting", "uniform")
    code, _, _ = call("run", "--out", "x", *arguments, *QUICK)
    assert code == 0
    held = yaml.safe_load((folder / "x" / "config.yaml").read_text())
    assert (held["split"], held["after_local"], held["momentum"]) == ([0.5, 0.25, 0.25], True, 0.5)


def test_without_a_folder_the_next_free_name_is_taken(call, folder):
    for _ in range(2):
        assert call("run", "--method", "fedprox(mu=0.5)", "--seed", "3", *QUICK)[0] == 0
    assert {path.name for path in (folder / "runs").iterdir()} == {
        "fedprox-mu=0.5-digits-3",
        "fedprox-mu=0.5-digits-3-2",
    }


def test_progress_without_a_terminal_is_a_few_plain_lines(call):
    code, out, err = call("run", "--clients", "4", "--rounds", "40", "--model", "linear", "--out", "x")
    assert code == 0
    lines = err.splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("round 40/40  4 clients")
    assert "\x1b" not in out + err
    assert "round 40/40" not in out


def test_a_run_can_be_repeated_from_its_own_file(call, folder):
    assert call("run", "--out", "a", "--seed", "2", *QUICK)[0] == 0
    assert call("run", "a/config.yaml", "--out", "b", "--quiet")[0] == 0
    assert summary(folder / "a")["accuracy"] == summary(folder / "b")["accuracy"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: [1", "is not YAML"),
        ("rounds: 3\nrounds: 5", "'rounds' is given twice"),
        ("- rounds", "'name: value' lines"),
        ("rouns: 3", "Did you mean rounds"),
        ("rounds: many", "rounds must be a whole number"),
        ("rounds: 0", "rounds must lie in [1, inf)"),
        ("data: (given in Python)", "given in Python"),
    ],
)
def test_bad_files(call, folder, text, message):
    (folder / "c.yaml").write_text(text)
    code, _, err = call("run", "c.yaml")
    assert code == 2
    assert message in err
    assert [path.name for path in folder.iterdir()] == ["c.yaml"]


def test_a_file_of_code_without_a_class_is_no_file_of_settings(call, folder):
    (folder / "mine.py").write_text("x: int = 1")
    code, _, err = call("run", "mine.py")
    assert (code, "which class of that file? Write mine.py:Class" in err) == (2, True)


def test_an_occupied_folder_is_left_alone(call, folder):
    (folder / "x").mkdir()
    (folder / "x" / "notes.txt").write_text("mine")
    for command in (["run"], ["compare", "-m", "local,fedavg"]):
        code, _, err = call(*command, "--out", "x", *QUICK)
        assert code == 2
        assert "x exists and" in err
    assert "holds no run" in call("resume", "x")[2]
    assert [path.name for path in (folder / "x").iterdir()] == ["notes.txt"]


def test_a_run_is_not_overwritten(call):
    call("run", "--out", "x", *QUICK)
    code, _, err = call("run", "--out", "x", *QUICK)
    assert code == 2
    assert "already holds a run" in err
    assert "idiolect resume x" in err


def test_a_file_where_the_folder_should_be(call, folder):
    (folder / "x").write_text("mine")
    code, _, err = call("run", "--out", "x", *QUICK)
    assert (code, "x is a file" in err) == (2, True)
    code, _, err = call("run", "--out", "x/y", *QUICK)
    assert (code, "cannot be written" in err) == (2, True)
    code, _, err = call("compare", "-m", "local", "--out", "x/y", *QUICK)
    assert (code, "cannot be written" in err) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_may_not_be_written(call, folder):
    (folder / "locked").mkdir(mode=0o500)
    code, _, err = call("run", "--out", "locked/x", *QUICK)
    assert code == 2
    assert "cannot be written" in err


def test_json_lines_say_every_round_and_the_result(call, folder):
    code, out, _ = call("run", "--rounds", 3, "--clients", 4, "--json-lines", "--out", "a")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [each["event"] for each in lines]) == (0, ["start", "round", "round", "round", "end"])
    assert [each["round"] for each in lines[1:4]] == [1, 2, 3]
    assert lines[1]["samples"] > 0
    assert lines[-1]["summary"]["rounds_done"] == 3
    code, out, _ = call("compare", "-m", "local, fedavg", "--seeds", 1, "--rounds", 2, "--clients", 4, "--json-lines")
    ends = [each for each in map(json.loads, out.splitlines()) if each["event"] == "end"]
    assert (code, [each["run"] for each in ends]) == (0, ["local seed 0", "fedavg seed 0"])


def test_public_data_can_be_a_share_or_a_source(call, folder):
    code, _, _ = call("run", "--rounds", 1, "--clients", 4, "--public", "0.25", "--out", "a")
    assert code == 0
    assert yaml.safe_load(Path("a/config.yaml").read_text())["public"] == "0.25"
    code, _, err = call("run", "--public", "1.5", "--out", "b")
    assert code == 2
    assert "between 0 and 1" in err
    assert not Path("b").exists()


def test_metrics_are_chosen_by_name(call, folder):
    code, _, err = call("run", "--metrics", "speed", "--out", "b")
    assert code == 2
    assert "there is no metric 'speed'" in err
    assert not Path("b").exists()


def test_a_run_says_first_what_a_method_needs_beyond_parameters(call, folder):
    _, _, err = call("run", "--method", "fedfomo(models=2)", "--rounds", 1, "--clients", 4, "--out", "a")
    assert "fedfomo: the server keeps the latest model of every client" in err
    assert "20% of every client's training data are set aside" in err
    _, _, err = call("run", "--method", "fedavg", "--rounds", 1, "--clients", 4, "--out", "b")
    assert "needs" not in err
    assert "keeps" not in err


def test_a_run_is_logged_where_it_is_asked_for(call, folder):
    pytest.importorskip("tensorboard")
    assert call("run", "--out", "a", "--log", "tensorboard:logs", *QUICK)[0] == 0
    assert list((folder / "logs" / "fedavg").glob("events*"))


def test_a_bad_log_is_found_before_anything_runs(call, folder):
    code, _, err = call("run", "--out", "a", "--log", "paper:x", *QUICK)
    assert code == 2
    assert "tensorboard:DIR or mlflow:URI" in err
    assert list(folder.iterdir()) == []


def test_a_preset_gives_what_tuning_found_and_says_from_where(call, folder, monkeypatch):
    found = Preset("ditto(lam=0.5)", 0.2, "label skew", "sgd", {"grand-mnist": 0.2})
    key = ("label skew", "sgd", "ditto")
    monkeypatch.setattr("idiolect.advice.presets.read_presets", lambda _: {key: found})
    small = ["--clients", "3", "--rounds", "1", "--model", "linear", "--partition", "dirichlet:0.1"]
    code, out, _ = call("run", "ditto", *small, "--preset", "tuned", "--out", "a")
    assert code == 0
    assert "ditto(lam=0.5) with lr=0.2, tuned on clients with label skew (grand-mnist 0.2)" in " ".join(out.split())
    config = yaml.safe_load((folder / "a" / "config.yaml").read_text())
    assert (config["method"], config["lr"]) == ("ditto(lam=0.5)", 0.2)
    call("run", "ditto", *small, "--preset", "tuned", "--out", "b", "--lr", "0.3")
    assert yaml.safe_load((folder / "b" / "config.yaml").read_text())["lr"] == 0.3, "what is given stays"
    code, _, err = call("run", "fedavg", *small, "--preset", "tuned", "--out", "c")
    assert code == 2
    assert "there is no tuned preset of fedavg" in " ".join(err.split())
    assert not (folder / "c").exists()
    code, _, err = call("run", "ditto", *small, "--preset", "paper")
    assert code == 2
    assert "--preset paper is not allowed" in " ".join(err.split())


def test_clients_that_never_train_and_those_that_come_and_go_are_named_and_a_written_file_says_the_same(tmp_path, call):
    settings = ["--clients", 4, "--rounds", 3, "--model", "linear", "--engine", "loop", "-q"]
    named = ["--unseen", "client-1, client-3", "--presence", "{client-0: 2-}", "--stragglers", 0.5]
    assert call("run", "fedavg", *settings, *named, "--out", tmp_path / "a")[0] == 0
    assert call("run", tmp_path / "a" / "config.yaml", "-q", "--out", tmp_path / "b")[0] == 0
    a, b = (idiolect.load(tmp_path / name) for name in "ab")
    assert a.config == b.config
    assert {a.clients()[index] for index in a.plan.data.unseen} == {"client-1", "client-3"}
    assert [list(a.plan.participants(round)) for round in (0, 1)] == [[2], [0, 2]]
    assert (a.summary["late"], a.summary["steps"]) == (b.summary["late"], b.summary["steps"])
    code, _, err = call("run", "fedavg", *settings, "--unseen", "client-9", "--out", tmp_path / "c")
    assert (code, "no client is called 'client-9'" in " ".join(err.split())) == (2, True)
    assert not (tmp_path / "c").exists()
