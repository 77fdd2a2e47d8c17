"""Kernels are compiled by one process at a time, and what keeps them from it is said."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from idiolect.kernels.compiling import compile_alone
from idiolect.kernels.dense import Dense, find_dense
from idiolect.task.task import Task

fcntl = pytest.importorskip("fcntl")


def is_free(path):
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_others_wait_while_kernels_may_be_compiled():
    pytest.importorskip("numba")
    from idiolect.kernels.simd import array_at

    lock = Path(array_at.stats.cache_path) / "compiling.lock"
    with compile_alone():
        assert not is_free(lock)
    assert is_free(lock)
    with pytest.raises(ZeroDivisionError), compile_alone():
        raise ZeroDivisionError
    assert is_free(lock)


def test_without_kernels_nobody_waits(monkeypatch):
    monkeypatch.delitem(sys.modules, "idiolect.kernels.simd", raising=False)
    with compile_alone():
        assert "idiolect.kernels.simd" not in sys.modules


def test_kernels_that_cannot_be_loaded_are_said(monkeypatch, caplog):
    pytest.importorskip("numba")
    monkeypatch.setitem(sys.modules, "idiolect.kernels.dense_compiled", None)
    task = Task(nn.Linear(3, 2), (torch.randn(2, 3), torch.tensor([0, 1])), classes=2)
    assert type(find_dense(task)) is Dense
    assert "numba cannot be loaded" in caplog.text
