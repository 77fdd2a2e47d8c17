"""What the tests of all commands share."""

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in an empty folder, without data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    return tmp_path
