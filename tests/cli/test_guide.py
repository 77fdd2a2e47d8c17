"""The commands that guide: what they print, write and return, for good input and for bad."""

import json
import shlex
import sys

import pytest
import yaml

from idiolect.cli import guide
from idiolect.cli.app import command

QUICK = ("--clients", "5", "--rounds", "3", "--model", "mlp(hidden=[8])", "--engine", "loop", "--quiet")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["advise", "tune", "watch"])
def test_every_command_teaches_by_example(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert f"idiolect {name}" in out.partition("Examples")[2]


# -- advise -------------------------------------------------------------------------------------------


def test_advice_says_what_was_measured_why_and_what_to_do(call, folder):
    code, out, err = call("advise", "--partition", "pathological:2", "--no-race", *QUICK)
    assert (code, err) == (0, "")
    row = next(line for line in out.splitlines() if line.startswith("label skew"))
    assert "strong" in row
    assert "0.1/0.4" in row
    assert "conflicts by layer: fc1" in out
    assert "no race has verified" in out
    assert list(folder.iterdir()) == []


def test_the_race_is_planned_shown_and_run(call):
    code, out, _ = call("advise", "--partition", "iid", *QUICK)
    assert code == 0
    assert "judged by validation; 3 rounds of fedavg where a run has 3; about 0:" in " ".join(out.split())
    assert "validation accuracy (%)" in out
    assert "\nUse " in out


def test_the_comparison_that_is_proposed_can_be_typed(call):
    _, out, _ = call("advise", "--partition", "feature(kind=blur)", "--no-race", "--split", "0.5 0.3 0.2", *QUICK)
    line = " ".join(out.partition("to be sure: ")[2].split())
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("idiolect", "compare")
    known = getattr(command(), "commands")  # noqa: B009
    given = known["compare"].make_context(name, arguments).params
    assert (given["partition"], given["rounds"], given["engine"]) == ("feature(kind=blur)", 3, "loop")


def test_a_run_or_a_comparison_may_be_advised_on(call):
    assert call("run", "--method", "fedprox", "--partition", "iid", "--out", "a", *QUICK)[0] == 0
    code, out, _ = call("advise", "a", "--no-race")
    assert (code, "digits, 5 clients, iid" in out) == (0, True)
    assert call("compare", "--methods", "local, fedavg", "--seeds", "1", "--out", "b", *QUICK)[0] == 0
    assert call("advise", "b", "--no-race", "--json")[0] == 0


def test_advice_as_json(call):
    code, out, _ = call("advise", "--no-race", "--json", *QUICK)
    held = json.loads(out)
    assert code == 0
    assert len(held["recommended"]) == 3
    assert held["sentence"].startswith("Start with ")


def on_a_terminal(monkeypatch, answer):
    asked = []
    monkeypatch.setattr(guide.screen.OUT, "_force_terminal", True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(guide.typer, "confirm", lambda text, default: asked.append(text) or answer)
    return asked


def test_on_a_terminal_it_asks_and_no_means_no_race(call, monkeypatch):
    asked = on_a_terminal(monkeypatch, answer=False)
    _, out, _ = call("advise", *QUICK)
    assert asked == ["Run the race?"]
    assert "no race has verified" in " ".join(out.split())


def test_yes_means_that_it_does_not_ask(call, monkeypatch):
    asked = on_a_terminal(monkeypatch, answer=False)
    _, out, _ = call("advise", "--yes", *QUICK)
    assert asked == []
    assert "Use " in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budget", "euros"), "steps, rounds"),
        (("nothing.yaml",), "there is no configuration file"),
        ((".",), "holds no run and no comparison"),
        (("--split", "0.8,0,0.2"), "no validation data"),
        (("--data", "digts"), "Did you mean digits"),
    ],
)
def test_bad_advice_gets_a_sentence(call, folder, arguments, said):
    code, _, err = call("advise", *arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []


# -- tune ---------------------------------------------------------------------------------------------


def test_tuning_shows_the_choice_and_writes_a_comparison(call, folder):
    pytest.importorskip("optuna")
    arguments = ("tune", "--methods", "fedavg, fedprox", "--trials", "2", "--space", "lr=0.2", "--out", "t", *QUICK)
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("fed")] == ["2", "2"]
    assert "idiolect compare t/tuned.yaml --seeds 3" in out
    assert yaml.safe_load((folder / "t" / "tuned.yaml").read_text())["lr"] == 0.2
    assert call("compare", "t/tuned.yaml", "--seeds", "1", "--out", "c", "--quiet")[0] == 0
    assert call(*arguments)[1] == out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no methods to tune"),
        (("-m", "fedprox", "--space", "mu"), "cannot be read"),
        (("-m", "fedprox", "--space", "nu=0:1"), "Did you mean mu"),
        (("-m", "fedprox", "--space", "mu=-1:1"), "mu must lie in"),
    ],
)
def test_bad_tuning_gets_a_sentence(call, folder, arguments, said):
    pytest.importorskip("optuna")
    code, _, err = call("tune", *arguments, *QUICK)
    assert code == 2
    assert said in err
    assert list(folder.iterdir()) == []


# -- watch and log ------------------------------------------------------------------------------------


def test_watching_a_finished_run_shows_it_once(call):
    assert call("run", "--out", "a", *QUICK)[0] == 0
    code, out, _ = call("watch", "a")
    assert code == 0
    assert out.startswith("fedavg  round 3/3")
    assert "validation accuracy (%): " in out


def test_what_cannot_be_watched_gets_a_sentence(call):
    code, _, err = call("watch", "nowhere")
    assert (code, err) == (
        2,
        "error: nowhere holds no run and no comparison; start one with: idiolect run --out nowhere\n",
    )


def test_a_run_is_logged_where_it_is_asked_for(call, folder):
    pytest.importorskip("tensorboard")
    assert call("run", "--out", "a", "--log", "tensorboard:logs", *QUICK)[0] == 0
    assert list((folder / "logs" / "fedavg").glob("events*"))


def test_a_bad_log_is_found_before_anything_runs(call, folder):
    code, _, err = call("run", "--out", "a", "--log", "paper:x", *QUICK)
    assert code == 2
    assert "tensorboard:DIR or mlflow:URI" in err
    assert list(folder.iterdir()) == []
