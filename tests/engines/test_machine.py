"""What a process takes of its machine."""

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
