"""A library is a guest: what it changes of the process that calls it, it puts back."""

import gc
import importlib
import importlib.util
import logging
import os
import random
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import idiolect
from idiolect.cli import main
from idiolect.core import allocator

SMALL = {"clients": 4, "rounds": 2, "model": "linear"}


def run(engine, folder):
    idiolect.run("ditto", engine=engine, out=folder / "run", **SMALL)


def compare(jobs, folder):
    idiolect.compare("local, fedavg", seeds=1, jobs=jobs, engine="loop", out=folder / "comparison", **SMALL)


def tune(folder):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    idiolect.tune("fedprox", trials=4, engine="loop", out=folder / "tuning", **SMALL)


def advise(folder):
    draw = torch.Generator().manual_seed(0)
    data = {str(i): (torch.randn(12, 3, generator=draw), torch.arange(12) % 2) for i in range(3)}
    idiolect.advise(data, engine="loop", model="linear", rounds=2)


def report(folder):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run("loop", folder)
    idiolect.report.write_report([folder / "run"], folder / "report.html")


def resume_and_export(folder):
    run("loop", folder)
    idiolect.resume(folder / "run").save_models(folder / "models")


ACTIVITIES = {
    "loop": lambda folder: run("loop", folder),
    "auto": lambda folder: run("auto", folder),
    "workers": lambda folder: run("workers(count=2)", folder),
    "vector": lambda folder: run("vector(chunk=2, count=2)", folder),
    "resume and export": resume_and_export,
    "compare": lambda folder: compare(1, folder),
    "compare with processes": lambda folder: compare(2, folder),
    "tune": tune,
    "advise": advise,
    "report": report,
}


def process_state():
    """Everything of this process that its owner may rely on, as values that can be compared."""
    loggers = [logging.getLogger(name) for name in (None, "idiolect", "optuna")]
    return {
        "frozen objects": gc.get_freeze_count(),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "threads": torch.get_num_threads(),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "random numbers of PyTorch": torch.get_rng_state().tolist(),
        "random numbers of NumPy": repr(np.random.get_state()),
        "random numbers of Python": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "loggers": [(each.name, list(each.handlers), each.level, each.propagate) for each in loggers],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }


@pytest.fixture(autouse=True)
def imported():
    """Other packages, of which some set environment variables and filters of warnings when they are imported."""
    packages = ("sklearn.datasets", "scipy.special", "optuna", "matplotlib.pyplot", "polars", "torch._inductor.config")
    for name in packages:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)


@pytest.fixture(autouse=True)
def unfrozen():
    """What the test session has frozen is counted in every state, and becomes fewer whenever some of it goes."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_the_process_is_left_as_it_was(activity, tmp_path, monkeypatch):
    calls = []
    libc = SimpleNamespace(mallopt=lambda *values: calls.append(os.getpid()))
    monkeypatch.setattr(allocator, "ctypes", SimpleNamespace(CDLL=lambda name: libc))
    torch.set_num_threads(2)
    before = process_state()
    ACTIVITIES[activity](tmp_path)
    after = process_state()
    assert [name for name in before if before[name] != after[name]] == []
    assert os.getpid() not in calls, "the allocator's settings cannot be put back"


def test_a_run_that_fails_leaves_the_process_as_it_was(tmp_path):
    def fail(progress):
        raise RuntimeError("enough")

    before = process_state()
    with pytest.raises(RuntimeError, match="enough"):
        idiolect.run("fedavg", engine="workers(count=2)", watch=fail, **SMALL)
    after = process_state()
    assert [name for name in before if before[name] != after[name]] == []


def test_the_command_line_is_a_process_of_its_own_and_sets_its_allocator(monkeypatch):
    calls = []
    libc = SimpleNamespace(mallopt=lambda *values: calls.append(values))
    monkeypatch.setattr(allocator, "ctypes", SimpleNamespace(CDLL=lambda name: libc))
    with pytest.raises(SystemExit):
        main(["--version"])
    assert len(calls) == 3
