"""`idiolect partition`: which client holds what."""

import json

import pytest


def test_partition_shows_pictures_and_saves(call, folder):
    pytest.importorskip("matplotlib")
    arguments = ("--partition", "dirichlet:0.1", "--clients", "5", "--seed", "1")
    code, out, _ = call("partition", *arguments, "--picture", "p.png", "--save", "p.json")
    assert code == 0
    assert "client-4" in out
    held = json.loads((folder / "p.json").read_text())
    assert f"hash {held['hash']}" in out
    assert (folder / "p.png").stat().st_size > 1000
    code, again, _ = call("partition", "--partition", "file:p.json")
    assert f"hash {held['hash']}" in again


def test_partitions_are_listed(call):
    code, out, _ = call("partition", "--list")
    assert code == 0
    assert "dirichlet" in out
    assert "alpha=0.1" in out
