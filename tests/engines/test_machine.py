"""What a process takes of its machine."""

import os
import sys
from types import SimpleNamespace

import pytest

from idiolect.engines import machine


@pytest.mark.parametrize(("platform", "counted"), [("linux", 300 * 1024), ("darwin", 300 * 1024 * 1024)])
def test_memory_is_in_megabytes_on_every_system(platform, counted, monkeypatch):
    """macOS counts bytes, Linux kilobytes."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(machine.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=counted))
    assert machine.peak_memory_mb() == 300


@pytest.mark.parametrize(("counted", "used"), [(6, 6), (None, 1)])
def test_where_a_process_cannot_say_what_it_may_use_all_cores_are_taken(counted, used, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert machine.cores() == used
