"""The command line: what it prints, writes and returns, for good input and for bad."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
import yaml

import idiolect
from idiolect.cli import main
from idiolect.cli.train import DEMO_METHODS
from idiolect.contract.method import methods
from idiolect.core.options import options_of
from idiolect.data.sources import sources
from idiolect.runs.progress import Reporter
from idiolect.runs.settings import Config

QUICK = ("--clients", "4", "--rounds", "2", "--model", "linear", "--quiet")


COMMANDS = [
    *("demo", "advise", "run", "compare", "resume", "tune", "watch", "report", "figures"),
    *("export", "deploy", "methods", "data", "partition"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    return tmp_path


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


# -- help ---------------------------------------------------------------------------------------------


def test_without_arguments_the_help_is_shown(call):
    code, out, _ = call()
    assert code == 0
    for name in COMMANDS:
        assert f" {name} " in out


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version(call, flag):
    assert call(flag) == (0, f"idiolect {idiolect.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"idiolect {command}" in out.partition("Example")[2]


def test_options_are_those_of_the_settings(call):
    _, out, _ = call("run", "--help")
    words = " ".join(out.replace("│", " ").split())
    for name, info in options_of(Config).items():
        assert f"--{name.replace('_', '-')} " in words
        assert info.limits.help.split(";")[0][:30] in words
    assert "default 50" in words
    assert "in (0, 1]" in words


# -- run ----------------------------------------------------------------------------------------------


def test_run_writes_a_folder_and_shows_the_result(call, folder):
    code, out, err = call("run", "--method", "fedprox", "-o", "method.mu=0.5", "--out", "runs/a", *QUICK)
    assert (code, err) == (0, "")
    assert "results: runs/a" in out
    assert "selected (by validation)" in out
    held = summary(folder / "runs" / "a")
    assert held["method"] == "fedprox(mu=0.5)"
    assert pl.read_parquet(folder / "runs" / "a" / "metrics.parquet").height > 0
    assert {path.name for path in (folder / "runs" / "a").iterdir()} == {
        *("config.yaml", "metrics.parquet", "state.sqlite", "summary.json")
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


class Interrupting(Reporter):
    """Presses Ctrl-C after the second round."""

    def step(self, label, round):
        super().step(label, round)
        if round.round == 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
@pytest.mark.parametrize("command", ["run", "compare"])
def test_an_interrupt_saves_and_a_resume_completes(call, folder, monkeypatch, command):
    settings = ("--clients", "4", "--rounds", "4", "--model", "linear", "--out", "x")
    arguments = ("run",) if command == "run" else ("compare", "--methods", "local,fedavg", "--seeds", "1")
    monkeypatch.setattr("idiolect.cli.train.reporter", lambda *_: Interrupting())
    code, out, err = call(*arguments, *settings)
    assert code == 130
    assert "continue with: idiolect resume x" in out
    assert "stopping after this round" in err
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    code, out, _ = call("resume", "x", "--quiet")
    assert code == 0
    assert "results: x" in out
    where = folder / "x" if command == "run" else folder / "x" / "local" / "seed-0"
    assert summary(where)["rounds_done"] == 4


def test_resume_of_something_complete_shows_it(call):
    call("run", "--out", "x", *QUICK)
    code, out, _ = call("resume", "x")
    assert code == 0
    assert "2 of 2 rounds" in out


# -- compare and demo ---------------------------------------------------------------------------------


def test_compare_prints_and_writes_a_leaderboard(call, folder):
    code, out, err = call("compare", "--methods", "local, fedavg, ditto", "--seeds", "2", "--out", "x", *QUICK)
    assert (code, err) == (0, "")
    for part in (
        "selected",
        "best",
        "bottom decile",
        "worst",
        "std",
        "difference [95 %]",
        "Holm",
        "MB up/down",
        "2.00*",
    ):
        assert part in out
    for part in ("weighted by samples", "validation", "2 rounds", "participation 1", "(seed 1)", "results: x"):
        assert part in out
    assert out.splitlines()[-1] == "see it: idiolect report x"
    assert json.loads((folder / "x" / "comparison.json").read_text())["protocol"]["baseline"] == "fedavg"


def test_a_comparison_can_be_repeated_from_its_file(call, folder):
    call("compare", "--methods", "local, fedavg", "--seeds", "0,3", "--out", "x", *QUICK)
    code, _, _ = call("compare", "x/comparison.yaml", "--lr", "0.2", "--out", "y", "--quiet")
    assert code == 0
    held = yaml.safe_load((folder / "y" / "comparison.yaml").read_text())
    assert (held["seeds"], held["methods"], held["lr"]) == ([0, 3], ["local", "fedavg"], 0.2)


def test_compare_says_a_line_per_run(call):
    code, _, err = call("compare", "-m", "local,fedavg", "--seeds", "1", *QUICK[:-1], "--out", "x")
    assert code == 0
    assert [line.split("  ")[:2] for line in err.splitlines()] == [["1/2", "local seed 0"], ["2/2", "fedavg seed 0"]]


def test_a_second_comparison_does_not_overwrite_the_first(call, folder):
    for _ in range(2):
        assert call("compare", "-m", "local,fedavg", "--seeds", "1", *QUICK)[0] == 0
    assert {path.name for path in (folder / "results").iterdir()} == {"comparison", "comparison-2"}


def test_demo_runs_and_is_shown_again(call, monkeypatch):
    monkeypatch.setattr("idiolect.cli.train.DEMO_MORE", ())
    monkeypatch.setattr("idiolect.cli.train.DEMO_SETTINGS", {"clients": 3, "rounds": 1, "model": "linear"})
    code, out, err = call("demo", "--jobs", "1")
    assert code == 0
    assert len(err.splitlines()) == 3 * len(DEMO_METHODS)
    code, again, err = call("demo")
    assert (code, err) == (0, "")
    assert again == out
    assert "results: results/demo" in out


# -- methods, data, partition -------------------------------------------------------------------------


def test_methods_lists_all(call):
    code, out, _ = call("methods")
    assert code == 0
    assert all(f"\n{name} " in out for name in methods)


def test_methods_as_json(call):
    code, out, _ = call("methods", "--json")
    held = {each["name"]: each for each in json.loads(out)}
    assert code == 0
    assert list(held) == list(methods)
    ditto = held["ditto"]
    assert ditto["paper"]["year"] == 2021
    assert ditto["kind"] == "personalized"
    assert ditto["options"][0] == {
        "name": "lam",
        "type": "number",
        "default": 1.0,
        "range": "[0, inf)",
        "choices": [],
        "help": "pull of the personal model towards the global one",
    }
    assert {"presets", "needs", "title"} <= ditto.keys()


def test_one_method_in_detail(call):
    code, out, _ = call("methods", "Fed-Prox")
    assert code == 0
    for part in ("mu", "0.1", "number in [0, inf)", "weight of the proximal term", "MLSys 2020", "μ", "‖w - w^t‖²"):
        assert part in out
    assert "\\" not in out


@pytest.mark.parametrize("name", list(methods))
def test_every_method_can_be_shown(call, name):
    code, out, _ = call("methods", name)
    assert code == 0
    assert ".. math" not in out
    assert ":math:" not in out


def test_data_lists_all(call):
    code, out, _ = call("data")
    assert code == 0
    assert all(name in out.splitlines() for name in sources)
    assert "CC BY 4.0" in out
    assert "$IDIOLECT_DATA/mnist" in out
    held = {each["name"]: each for each in json.loads(call("data", "--json")[1])}
    assert (held["digits"]["here"], held["mnist"]["here"]) == (True, False)
    assert "samples" in call("data", "mnist")[1]


def test_partition_shows_pictures_and_saves(call, folder):
    pytest.importorskip("matplotlib")
    arguments = ("--partition", "dirichlet:0.1", "--clients", "5", "--seed", "1")
    code, out, _ = call("partition", *arguments, "--picture", "p.png", "--save", "p.json")
    assert code == 0
    assert "client-4" in out
    held = json.loads((folder / "p.json").read_text())
    assert f"hash {held['hash']}" in out
    assert (folder / "p.png").stat().st_size > 1000
    code, again, _ = call("partition", "--partition", "file:p.json")
    assert f"hash {held['hash']}" in again


def test_partitions_are_listed(call):
    code, out, _ = call("partition", "--list")
    assert code == 0
    assert "dirichlet" in out
    assert "alpha=0.1" in out


# -- bad input ----------------------------------------------------------------------------------------

BAD = {
    "unknown method": (["run", "-m", "fedprx"], "Did you mean fedprox"),
    "unknown option of a method": (["run", "-m", "fedprox(nu=1)"], "fedprox has no option 'nu'. Did you mean mu?"),
    "unknown option in an override": (["run", "-m", "fedprox", "-o", "method.nu=1"], "Did you mean mu?"),
    "option out of range": (["run", "-m", "fedprox(mu=-1)"], "mu must lie in [0, inf)"),
    "setting out of range": (["run", "--participation", "1.5"], "participation must lie in (0, 1]"),
    "setting of the wrong kind": (["run", "--rounds", "many"], "'many' is not a valid int"),
    "unknown setting": (["run", "-o", "rouns=3"], "Did you mean rounds"),
    "unknown flag": (["run", "--metod", "fedavg"], "--metod"),
    "unknown command": (["runn"], "runn"),
    "override without a value": (["run", "-o", "rounds"], "has no '='"),
    "unknown data": (["run", "-d", "digit"], "Did you mean digits"),
    "unknown partition": (["run", "--partition", "dirichle:0.1"], "Did you mean dirichlet"),
    "partition out of range": (["run", "--partition", "dirichlet:-1"], "alpha"),
    "unknown model": (["run", "--model", "mlpp"], "Did you mean mlp"),
    "unknown engine": (["run", "--engine", "warp"], "there is no engine 'warp'"),
    "unusable device": (["run", "--device", "gpuu"], "device='gpuu' cannot be used"),
    "too many clients": (["run", "--clients", "5000"], "1797 samples cannot be dealt to 5000 clients"),
    "shares that are none": (["run", "--split", "0.5,0.2"], "three shares"),
    "missing data": (["run", "-d", "mnist"], "$IDIOLECT_DATA/mnist"),
    "open bracket": (["run", "-m", "fedprox(mu=1"], "bracket"),
    "missing file": (["run", "none.yaml"], "there is no configuration file none.yaml"),
    "method where a file belongs": (["run", "fedavg"], "--method fedavg"),
    "missing initial weights": (["run", "--initial", "none.safetensors"], "none.safetensors"),
    "no methods": (["compare"], "--methods"),
    "unknown method of several": (["compare", "-m", "fedavg,fedprx"], "Did you mean fedprox"),
    "baseline that does not run": (["compare", "-m", "fedavg,local", "--baseline", "ditto"], "not among the methods"),
    "override of one of several": (["compare", "-m", "fedprox", "-o", "method.mu=1"], "write options in --methods"),
    "no jobs": (["compare", "-m", "fedavg", "--jobs", "0"], "0 is not in the range"),
    "seeds that are none": (["compare", "-m", "fedavg", "--seeds", "x"], "how many, as in 3"),
    "nothing to resume": (["resume", "nowhere"], "there is no folder nowhere"),
    "unknown method to show": (["methods", "dito"], "Did you mean ditto"),
    "unknown data to show": (["data", "minst"], "Did you mean mnist"),
    "picture of an unknown kind": (["partition", "--picture", "x.bmp"], ".png"),
    "picture in a missing folder": (["partition", "--picture", "no/x.png"], "no/x.png cannot be written"),
    "groups that are not there": (["partition", "--partition", "group"], "no natural groups"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_red_sentence_and_writes_nothing(call, folder, case):
    arguments, message = BAD[case]
    code, _, err = call(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: [1", "is not YAML"),
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


def test_a_file_for_one_method_is_not_one_for_several(call, folder):
    (folder / "c.yaml").write_text("method: fedavg\n")
    code, _, err = call("compare", "c.yaml", "-m", "local,fedavg")
    assert code == 2
    assert "'methods:' instead of 'method:'" in err


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


def test_a_damaged_run_is_named(call, folder):
    call("run", "--out", "x", *QUICK)
    (folder / "x" / "state.sqlite").write_bytes(b"this is no store" * 500)
    code, _, err = call("resume", "x")
    assert code == 2
    assert "state.sqlite" in err


def test_a_file_where_the_folder_should_be(call, folder):
    (folder / "x").write_text("mine")
    code, _, err = call("run", "--out", "x", *QUICK)
    assert (code, "x exists" in err) == (2, True)
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


def test_debug_shows_where_it_happened(capsys):
    with pytest.raises(idiolect.InputError):
        main(["run", "-m", "fedprx", "--debug"])
    with pytest.raises(idiolect.InputError):
        main(["--debug", "run", "-m", "fedprx"])


def test_the_installed_command(folder):
    """As a user calls it: through the entry point, with a closed pipe behind it."""
    command = [sys.executable, "-c", "from idiolect.cli import main; main()"]
    found = subprocess.run([*command, "run", "-m", "fedprx"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    piped = subprocess.run(
        f"'{sys.executable}' -c 'from idiolect.cli import main; main()' methods --json | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (piped.stdout, piped.stderr) == ("[\n", "")


# -- for other programs ---------------------------------------------------------------------------------


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


# -- data -----------------------------------------------------------------------------------------------


def test_fetch_says_what_can_be_fetched_and_why_not(call, folder):
    code, _, err = call("data", "fetch")
    assert (code, "mnist" in err) == (2, True)
    code, _, err = call("data", "fetch", "mnist")
    assert code == 2
    assert "IDIOLECT_DATA is not set" in err
    code, _, err = call("data", "fetch", "digits", "--into", "x")
    assert code == 2
    assert "cannot be fetched" in err
    assert not Path("x").exists()
    code, _, err = call("data", "mnist", "digits")
    assert code == 2
    assert "idiolect data fetch NAME" in err


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
