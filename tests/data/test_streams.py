"""Streams, data sets of Hugging Face and random transforms: read late, per epoch, or refused with a sentence."""

import itertools
import logging

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

import idiolect
from idiolect.core.errors import DataError
from idiolect.data import load, samples
from idiolect.data.lazy.hub import HubImages
from idiolect.data.samples import Draw


class Endless(IterableDataset):
    def __iter__(self):
        return ((torch.rand(100), at % 2) for at in itertools.count())


class Scans(Dataset):
    def __init__(self, noise):
        self.noise = noise

    def __len__(self):
        return 20

    def __getitem__(self, at):
        x = torch.full((2,), float(at))
        return x + self.noise * torch.rand(2) if self.noise else x, at % 2


def test_a_stream_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr(samples, "LARGE", 10_000)
    with pytest.raises(DataError, match=r"client 'a', train: the stream Endless has no length, and after \d+ samples"):
        load({"a": Endless()})


def test_a_stream_that_draws_is_read_once_and_says_so(caplog):
    class Few(IterableDataset):
        def __iter__(self):
            return ((torch.rand(2), at % 2) for at in range(10))

    caplog.set_level(logging.WARNING)
    state = torch.get_rng_state()
    assert load({"a": Few()}).fingerprint == load({"a": Few()}).fingerprint
    assert torch.equal(state, torch.get_rng_state())
    assert "the stream Few draws random numbers, but is read once" in caplog.text


def test_a_stream_of_hugging_face_is_refused():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"age": [1.0, 2.0], "died": ["no", "yes"]}).to_iterable_dataset()
    for given in (stream, {"train": stream}):
        with pytest.raises(DataError, match="a stream of Hugging Face has no length"):
            load(given, target="died")


def test_random_transforms_of_a_data_set_are_for_training_samples_alone(caplog):
    caplog.set_level(logging.WARNING)
    data = load({"a": {"train": Scans(0.5), "plain": Scans(0.0)}})
    client = data.clients[0]
    assert "draws random numbers" not in caplog.text
    assert [len(client.train), len(client.val), len(client.test)] == [12, 4, 4]
    drawn = [client.take(client.train, Draw(0, 0, 0, epoch))[0] for epoch in (0, 1, 0)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    held = torch.cat([client.split("val")[0], client.split("test")[0]])
    whole = torch.cat([held, drawn[0]]).floor()[:, 0]
    assert torch.equal(held, held.round())
    assert whole.sort().values.tolist() == list(range(20)), "no sample is in two splits"
    runs = [idiolect.run("fedavg", data, rounds=2, engine=engine).metrics for engine in ("loop", "workers(count=2)")]
    assert runs[0].equals(runs[1])
    with pytest.raises(DataError, match="plain must hold the samples of train in the same order"):
        load({"a": {"train": Scans(0.5), "plain": (torch.zeros(3, 2), [0, 1, 0])}})


def test_large_images_of_hugging_face_are_decoded_when_needed(monkeypatch):
    datasets = pytest.importorskip("datasets")
    images = [Image.new("RGB", (4, 3), (at, 0, 0)) for at in range(12)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    table = datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 6}, features=features)
    whole = load(table, partition="iid", clients=2)
    monkeypatch.setattr(samples, "LARGE", 100)
    late = load(table, partition="iid", clients=2)
    assert isinstance(late.clients[0].x, HubImages)
    assert late.names.classes == ("cat", "dog")
    assert torch.equal(late.clients[1].split("train")[0], whole.clients[1].split("train")[0])
    mixed = datasets.Dataset.from_dict(
        {"image": [*images[1:], Image.new("RGB", (5, 3))], "label": [0, 1] * 6}, features=features
    )
    with pytest.raises(DataError, match="the image has 5 x 3 pixels, the first one 4 x 3"):
        idiolect.run("fedavg", load(mixed, partition="iid", clients=2), rounds=1, engine="loop")
