"""Data sets of the hub: read offline, from a folder or the cache; here with a stand-in for the package, and with the
package itself where it is installed."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect.core.errors import DataError, MissingExtraError
from idiolect.data import fetch
from idiolect.data.sources import HuggingFace
from idiolect.data.sources.huggingface import offline


class Table:
    """A table as `datasets` has it, as far as it is used."""

    def __init__(self, **columns: list) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> list:
        return self.columns[name]

    def select(self, index: np.ndarray) -> Table:
        return Table(**{name: [held[at] for at in index] for name, held in self.columns.items()})


@pytest.fixture
def hub(monkeypatch):
    """A stand-in: tables by name, which can be loaded offline when they were fetched."""
    tables = {
        "digits": Table(
            image=[Image.new("L", (8, 8), at) for at in range(6)], label=list(range(6)), who=list("aabbcc")
        ),
        "reviews": Table(text=["Good film.", "bad film", "good"], label=["pos", "neg", "pos"]),
        "rates": Table(x=[[1.0, 2.0], [3.0, 4.0]], y=[0.5, 1.5]),
    }
    module = SimpleNamespace(config=SimpleNamespace(HF_DATASETS_OFFLINE=False, HF_HUB_OFFLINE=False), cache=set())
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)

    def load_dataset(name: str, config: str | None, split: str) -> Table:
        settings = {module.config.HF_DATASETS_OFFLINE, module.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE}
        assert len(settings) == 1, "which setting counts depends on the version"
        if settings == {False}:
            module.cache.add(name)
        if name not in module.cache:
            raise ConnectionError("offline, and not in the cache")
        return tables[name]

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(constants=constants))
    return module


def test_a_run_never_downloads_and_fetching_fills_the_cache(hub):
    source = HuggingFace("digits")
    assert not source.available()
    with pytest.raises(DataError, match=r"not in the cache.*idiolect data fetch 'hf\(NAME\)'"):
        source.load()
    fetch("hf(digits)")
    assert source.available()
    assert source.load().x.shape == (6, 1, 8, 8)
    assert hub.config == SimpleNamespace(HF_DATASETS_OFFLINE=False, HF_HUB_OFFLINE=False)


def test_images_texts_and_numbers(hub):
    hub.cache |= {"digits", "reviews", "rates"}
    digits = HuggingFace("digits", client="who", samples=4).load()
    assert (len(digits.x), digits.groups.dtype.kind, float(digits.x.max())) == (4, "U", pytest.approx(4 / 255))
    reviews = HuggingFace("reviews", length=3).load()
    assert (reviews.x.shape, reviews.vocabulary, reviews.y.tolist(), reviews.classes) == ((3, 3), 6, [1, 0, 1], 2)
    rates = HuggingFace("rates").load()
    assert (rates.x.tolist(), rates.y.tolist(), rates.classes) == ([[1, 2], [3, 4]], [0.5, 1.5], None)


def test_columns_that_are_not_there_are_named(hub):
    hub.cache.add("digits")
    with pytest.raises(DataError, match=r"has no column 'labels'\. Did you mean label"):
        HuggingFace("digits", y="labels").load()
    with pytest.raises(DataError, match="hf: no name"):
        HuggingFace().load()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[hub\]"):
        HuggingFace("digits").load()
    assert not HuggingFace("digits").available()


def test_a_folder_that_the_package_wrote(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 3, "y": [0, 1, 0], "site": ["a", "b", "a"]})
    made.save_to_disk(str(tmp_path / "own"))
    pool = HuggingFace(str(tmp_path / "own"), client="site").load()
    assert torch.equal(pool.y, torch.tensor([0, 1, 0]))
    assert pool.groups.tolist() == ["a", "b", "a"]
    named = made.cast_column("y", datasets.ClassLabel(names=["no", "yes", "unknown"]))
    datasets.DatasetDict({"train": named, "test": named}).save_to_disk(str(tmp_path / "parts"))
    pool = HuggingFace(str(tmp_path / "parts"), part="train+test").load()
    assert (len(pool.y), pool.classes) == (6, 3)


def test_the_packages_cache_is_read_without_the_network(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asked for the network"))
    assert not HuggingFace("someone/visits").available()
    (tmp_path / "visits.csv").write_text("x,y\n1.5,0\n2.5,1\n")
    with offline(datasets):
        datasets.load_dataset("csv", data_files=str(tmp_path / "visits.csv"), cache_dir=str(tmp_path / "cache"))
    (tmp_path / "cache" / "csv").rename(tmp_path / "cache" / "someone___visits")
    for found in list((tmp_path / "cache").rglob("csv-train.arrow")):
        found.rename(found.with_name("visits-train.arrow"))
        found.parents[2].rename(found.parents[3] / "default")
    pool = HuggingFace("someone/visits").load()
    assert pool.y.tolist() == [0, 1]
