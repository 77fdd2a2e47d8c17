"""What kills.py and attacks.py share: commands in processes that can be killed, and what must be equal afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from idiolect.runs.store import Store

TIMES = ("seconds", "peak_memory_mb", "calibration", "server_mb")
"""What differs between two runs that are the same."""


LIMIT = 600.0
"""Seconds after which a command is taken to hang."""


class Child:
    """A function in a process of its own, forked from this one, which has loaded everything; what it says is in a file.

    The parent must not have trained or read anything: the threads of PyTorch and Polars do not survive a fork.
    """

    def __init__(self, function: Callable[[], Any], said: Path) -> None:
        self.said, self.started = said, time.perf_counter()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgrp()
            self._work(function)
        with suppress(OSError):  # whoever of the two is first
            os.setpgid(self.pid, self.pid)

    def _work(self, function: Callable[[], Any]) -> None:
        file = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = 1
        try:
            function()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = LIMIT) -> int:
        """Its exit code; negative if a signal ended it, as it does after these seconds."""
        deadline = self.started + seconds
        while time.perf_counter() < deadline:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.killpg(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill_after(self, seconds: float) -> bool:
        """Kill it, and all that it has started, after some seconds; False if it was through before."""
        return self.wait(seconds) == -signal.SIGKILL

    def words(self) -> str:
        """What it said, on both of its outputs."""
        return self.said.read_text(errors="replace")


def start(said: Path, *arguments: str) -> Child:
    """A command of idiolect in a process of its own."""
    from idiolect.cli import main

    return Child(lambda: main(list(arguments)), said)


def finish(said: Path, *arguments: str) -> str:
    """Do a command to its end and return what it said; an error if it fails."""
    child = start(said, *arguments)
    if code := child.wait():
        raise RuntimeError(f"idiolect {' '.join(arguments)} ended with exit code {code}: {child.words()}")
    return child.words()


def measure(said: Path, *arguments: str) -> float:
    """Do a command to its end, and return the seconds that it takes."""
    started = time.perf_counter()
    finish(said, *arguments)
    return time.perf_counter() - started


def ask(said: Path, function: Callable[[], list[str]]) -> list[str]:
    """The lines that a function returns, from a process of its own, as it would start threads here."""
    child = Child(lambda: print(json.dumps(function())), said)
    if child.wait():
        raise RuntimeError(child.words())
    return list(json.loads(child.words()))


def states(folder: Path) -> object:
    """Everything of a run that must be equal to the bit: slots, metrics and facts, without times."""
    store = Store(folder / "state.sqlite", write=False)
    query = (
        "SELECT e.owner, e.slot, e.round, s.data FROM entries e JOIN state s ON s.id=e.id ORDER BY owner, slot, e.round"
    )
    facts = {name: value for name, value in vars(store.facts).items() if name not in TIMES}
    held = store._db.query(query), [repr(row) for row in store.rows()], facts
    store.close()
    return held


def without_times(value: Any) -> Any:
    """Plain values without what differs between two runs that are the same."""
    if isinstance(value, dict):
        return {k: without_times(part) for k, part in value.items() if k not in (*TIMES, "checksum", "files")}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def draw_moments(draw: random.Random, usual: float, count: int) -> list[float]:
    """Random moments in a command that usually takes so many seconds."""
    return [draw.uniform(0.02, 1.0) * usual for _ in range(count)]
