"""`idiolect advise`: what was measured, why, and what to do."""

import json
import shlex
import sys

import pytest

from idiolect.cli import advise
from idiolect.cli.app import command

QUICK = ("--clients", "5", "--rounds", "3", "--model", "mlp(hidden=[8])", "--engine", "loop", "--quiet")


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
    monkeypatch.setattr(advise.screen.OUT, "_force_terminal", True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(advise.typer, "confirm", lambda text, default: asked.append(text) or answer)
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
        (("--budget", "euros"), "gradients, rounds"),
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
