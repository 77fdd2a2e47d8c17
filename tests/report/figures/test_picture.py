"""Pictures: files for a paper, and elements of a page that follow its colours."""

import re
import sys

import pytest

from idiolect.core.errors import InputError, MissingExtraError, OptionError
from idiolect.core.names import shorten
from idiolect.report import write_figures
from idiolect.report.figures.picture import COLOURS, INK, draw_heatmap, embed_svg, make_picture


def line(figure):
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=COLOURS[2])
    axes.set_xlabel("round")


@pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_picture_is_saved_in_the_format_of_its_suffix(tmp_path, suffix, start):
    path = tmp_path / f"a.{suffix}"
    make_picture("a", "A", "", line).save(path)
    assert path.read_bytes().startswith(start)


def test_a_picture_is_the_same_every_time(tmp_path):
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        make_picture("a", "A", "", line).save(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_in_a_page_a_picture_takes_the_colours_of_the_page():
    svg = make_picture("a", "A & B", "", line).inline()
    assert svg.startswith('<svg role="img" aria-label="A &amp; B"')
    assert "var(--c2)" in svg
    assert COLOURS[2] not in svg
    assert "currentColor" in svg
    assert INK not in svg
    assert ">round</text>" in svg


def test_ids_of_two_pictures_do_not_clash():
    ids = [set(re.findall(r' id="([^"]+)"', make_picture(name, "", "", line).inline())) for name in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', make_picture("a", "", "", line).inline())
    assert used
    assert all((first or second) in ids[0] for first, second in used)


def test_comments_and_metadata_are_left_out():
    text = "<?xml?><svg width='1'><metadata>who</metadata><!-- what --><g/></svg>".replace("'", '"')
    assert embed_svg(text, "x", "t") == '<svg role="img" aria-label="t"><g/></svg>'


def test_a_bar_is_as_long_as_a_tall_map():
    lengths = []

    def paint(figure):
        axes = figure.subplots()
        draw_heatmap(axes, [[0.0, 1.0]] * 30, "gain", [f"ward {n}" for n in range(30)], [1, 2])
        figure.draw_without_rendering()
        lengths.extend(each.get_window_extent().height for each in figure.axes)

    make_picture("a", "A", "", paint, (2.5, 7.0)).inline()
    assert lengths[1] == pytest.approx(lengths[0], rel=0.01)


def test_long_names_are_cut():
    assert shorten("fedavg") == "fedavg"
    assert len(shorten("x" * 50)) == 24


def test_every_figure_and_table_becomes_a_file(comparison, tmp_path):
    paths = write_figures([comparison / "fedavg", comparison / "pfedgate"], tmp_path / "f", ["png"])
    names = {path.name for path in paths}
    assert {"curve-rounds.png", "curve-bytes.png", "curve-seconds.png", "partition.png", "pfedgate-tree.png"} <= names
    assert {f"{table}.{suffix}" for table in ("leaderboard", "costs", "against", "targets", "clients", "runs")
            for suffix in ("csv", "md", "tex")} <= names  # fmt: skip
    assert all(path.stat().st_size > 0 for path in paths)


def test_an_unknown_format_is_refused(comparison, tmp_path):
    with pytest.raises(OptionError, match="there is no format 'bmp'; choose pdf, svg, png"):
        write_figures([comparison], tmp_path / "f", ["bmp"])
    assert not (tmp_path / "f").exists()


def test_a_file_in_the_place_of_the_folder_is_named(comparison, tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(InputError, match="f cannot be written"):
        write_figures([comparison / "fedavg"], tmp_path / "f")


def test_without_matplotlib_it_is_said_what_to_install(comparison, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[plot\]"):
        write_figures([comparison], tmp_path / "f")
    assert not (tmp_path / "f").exists()
