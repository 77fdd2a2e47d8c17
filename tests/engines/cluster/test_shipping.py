"""What travels to other machines: arrays in files and code of the user's own are found there, or it is said where they
belong."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install idiolect[cluster]")

from idiolect.engines.cluster.shipping import ship, unship

SHIP = """
import sys; sys.path.append({place!r})
import pickle, mine
from idiolect.engines.cluster.shipping import ship
sys.stdout.buffer.write(pickle.dumps(ship(mine.Thing)))
"""
UNSHIP = """
import sys, pickle
from idiolect.engines.cluster.shipping import unship
from idiolect.core.errors import ClusterError
try:
    print(unship(pickle.loads(sys.stdin.buffer.read())).__name__)
except ClusterError as error:
    print(error)
"""


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """An array in a file, opened by a relative path."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(12.0).reshape(6, 2))
    return np.load("x.npy", mmap_mode="r")


def test_an_array_in_a_file_stays_in_its_file(mapped, monkeypatch, tmp_path):
    shipped = ship({"x": mapped, "part": mapped[2:]})
    monkeypatch.chdir("/")
    there = unship(shipped)
    assert there["x"].filename == str(tmp_path / "x.npy")
    assert (there["x"] == mapped).all()
    assert (there["part"] == mapped[2:]).all()


def test_an_array_whose_file_is_not_there_or_shorter_is_named(mapped, tmp_path):
    shipped = ship(mapped)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(OSError, match=r"No such file.*x.npy"):
        unship(shipped)
    np.save("x.npy", np.zeros(3))
    with pytest.raises(OSError, match=r"x.npy is another file than the driver's"):
        unship(shipped)


def test_modules_of_the_drivers_path_are_found_where_they_are_and_named_where_they_are_not(tmp_path):
    (tmp_path / "mine.py").write_text("class Thing: pass")
    shipped = subprocess.run([sys.executable, "-c", SHIP.format(place=str(tmp_path))], stdout=-1, check=True).stdout
    receive = lambda: subprocess.run([sys.executable, "-c", UNSHIP], input=shipped, stdout=-1).stdout.decode()  # noqa: E731
    assert receive() == "Thing\n"
    (tmp_path / "mine.py").unlink()
    assert receive().startswith("the module mine is not there; have it at the same place on every node")
