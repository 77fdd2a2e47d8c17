"""Data that no data set should hold: each is one sentence, or works."""

import gzip
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat

import idiolect
from idiolect.core.errors import DataError, InputError
from idiolect.data.formats.archives import extract
from idiolect.data.formats.files import read_bytes
from idiolect.data.formats.packed import count_unpacked, read_hdf5, read_mat

ROWS = "client,x,target\na,{x},{y}\na,1,1\na,0,0\nb,2,0\nb,3,1\n"


def load_table(folder, x="5", y="0"):
    (folder / "a.csv").write_text(ROWS.format(x=x, y=y))
    return idiolect.data.load(f"csv:{folder / 'a.csv'}")


def load_arrays(folder, **arrays):
    np.savez(folder / "a.npz", **{"x": np.zeros((8, 2)), "y": np.arange(8) % 2, **arrays})
    dealing = {} if "client" in arrays else {"clients": 2, "partition": "iid"}
    return idiolect.data.load(f"npz:{folder / 'a.npz'}", **dealing)


def test_a_number_of_twenty_digits_is_a_number(tmp_path):
    assert load_table(tmp_path, x="9" * 20).clients[0].x.max() == float("1e20")
    assert load_table(tmp_path, y="9" * 20).classes == 3


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"client": np.array("a")}, "one client per sample"),
        ({"client": np.full((8, 2), "a")}, "one client per sample"),
        ({"x": np.array(1.0)}, "one row per sample"),
        ({"y": np.array(1)}, "one target per input"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "is empty"),
        ({"y": np.array([0, 1, 0, 2**31] * 2)}, "the largest label is 2147483648"),
        ({"y": np.array([0, 1, 0, 2**63 - 1] * 2)}, "number the classes from 0 on"),
        ({"y": np.array([0, -5] * 4)}, "the label -5; number the classes from 0 on"),
        ({"y": np.array([0, 2**63] * 4, np.uint64)}, "hold 9223372036854775808, but whole numbers may be at most 9"),
        ({"x": np.full((8, 2), 2**63, np.uint64)}, "inputs hold 9223372036854775808"),
        ({"x": np.full((8, 2), 2**40)}, "the largest token is"),
    ],
)
def test_arrays_that_cannot_be_used_are_one_sentence(tmp_path, arrays, problem):
    with pytest.raises(DataError, match=problem):
        load_arrays(tmp_path, **arrays)


def test_own_labels_that_are_too_large_are_one_sentence():
    with pytest.raises(DataError, match="the largest label"):
        idiolect.data.load({"a": (torch.zeros(3, 2), torch.tensor([0, 1, 2**31]))})


@pytest.fixture
def bombs(tmp_path, monkeypatch):
    """Files that unpack to a hundred times what is allowed."""
    monkeypatch.setattr("idiolect.data.formats.files.LARGE", 10**5)
    content = bytes(10**7)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.txt", content)
    (tmp_path / "a.txt").write_bytes(content)
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as made:
        made.add(tmp_path / "a.txt", "a.txt")
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((10**6, 1)), y=np.zeros(10**6, int))
    savemat(tmp_path / "c.mat", {"fts": np.zeros((10**6, 10), np.uint8), "labels": 1}, do_compression=True)
    with h5py.File(tmp_path / "d.h5", "w") as made:
        made.create_dataset("all/data", (10**7,), "u1")  # whose zeros are nowhere
    return tmp_path


def use(folder):
    yield lambda: extract(folder / "a.zip", folder / "out")
    yield lambda: extract(folder / "a.tar.xz", folder / "out")
    yield lambda: read_bytes(folder / "a.gz")
    yield lambda: idiolect.data.load(f"npz:{folder / 'b.npz'}", clients=2)
    yield lambda: read_mat(folder / "c.mat", ["fts", "labels"])
    yield lambda: read_hdf5(folder / "d.h5", ["all/data"])


def test_what_unpacks_to_far_too_much_is_refused(bombs):
    for unpack in use(bombs):
        with pytest.raises(DataError, match="IDIOLECT_MAX_UNPACKED_GB"):
            unpack()
    assert not list(bombs.rglob("a.txt"))


def test_a_setting_raises_the_limit(bombs, monkeypatch):
    monkeypatch.setenv("IDIOLECT_MAX_UNPACKED_GB", "1")
    for unpack in use(bombs):
        unpack()
    monkeypatch.setenv("IDIOLECT_MAX_UNPACKED_GB", "much")
    with pytest.raises(DataError, match="number of gigabytes"):
        read_bytes(bombs / "a.gz")


def test_the_compressed_variables_of_a_matlab_file_are_counted(tmp_path):
    """Each has 56 bytes besides its numbers, which are filled up to eight."""
    held = {"a": np.zeros((100, 10), np.uint8), "b": np.zeros((3, 8))}
    for compressed, wanted in ((True, 1000 + 192 + 2 * 56), (False, 0)):
        savemat(tmp_path / "a.mat", held, do_compression=compressed)
        assert count_unpacked(tmp_path / "a.mat") == wanted
    savemat(tmp_path / "a.mat", held, format="4")
    assert count_unpacked(tmp_path / "a.mat") == 0
    assert read_mat(tmp_path / "a.mat", ["b"])["b"].shape == (3, 8)


def test_what_is_no_array_of_numbers_in_an_hdf5_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as made:
        made["all/words"], made["all/data"] = ["a", "b"], np.arange(3)
    assert read_hdf5(tmp_path / "a.h5", ["all/data"])[0].tolist() == [0, 1, 2]
    for key in ("all", "all/words"):
        with pytest.raises(DataError, match=f"{key} is no array of numbers"):
            read_hdf5(tmp_path / "a.h5", [key])
    with pytest.raises(DataError, match="cannot be read"):
        read_hdf5(tmp_path / "a.h5", ["all/missing"])


def test_a_zip_that_lies_about_its_size_unpacks_to_no_more(bombs):
    path = bombs / "a.zip"
    size = (10**7).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(DataError):
        extract(path, bombs / "out")
    assert not list(bombs.rglob("a.txt"))


@pytest.mark.parametrize(
    "settings",
    [
        {"split": ("a", "b", "c")}, {"split": "a b c"}, {"split": 3}, {"seed": 2**64}, {"seed": -1}, {"seed": 1.5},
        {"device": "meta"}, {"device": "nowhere:9"}, {"lr": float("inf")}, {"lr": float("nan")},
        {"weight_decay": float("inf")}, {"schedule": "step(at=[a, b])"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_one_sentence(settings):
    with pytest.raises(InputError):
        idiolect.run("fedavg", "digits", clients=2, rounds=1, model="linear", **settings)


def test_too_many_seeds_are_one_sentence():
    with pytest.raises(InputError, match="too many"):
        idiolect.compare("local", "digits", seeds=2**64)


def test_an_empty_pool_is_one_sentence():
    with pytest.raises(DataError, match="is empty"):
        idiolect.data.load((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)))
