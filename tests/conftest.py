"""What all tests share: one thread and one seed each, whatever ran before, and a way to call the command line."""

import contextlib
import ctypes
import gc
import importlib
import itertools
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.cli import main
from idiolect.core.once import forget_said
from idiolect.testing.disturbances import WorkersHere

ROOT = Path(__file__).parents[1]

torch.set_num_threads(1)
gc.disable()  # until all tests are listed: what is imported and listed stays, and is no garbage to look for
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as for what a shell runs in the background; tests send interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)


FIRST = ("test_runtime.py", "test_conformance.py", "test_ray.py")
"""What takes longest: real servers, which mostly wait for each other, beside what mostly computes, and forks worker
processes while there is little memory for them to take a copy of."""
TOGETHER = ("tests/report", "tests/reproductions")
"""Folders whose files share runs that take long to make."""


def pytest_collection_modifyitems(items):
    """First comes what takes longest, so that the processes of the tests end together: those files, then pages of the
    documents, of which each is one test, what is slow, and folders that stay together."""

    def turn(item):
        if item.path.name in FIRST:
            return FIRST.index(item.path.name)
        late = not (item.path.suffix == ".md" or item.get_closest_marker("slow") or item.nodeid.startswith(TOGETHER))
        return len(FIRST) + late

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` one process of several does all tests of a file, or of a folder that stays together, so
    that what they share is made once."""
    if config.getoption("dist") != "loadfile":
        return None

    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))

    return Together(config, log)


def pytest_collection_finish():
    """No collection of garbage looks again at modules and tests, neither here nor in processes that are forked."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seed():
    """Modules that a test makes have the same initial weights, and warnings that are given once are given, in whatever
    order and process the tests run."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    forget_said()


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """New folders, apart from those of `tmp_path`, since pytest looks through all of these for the next number."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(homes, monkeypatch):
    """What is kept for all runs goes into an empty folder."""
    folder = next(homes)
    folder.mkdir()
    monkeypatch.setenv("IDIOLECT_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="module")
def memory():
    """What a module's tests have freed goes back to the system, since every worker process that later tests fork takes
    a copy of all that is held."""
    yield
    with contextlib.suppress(OSError, AttributeError):  # not every system has glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture
def workers_here(monkeypatch):
    """The engines `workers` and `vector` do all that their processes do in this one, in turn: for tests of what is
    computed, since to fork a process that has loaded so much takes longer than a tiny run."""
    monkeypatch.setattr("idiolect.engines.choice.Workers", WorkersHere)


@pytest.fixture
def call(capsys):
    """Run a command: its exit code, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run


@pytest.fixture(scope="session")
def import_site_script():
    """A function that imports a module of the scripts that build the site."""

    def find(name):
        sys.path.insert(0, str(ROOT / "scripts" / "site"))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.pop(0)

    return find
