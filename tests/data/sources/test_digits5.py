"""Digits-Five: every domain from a small file in its published format."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from idiolect.core.errors import DataError, OptionError
from idiolect.data.sources import Digits5

RNG = np.random.default_rng(0)


def svhn(path: Path, labels: list[int]) -> None:
    images = RNG.integers(0, 256, (32, 32, 3, len(labels))).astype(np.uint8)
    savemat(path, {"X": images, "y": np.array(labels, np.uint8)[:, None]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for which, labels in (("train", [1, 10, 9]), ("test", [2])):
        svhn(tmp_path / f"{which}_32x32.mat", labels)
        svhn(tmp_path / f"synth_{which}_32x32.mat", [0, *labels[1:2]])
    line = " ".join(f"{at}:{value}" for at, value in enumerate(np.linspace(-1, 1, 256), start=1))
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(f"1 {line}\n10 {line}\n".encode()))
    (tmp_path / "usps.t.bz2").write_bytes(bz2.compress(f"3 {line}\n".encode()))
    for which in ("train", "test"):
        (tmp_path / "mnist_m" / f"mnist_m_{which}").mkdir(parents=True)
        for at in range(2):
            Image.new("RGB", (32, 32), (at * 255, 0, 0)).save(
                tmp_path / "mnist_m" / f"mnist_m_{which}" / f"{at:08}.png"
            )
        (tmp_path / "mnist_m" / f"mnist_m_{which}_labels.txt").write_text("00000000.png 5\n00000001.png 7\n")
    return tmp_path


def test_all_domains_that_are_there_become_clients(folder):
    pool = Digits5(path=str(folder), verify=False).load()
    names, counts = np.unique(pool.groups, return_counts=True)
    assert dict(zip(names, counts, strict=True)) == {"svhn": 4, "usps": 3, "mnistm": 4, "synth": 3}
    assert pool.x.shape == (14, 3, 28, 28)
    federation = pool.federation(split=(1, 0, 0))
    assert [client.name for client in federation.clients] == sorted(names)


def test_labels_start_at_zero_in_every_format(folder):
    def labels(domain: str) -> list[int]:
        return Digits5(domains=(domain,), path=str(folder), verify=False).load().y.tolist()

    assert labels("svhn") == [1, 0, 9, 2]
    assert labels("usps") == [0, 9, 2]
    assert labels("mnistm") == [5, 7, 5, 7]


def test_values_and_sizes(folder):
    pool = Digits5(domains=("usps",), side=16, path=str(folder)).load()
    assert pool.x.shape == (3, 3, 16, 16)
    assert (float(pool.x[0].min()), float(pool.x[0].max())) == (0.0, 1.0)
    assert (pool.x[:, 0] == pool.x[:, 2]).all()


def test_a_part_of_each_domain(folder):
    pool = Digits5(domains=("svhn", "usps"), per_domain=2, path=str(folder), verify=False).load()
    assert np.unique(pool.groups, return_counts=True)[1].tolist() == [2, 2]
    with pytest.raises(DataError, match="digits5, usps: samples=4 is more than the 3 there are"):
        Digits5(domains=("usps",), per_domain=4, path=str(folder)).load()


def test_missing_and_unknown_domains(folder, tmp_path_factory):
    with pytest.raises(DataError, match=r"digits5: mnist not found\. To use it, mnist: put train-images"):
        Digits5(domains=("mnist", "usps"), path=str(folder)).load()
    empty = Digits5(path=str(tmp_path_factory.mktemp("empty")))
    assert not empty.available()
    with pytest.raises(DataError, match="digits5: mnist, svhn, usps, mnistm, synth not found"):
        empty.load()
    with pytest.raises(OptionError, match="must be one of mnist, svhn"):
        Digits5(domains=("cifar",))


def test_svhn_is_compared_with_the_publishers_checksum(folder):
    with pytest.raises(DataError, match=r"train_32x32\.mat has the md5 checksum"):
        Digits5(domains=("svhn",), path=str(folder)).load()


@pytest.mark.parametrize(
    ("file", "content", "domain", "message"),
    [
        ("train_32x32.mat", b"not matlab", "svhn", "cannot be read"),
        ("usps.bz2", bz2.compress(b"1 1:0.5 2:0.5\n"), "usps", "instead of 16 x 16"),
        ("usps.bz2", bz2.compress(b"one two"), "usps", "cannot be read"),
        ("usps.bz2", b"damaged", "usps", "cannot be read"),
        ("mnist_m/mnist_m_test_labels.txt", b"00000000.png\n", "mnistm", "lines must be a file and its label"),
        ("mnist_m/mnist_m_test_labels.txt", b"00000000.png 12\n", "mnistm", "has the label 12"),
        ("mnist_m/mnist_m_test/00000001.png", b"damaged", "mnistm", "is no image that can be read"),
    ],
)
def test_damaged_files_are_refused(folder, file, content, domain, message):
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Digits5(domains=(domain,), path=str(folder), verify=False).load()


@pytest.mark.parametrize("compressed", [True, False])
def test_a_truncated_matlab_file_is_refused(folder, compressed):
    path = folder / "test_32x32.mat"
    held = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
    savemat(path, held, do_compression=compressed)
    whole = path.read_bytes()
    for length in (0, 10, 128, 150, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cannot be read|has no"):
            Digits5(domains=("svhn",), path=str(folder), verify=False).load()


def test_images_and_labels_of_different_number_are_refused(folder):
    savemat(folder / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)})
    with pytest.raises(DataError, match="do not fit 3 labels"):
        Digits5(domains=("svhn",), path=str(folder), verify=False).load()
    savemat(folder / "test_32x32.mat", {"Z": np.zeros(3)})
    with pytest.raises(DataError, match=r"has no X, y; it holds Z\. It is another file than expected"):
        Digits5(domains=("svhn",), path=str(folder), verify=False).load()


def test_usps_from_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for part, labels in (("train", [3, 4]), ("test", [5])):
            group = file.create_group(part)
            group["data"], group["target"] = np.full((len(labels), 256), 0.5), np.array(labels)
    assert Digits5(path=str(tmp_path)).load().y.tolist() == [3, 4, 5]
    (tmp_path / "usps.h5").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        Digits5(path=str(tmp_path)).load()
