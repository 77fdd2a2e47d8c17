"""`idiolect resume`: runs and comparisons go on after Ctrl-C."""

import json
import os
import signal
import threading

import pytest

from idiolect.runs.progress import Reporter

QUICK = ("--clients", "4", "--rounds", "2", "--model", "linear", "--quiet")


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
    monkeypatch.setattr("idiolect.cli.training.reporter", lambda *_: Interrupting())
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
    assert json.loads((where / "summary.json").read_text())["rounds_done"] == 4


def test_resume_of_something_complete_shows_it(call):
    call("run", "--out", "x", *QUICK)
    code, out, _ = call("resume", "x")
    assert code == 0
    assert "2 of 2 rounds" in out


def test_a_damaged_run_is_named(call, folder):
    call("run", "--out", "x", *QUICK)
    (folder / "x" / "state.sqlite").write_bytes(b"this is no store" * 500)
    code, _, err = call("resume", "x")
    assert code == 2
    assert "state.sqlite" in err
