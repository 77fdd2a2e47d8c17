"""Names that may hold anything, as names of files, on terminals and in pictures."""

import pytest

from idiolect.core.names import file_name, picture_text, shorten_apart, slug, visible
from idiolect.core.tables import Cell, Column, Table

HOSTILE = [
    "a/../../..", "..", ".", "-", "/etc/passwd", "C:\\x", "a\0b", "x" * 300, "ü" * 300, "\x1b[31mred", "two\nlines",
    "[bold]", "ward $\\frac$ 1", "=cmd|' /C calc'!A0", "a|b", "<script>alert(1)</script>", "\u202eevil", "~^\\%",
    "name", "Name ", " Name", "n.ame", "n-ame", "n ame",
]  # fmt: skip


def test_a_file_name_stays_in_its_folder_is_short_and_belongs_to_one_text(tmp_path):
    names = [file_name(text) for text in HOSTILE]
    assert len(set(names)) == len(HOSTILE)
    for name in names:
        (tmp_path / name).touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_no_text_has_an_empty_file_name():
    assert file_name("")
    assert slug("..")
    assert slug("")


def test_a_plain_name_is_its_own_file_name():
    assert file_name("hospital-3.b_c") == "hospital-3.b_c"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_visible_can_be_printed_on_one_line(text):
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("width", [12, 24])
def test_names_that_are_shortened_stay_apart(width):
    names = [f"Klinikum der Universität, {part}" for part in ("Station 1", "Station 2", "Ambulanz am Park, Station 1")]
    names += [f"fedlag(flayer(ditto(lam={lam}))), 30 rounds of all clients" for lam in (0.25, 0.5, 1)] + ["ward 1"]
    shown = shorten_apart(names, width)
    assert len(set(shown)) == len(names)
    assert max(map(len, shown)) <= width
    assert shown[-1] == "ward 1"


def test_a_picture_takes_no_name_for_a_formula():
    from matplotlib.cbook import is_math_text

    assert not any(is_math_text(picture_text(text, width)) for text in HOSTILE for width in (None, 8))


def test_tables_as_files_hold_names_as_text():
    names = [*HOSTILE, "+1", "-1", "@a"]
    rows = tuple((Cell(name, name), Cell("1", -1.0)) for name in names)
    table = Table("t", "T", "", (Column("client"), Column("=score")), rows)
    assert table.csv().count("\n") == table.markdown().count("\n") - 1 == len(rows) + 1
    assert not any(line.strip('"').startswith(("=", "+", "-", "@")) for line in table.csv().splitlines())
    assert ",-1.0\n" in table.csv()
    assert all(line.replace("\\|", "").count("|") == 3 for line in table.markdown().splitlines())
    assert "<script" not in table.markdown().replace("\\<", "")
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}\%" in table.latex()
