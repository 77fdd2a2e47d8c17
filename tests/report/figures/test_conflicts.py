"""Conflicts, unit by unit: changes of the choice are marked, and runs under other settings stand side by side."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

import idiolect
from idiolect.core.errors import OptionError, RunFolderError
from idiolect.report import write_conflicts
from idiolect.report.figures import conflicts
from idiolect.report.figures.records import Records


def records(**values) -> Records:
    """Records of a server: for each name its values after rounds 1, 2, ..."""
    rows = [(at + 1, -1, name, float(v)) for name, each in values.items() for at, v in enumerate(each)]
    frame = pl.DataFrame(rows, schema=["round", "client", "metric", "value"], orient="row")
    run = SimpleNamespace(records=frame, seed=0, method="fedlag")
    return Records(study=None, run=run)


CHOSEN = {
    "conflicts/a": (3, 1, 0, 2),
    "conflicts/b": (0, 2, 2, 2),
    "personal/a": (1, 0, 0, 1),
    "personal/b": (0, 1, 1, 0),
    "personal_changes": (0, 1, 1, 2),
}


def test_changes_of_the_choice_are_marked_and_counted():
    held = records(**CHOSEN)
    assert conflicts.changes(held) == [1, 3]
    (picture,) = conflicts.conflicts(held)
    assert "The choice changed after 2 rounds (dashed lines)." in picture.caption
    axes = Figure().subplots()
    conflicts.draw_conflicts(axes, held)
    assert [line.get_xdata()[0] for line in axes.lines] == [1, 3]
    dots = axes.collections[-1].get_offsets()
    assert sorted(map(tuple, np.asarray(dots).tolist())) == [(0.5, 0.5), (1.5, 1.5), (2.5, 1.5), (3.5, 0.5)]


@pytest.mark.parametrize(
    ("counts", "words"), [((0, 0, 0, 0), "never changed."), ((0, 0, 1, 1), "changed after one round (dashed lines).")]
)
def test_the_caption_says_how_often(counts, words):
    (picture,) = conflicts.conflicts(records(**{**CHOSEN, "personal_changes": counts}))
    assert f"The choice {words}" in picture.caption


def test_gains_and_the_bound_are_drawn_also_where_there_is_none(tmp_path):
    held = records(
        **{"gain/a": (0, 0.5), "gain/b": (0, 2), "gainers/a": (0, 1), "gainers/b": (0, 0.5)},
        bound_least=(0, 0.1),
        bound_most=(0, 0.2),
    )
    for picture in conflicts.gains(held):
        picture.save(tmp_path / f"{picture.name}.png")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """FedAvg with conflicts recorded, on identical and on different clients."""
    folder = tmp_path_factory.mktemp("two")
    usual = {"clients": 6, "rounds": 3, "model": "mlp", "engine": "loop"}
    found = {}
    for partition in ("iid", "dirichlet:0.1"):
        place = folder / partition.partition(":")[0]
        found[partition] = idiolect.run("fedlag(k=0, xi=0)", "digits", partition=partition, out=place, **usual)
    idiolect.run("fedavg", "digits", out=folder / "fedavg", **usual)
    return folder


def test_runs_under_different_partitions_stand_beside_each_other(two, monkeypatch):
    drawn = {}
    keep = conflicts.draw_conflicts

    def draw(axes, held, high=None, has_bar=True):
        keep(axes, held, high, has_bar)
        drawn[held.run.summary["partition"]["name"]] = (held.by_unit("conflicts"), high, has_bar, axes)

    monkeypatch.setattr(conflicts, "draw_conflicts", draw)
    path = write_conflicts([two / "iid", two / "dirichlet"], two / "new" / "two.png")
    assert path.stat().st_size > 5000
    (alike, high, first_bar, left), (apart, same, last_bar, right) = drawn.values()
    assert [left.get_title(), right.get_title()] == list(drawn) == ["iid", "dirichlet(alpha=0.1)"]
    assert alike.sum() < apart.sum()
    assert high == same == max(alike.max(), apart.max())
    assert (first_bar, last_bar) == (False, True)


def test_two_runs_with_one_partition_are_told_apart_by_their_methods(two, monkeypatch):
    titles = []
    monkeypatch.setattr(conflicts, "picture_text", lambda text, _: titles.append(text) or text)
    write_conflicts([two / "iid", two / "iid"], two / "same.svg")
    assert titles == ["iid: fedlag(fedavg, k=0, xi=0.0)"] * 2


def test_what_cannot_be_drawn_is_refused(two):
    with pytest.raises(RunFolderError, match="none of the runs recorded conflicts; run fedlag"):
        write_conflicts([two / "fedavg"], two / "none.png")
    with pytest.raises(OptionError, match=r"two.txt has no known format; choose one of .pdf, .svg, .png"):
        write_conflicts([two / "iid"], two / "two.txt")
    with pytest.raises(RunFolderError, match="there is no folder"):
        write_conflicts([two / "nowhere"], two / "two.png")
    assert not (two / "two.txt").exists()
