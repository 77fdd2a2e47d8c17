"""Partitions can be looked at, in the terminal and in a file."""

from __future__ import annotations

import sys

import pytest
import torch

from idiolect.core.errors import InputError, MissingExtraError
from idiolect.data import Federation, load
from idiolect.report import draw_partition, partition_text


def federation(clients: int, classes: int = 10, **options) -> Federation:
    x, y = torch.rand(40 * clients, 2), torch.arange(40 * clients) % classes
    return Federation.from_pool(x, y, "pathological:2", clients=clients, **options)


def numbers(clients: int = 3) -> Federation:
    return Federation.from_pool(torch.rand(300, 2), torch.rand(300), "quantity:1", clients=clients)


def test_the_terminal_shows_a_row_per_client_and_a_column_per_class():
    text = partition_text(federation(5, unseen=0.2)).splitlines()
    assert text[0].split() == ["client", "samples", *map(str, range(10))]
    assert len(text) == 1 + 5 + 2
    assert sum("*" in line for line in text[1:6]) == 1
    assert all(line.count("·") == 8 for line in text[1:6])
    assert text[-1] == "* unseen: never trains"


def test_the_terminal_stays_readable_for_many_clients_and_classes():
    text = partition_text(federation(60, classes=100)).splitlines()
    assert "100 classes" in text[0]
    assert text[41] == "... and 20 more"
    assert max(map(len, text)) < 125


def test_without_classes_the_terminal_shows_sizes():
    text = partition_text(numbers()).splitlines()
    assert len(text) == 4
    assert "█" * 30 in "".join(text)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_written(tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    draw_partition(federation(5, unseen=0.2), path)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("made", [federation(45), federation(60, classes=100), numbers(), load("digits", clients=5)])
def test_every_size_can_be_drawn(tmp_path, made):
    draw_partition(made, tmp_path / "picture.svg")
    assert made.partition in (tmp_path / "picture.svg").read_text()


def test_named_clients_are_named_in_the_picture(tmp_path):
    x, y = torch.rand(20, 2), torch.arange(20) % 2
    draw_partition(Federation.from_clients({"north": (x, y), "south": (x, y)}), tmp_path / "picture.svg")
    assert "<!-- north -->" in (tmp_path / "picture.svg").read_text()


def test_the_same_federation_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_partition(federation(5), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must end in \.pdf, \.svg, \.png"):
        draw_partition(federation(5), tmp_path / "picture.bmp")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[plot\]"):
        draw_partition(federation(5), tmp_path / "picture.png")
