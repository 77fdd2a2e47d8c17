"""Kill a run at any moment: nothing but the round in progress is lost, and the resumed run is the same to the bit."""

import multiprocessing
import random
import resource
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

import idiolect
from idiolect.core.errors import RunFolderError
from idiolect.runs.store import Store

SCRIPT = (
    "import idiolect, sys; idiolect.run('ditto', 'digits', clients=6, rounds=40, participation=0.5, out=sys.argv[1])"
)


def state(folder):
    store = Store(folder / "state.sqlite")
    return store.server(), store.clients(range(6)), store.rows()


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a is b if a is None else bool((a == b).all())


def test_killed_at_three_random_moments(tmp_path):
    whole = idiolect.run("ditto", "digits", clients=6, rounds=40, participation=0.5, out=tmp_path / "whole")
    assert whole.complete
    folder, draw, killed = tmp_path / "killed", random.Random(0), 0
    work = partial(idiolect.run, "ditto", "digits", clients=6, rounds=40, participation=0.5, out=folder)
    for _ in range(3):
        child = multiprocessing.get_context("forkserver").Process(target=work)
        child.start()
        while not (folder / "state.sqlite").exists():
            time.sleep(0.01)
        time.sleep(draw.uniform(0.05, 0.4))
        child.kill()
        child.join()
        killed += child.exitcode == -signal.SIGKILL
        work = partial(idiolect.resume, folder)
    assert killed > 0
    assert idiolect.resume(folder).complete
    ours, theirs = state(folder), state(tmp_path / "whole")
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])
    assert ours[2] == theirs[2]


def test_the_first_interrupt_saves_and_stops(tmp_path):
    folder = tmp_path / "r"
    child = subprocess.Popen([sys.executable, "-c", SCRIPT.replace("rounds=40", "rounds=4000"), str(folder)])
    while not (folder / "state.sqlite").exists() or Store(folder / "state.sqlite").fact("next_round", 0) < 2:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == -signal.SIGINT
    stopped = idiolect.load(folder)
    assert 2 <= stopped.summary["rounds_done"] < 4000
    assert (folder / "summary.json").exists()
    assert (folder / "metrics.parquet").exists()


@pytest.fixture
def full_disk():
    """A limit on the size of files stands in for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_600_000, before[1]))
    yield partial(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_explained_error_and_the_rounds_before_are_safe(full_disk, call, tmp_path):
    folder = tmp_path / "r"
    settings = ["--method", "ditto", "--clients", "6", "--rounds", "8", "--engine", "loop", "--quiet"]
    arguments = ["run", *settings, "--out", str(folder)]
    code, _, err = call(*arguments)
    full_disk()  # no more
    assert code == 2
    assert "could not be saved" in err
    assert "free some space" in err
    assert "Traceback" not in err
    before = Store(folder / "state.sqlite").fact("next_round", 0)
    assert before < 8
    assert idiolect.resume(folder).complete
    whole = idiolect.run("ditto", "digits", clients=6, rounds=8, engine="loop", out=tmp_path / "whole")
    assert same(state(folder)[1], state(whole.folder)[1])
    assert state(folder)[2] == state(whole.folder)[2]


def test_a_folder_that_cannot_be_written_is_an_explained_error():
    with pytest.raises(RunFolderError, match="cannot be written"):
        idiolect.run("fedavg", "digits", clients=4, rounds=1, out="/proc/run")
