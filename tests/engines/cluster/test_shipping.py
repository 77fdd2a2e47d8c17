"""A plan on its way to other machines."""

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install idiolect[cluster]")

from idiolect.engines.cluster.shipping import ship, unship


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
