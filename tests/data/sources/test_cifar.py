"""CIFAR and Tiny-ImageNet: small files in the published formats, and what is wrong with damaged ones."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.data.sources import Cifar10, Cifar100, TinyImagenet, sources

RNG = np.random.default_rng(0)


def packed(held: object) -> bytes:
    return pickle.dumps(held, protocol=2)


def batch(path: Path, size: int, key: str = "labels", classes: int = 10, **change: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {
        b"data": RNG.integers(0, 256, (size, 3072)).astype(np.uint8),
        key.encode(): (np.arange(size) % classes).tolist(),
    }
    path.write_bytes(packed(held | {name.encode(): value for name, value in change.items()}))


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    for name in (*(f"data_batch_{at}" for at in range(1, 6)), "test_batch"):
        batch(tmp_path / "cifar-10-batches-py" / name, 4)
    return tmp_path


def test_the_python_version_of_cifar10_is_read(cifar):
    pool = Cifar10(path=str(cifar), verify=False).load()
    assert pool.x.shape == (24, 3, 32, 32)
    assert (pool.classes, pool.name, pool.groups) == (10, "cifar10", None)
    raw = pickle.loads((cifar / "cifar-10-batches-py" / "data_batch_2").read_bytes(), encoding="bytes")
    assert torch.equal(pool.x[4], torch.from_numpy(raw[b"data"][0].reshape(3, 32, 32)).float() / 255)
    assert pool.y[4:8].tolist() == [0, 1, 2, 3]


def test_a_compressed_batch_is_read_too(cifar):
    plain = Cifar10(path=str(cifar), verify=False).load()
    path = cifar / "cifar-10-batches-py" / "data_batch_2"
    path.with_name("data_batch_2.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert torch.equal(Cifar10(path=str(cifar), verify=False).load().x, plain.x)


def test_the_python_version_of_cifar100_has_fine_labels(tmp_path):
    for name in ("train", "test"):
        batch(tmp_path / "cifar-100-python" / name, 5, "fine_labels", 100, coarse_labels=[0] * 5)
    pool = Cifar100(path=str(tmp_path), verify=False).load()
    assert (pool.x.shape[0], pool.classes, pool.y.tolist()) == (10, 100, [0, 1, 2, 3, 4] * 2)


def test_files_that_are_not_the_publishers_are_refused(cifar):
    with pytest.raises(DataError, match="data_batch_1 has the md5 checksum"):
        Cifar10(path=str(cifar)).load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not a pickle", "cannot be read"),
        (packed({b"data": np.zeros((2, 3072), np.uint8)}), "cannot be read"),
        (
            packed({b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]}),
            "does not hold images of 3 x 32 x 32",
        ),
        (packed({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}), "a label for each"),
        (
            packed({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
            "has the label 10, but labels go from",
        ),
        (b"cos\nsystem\n(S'true'\ntR.", "asks for os.system, which no batch of images needs"),
    ],
)
def test_damaged_mislabelled_and_malicious_batches_are_refused(cifar, content, message):
    (cifar / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Cifar10(path=str(cifar), verify=False).load()


def test_a_truncated_batch_is_refused(cifar):
    path = cifar / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="test_batch cannot be read"):
        Cifar10(path=str(cifar), verify=False).load()


def test_a_thousand_clients_share_one_copy(tmp_path):
    for name in ("train", "test"):
        batch(tmp_path / "cifar-100-python" / name, 1500, "fine_labels", 100)
    federation = load(Cifar100(path=str(tmp_path), verify=False), partition="iid", clients=1000)
    stores = {client.x.untyped_storage().data_ptr() for client in federation.clients}
    assert len(federation) == 1000
    assert len(stores) == 1
    assert federation.clients[0].x.is_contiguous()
    assert federation.clients[0].x.untyped_storage().nbytes() == 3000 * 3072 * 4


def test_dealing_a_pool_to_a_thousand_clients_makes_no_second_copy():
    """Measured as the peak of a process that does nothing else."""
    code = """if True:
        import resource, torch
        from idiolect.data import Pool
        pool = Pool(torch.rand(20_000, 3, 32, 32), torch.arange(20_000) % 10, None, 10, "noise")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(pool.federation("iid", clients=1000)) == 1000
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (pool.x.numel() * 4))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3


@pytest.mark.parametrize("normalise", ["none", "half", "cifar10"])
def test_normalisation_is_by_stated_constants(cifar, normalise):
    plain = Cifar10(path=str(cifar), verify=False).load().x
    pool = sources.build(f"cifar10(path='{cifar}', verify=false, normalise={normalise})").load()
    mean, deviation = {
        "none": (0.0, 1.0),
        "half": (0.5, 0.5),
        "cifar10": (torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])),
    }[normalise]
    expected = (plain.movedim(1, -1) - mean) / deviation
    assert torch.allclose(pool.x.movedim(1, -1), expected, atol=1e-6)


def test_constants_for_three_channels_do_not_fit_one(tmp_path):
    from idiolect.data.formats.images import to_inputs

    with pytest.raises(DataError, match="constants for 3 channels, but these images have 1; use half or none"):
        to_inputs(np.zeros((1, 1, 2, 2), np.uint8), "imagenet")


# -- Tiny-ImageNet -------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("n2\nn1\n")
    for name in ("n1", "n2"):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").write_text("")
        for at in range(2):
            grey = Image.fromarray(RNG.integers(0, 256, (64, 64)).astype(np.uint8))
            grey.save(root / "train" / name / "images" / f"{name}_{at}.JPEG")
    Image.new("RGB", (64, 64), (255, 0, 0)).save(root / "val" / "images" / "val_0.JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn1\t0\t0\t62\t62\n")
    return tmp_path


def test_tiny_imagenet_is_read_from_its_folders(tiny):
    pool = TinyImagenet(path=str(tiny)).load()
    assert pool.x.shape == (5, 3, 64, 64)
    assert pool.y.tolist() == [0, 0, 1, 1, 1]  # in the order of wnids.txt
    assert pool.x[-1, 0].mean() > 0.9 > 0.1 > pool.x[-1, 1].mean()
    assert TinyImagenet(path=str(tiny), side=32).load().x.shape == (5, 3, 32, 32)


def test_a_class_that_is_not_listed_is_refused(tiny):
    (tiny / "tiny-imagenet-200" / "wnids.txt").write_text("n2\n")
    with pytest.raises(DataError, match=r"the class 'n1' is not in wnids\.txt"):
        TinyImagenet(path=str(tiny)).load()
