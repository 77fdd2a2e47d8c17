"""Inputs that are read when a batch is made: image files, arrays, PyTorch data sets, and the cache of what was read."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

from idiolect.core.errors import DataError, InputError
from idiolect.core.reading import watch_reading
from idiolect.data import load, samples
from idiolect.data.formats import images
from idiolect.data.samples import Draw

DRAW = Draw(seed=0, client=0, round=0, epoch=0)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for site, kind, name in (
        ("b 10", "cat", "0.jpg"),
        ("b 10", "dog", "1.png"),
        ("ü", "dog", "2.jpg"),
        ("ü", "cat", "3.jpg"),
    ):
        for copy in "xy":
            path = tmp_path / "photos" / site / kind / (copy + name)
            path.parent.mkdir(parents=True, exist_ok=True)
            grey = copy == "y"
            Image.fromarray(rng.integers(0, 256, (16, 20) if grey else (16, 20, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def everything(client, draw=None):
    return client.take(client.indices, draw)


# -- image files ---------------------------------------------------------------------------------------


def test_everything_but_pixels_is_known_without_decoding(photos, monkeypatch):
    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("an image was decoded"))
    monkeypatch.setattr(samples, "LARGE", 0)
    data = load(f"folder:{photos}")
    assert [client.name for client in data.clients] == ["b 10", "ü"]
    assert data.names.classes == ("cat", "dog")
    assert data.input_shape == (3, 16, 20)
    assert data.label_counts().tolist() == [[2, 2], [2, 2]]
    assert len(data.fingerprint) == 12


@pytest.mark.parametrize("options", ["", ", side=8", ", mode=grey, normalise=half"])
def test_images_read_late_are_those_that_are_held(photos, options):
    late, held = (load(f"folder({photos}{options}, lazy={lazy})") for lazy in ("true", "false"))
    assert [client.late for client in late.clients] == [True, True]
    assert not held.clients[0].late
    for one, other in zip(late.clients, held.clients, strict=True):
        for split in ("train", "val", "test"):
            assert all(map(torch.equal, one.split(split), other.split(split)))


def test_a_file_that_changed_changes_the_fingerprint(photos):
    before = load(f"folder({photos}, lazy=true)").fingerprint
    assert load(f"folder({photos}, lazy=true)").fingerprint == before
    Image.new("RGB", (20, 16)).save(photos / "ü" / "cat" / "x3.jpg")
    assert load(f"folder({photos}, lazy=true)").fingerprint != before
    assert load(f"folder({photos}, lazy=true, mode=grey)").fingerprint != before


@pytest.mark.parametrize("broken", [b"", b"hello", None])
def test_a_file_that_is_no_whole_image_is_named_before_anything_runs(photos, broken):
    path = photos / "ü" / "dog" / "x2.jpg"
    path.write_bytes(path.read_bytes()[:-100] if broken is None else broken)
    with pytest.raises(DataError, match=r"dog/x2\.jpg is no image that can be read"):
        load(f"folder({photos}, lazy=true)")


def test_an_image_of_another_size_is_named_unless_all_are_brought_to_one(photos):
    Image.new("RGB", (16, 16)).save(photos / "ü" / "dog" / "x2.jpg")
    with pytest.raises(DataError, match=r"different sizes .*dog/x2\.jpg has 16 x 16 pixels"):
        load(f"folder({photos}, lazy=true)")
    assert load(f"folder({photos}, lazy=true, side=8)").input_shape == (3, 8, 8)


def test_looking_through_files_says_how_far_it_is(photos, monkeypatch):
    monkeypatch.setattr("idiolect.core.reading.EVERY", -1)
    said = []
    with watch_reading(lambda *far: said.append(far)):
        load(f"folder({photos}, lazy=true)")
    assert said[0] == ("looking through the images", 0, 8)
    assert said[-1] == ("looking through the images", 8, 8)


# -- the cache -----------------------------------------------------------------------------------------


def count_decoded(data, monkeypatch):
    decoded = []
    inner = images.Listed.read
    monkeypatch.setattr(images.Listed, "read", lambda self, path: decoded.append(path) or inner(self, path))
    values = [everything(client)[0] for _ in range(3) for client in data.clients]
    monkeypatch.undo()
    assert all(map(torch.equal, values[:2], values[2:4]))
    assert all(map(torch.equal, values[:2], values[4:]))
    return len(decoded)


def test_a_sample_is_decoded_once_as_far_as_the_cache_reaches(photos, monkeypatch):
    def photographs():
        return load(f"folder({photos}, lazy=true, side=512)")  # 786 kB each

    assert count_decoded(photographs().cached(0), monkeypatch) == 24
    assert count_decoded(photographs().cached(100), monkeypatch) == 8
    assert count_decoded(photographs().cached(4), monkeypatch) == 5 + 3 * 3


def test_a_cache_on_disk_serves_the_next_run_and_mends_itself(photos, tmp_path, monkeypatch):
    place = tmp_path / "cache"

    def photographs():
        return load(f"folder({photos}, lazy=true)").cached(100, str(place))

    assert count_decoded(photographs(), monkeypatch) == 8
    assert count_decoded(photographs(), monkeypatch) == 0
    (file,) = place.iterdir()
    content = bytearray(file.read_bytes())
    content[-7] ^= 1  # in the last image
    file.write_bytes(content)
    assert count_decoded(photographs(), monkeypatch) == 1
    with pytest.raises(InputError, match="cannot be written to"):
        load(f"folder({photos}, lazy=true)").cached(100, str(file))


# -- arrays --------------------------------------------------------------------------------------------


def test_a_memory_mapped_array_is_read_row_by_row(tmp_path):
    values = np.random.default_rng(0).random((12, 3)).astype(">f4")
    values[7, 1] = np.inf
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = load({"north": (mapped[:6], np.arange(6) % 2), "südwest": (mapped[6:], np.arange(6) % 2)})
    assert data.clients[0].late
    assert data.input_shape == (3,)
    torch.testing.assert_close(everything(data.clients[0])[0], torch.from_numpy(values[:6].astype("f4")))
    assert data["südwest"].take(torch.tensor([0, 5]))[0].dtype == torch.float32
    with pytest.raises(DataError, match="client 'südwest', sample 1: its inputs are NaN or infinite"):
        everything(data["südwest"])


def test_memory_mapped_tokens_and_their_vocabulary(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(24, dtype="u2").reshape(8, 3))
    data = load([(np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(8) % 2)])
    assert data.tokens
    assert data.vocabulary == 24
    assert everything(data.clients[0])[0].dtype == torch.int64


def test_many_bytes_stay_bytes_until_a_batch_is_made(monkeypatch):
    x, y = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8), torch.arange(8) % 2
    held = load([(x, y)])
    monkeypatch.setattr(samples, "LARGE", 0)
    late = load([(x, y)])
    assert late.clients[0].x.values.data_ptr() == x.data_ptr()
    assert late.fingerprint == held.fingerprint
    assert torch.equal(everything(late.clients[0])[0], everything(held.clients[0])[0])


# -- PyTorch data sets ---------------------------------------------------------------------------------


class Photographs(Dataset):
    """Counts what is read; random where it is told."""

    def __init__(self, size=8, is_random=False, broken=()):
        self.size, self.is_random, self.broken, self._read = size, is_random, dict(broken), []
        self.targets = [number % 2 for number in range(size)]

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        self._read.append(number)
        x = torch.full((2, 3), float(number))
        x = x + torch.rand(()) + np.random.rand() if self.is_random else x
        return self.broken.get(number, lambda x: x)(x), number % 2


def test_a_random_data_set_is_read_anew_in_every_epoch_and_the_same_again():
    data = load([{"train": Photographs(is_random=True), "test": Photographs(4)}], split=(1, 0, 0))
    client = data.clients[0]
    first, again, later = (client.take(client.train, draw) for draw in (DRAW, DRAW, DRAW._replace(epoch=1)))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], later[0])
    some = torch.tensor([5, 2])
    assert torch.equal(client.take(some, DRAW)[0], first[0][some])
    assert torch.equal(client.split("test")[0][:, 0, 0], torch.arange(4.0))  # as they are
    assert load([{"train": Photographs(is_random=True)}]).fingerprint == load([Photographs(is_random=True)]).fingerprint


def test_reading_moves_no_generator():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    client = load([Photographs(is_random=True)]).clients[0]
    client.split("train")
    assert torch.equal(torch.rand(2), expected)


def test_test_samples_that_would_be_augmented_are_said(caplog):
    with caplog.at_level(logging.WARNING, "idiolect"):
        load({"a": Photographs(is_random=True), "b": Photographs()})
        assert "the data set of client 'a' draws random numbers" in caplog.text
        caplog.clear()
        load([{"train": Photographs(is_random=True), "val": Photographs(2), "test": Photographs(2)}])
        assert not caplog.text


def test_a_large_data_set_that_says_its_labels_is_not_read(monkeypatch):
    monkeypatch.setattr(samples, "LARGE", 0)
    whole = Photographs(200)
    data = load([Subset(whole, range(0, 200, 2))])
    assert set(whole._read) <= {0, 2, 4}
    assert len(data.clients[0].indices) == 100
    assert everything(data.clients[0])[0][:, 0, 0].tolist() == list(range(0, 200, 2))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda x: x * float("nan"), "sample 5: its inputs are NaN"),
        (lambda x: x[:1], r"sample 5: its inputs have the shape \[1, 3\]"),
        (lambda x: x / {}, "sample 5 cannot be read: .*TypeError"),
        (lambda x: x + torch.rand(()), "sample 5: reading it draws random numbers, which the first samples did not"),
    ],
)
def test_what_is_wrong_with_a_sample_is_said_when_it_is_read(monkeypatch, broken, said):
    monkeypatch.setattr(samples, "LARGE", 0)
    data = load({"n ö": Photographs(broken={5: broken})})
    with pytest.raises(DataError, match=f"client 'n ö', {said}"):
        everything(data.clients[0])


def test_labels_that_are_not_what_reading_gives(monkeypatch):
    monkeypatch.setattr(samples, "LARGE", 0)
    wrong = Photographs()
    wrong.targets = [1] * 8
    with pytest.raises(DataError, match="reading it gives the target 0, but it was 1"):
        everything(load([wrong]).clients[0])


def test_a_data_set_with_a_generator_of_its_own_is_refused():
    draw = torch.Generator()
    with pytest.raises(DataError, match="from one of its own"):
        load([Photographs(broken={0: lambda x: x + torch.rand((), generator=draw)})])
