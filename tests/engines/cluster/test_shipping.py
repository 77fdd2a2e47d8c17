"""What travels to other processes: code of the user's own is found there, or it is said where it belongs."""

import subprocess
import sys

import pytest

pytest.importorskip("ray")

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


def test_modules_of_the_drivers_path_are_found_where_they_are_and_named_where_they_are_not(tmp_path):
    (tmp_path / "mine.py").write_text("class Thing: pass")
    shipped = subprocess.run([sys.executable, "-c", SHIP.format(place=str(tmp_path))], stdout=-1, check=True).stdout
    receive = lambda: subprocess.run([sys.executable, "-c", UNSHIP], input=shipped, stdout=-1).stdout.decode()  # noqa: E731
    assert receive() == "Thing\n"
    (tmp_path / "mine.py").unlink()
    assert receive().startswith("the module mine is not there; have it at the same place on every node")
