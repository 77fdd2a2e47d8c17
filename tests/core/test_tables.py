"""One table model: what is bold, three formats, and a short form for terminals."""

import csv
import io
import math

from idiolect.core.tables import Cell, Column, Table

TABLE = Table(
    "t",
    "T",
    "",
    (Column("method"), Column("score_1 (%)", "high"), Column("s", "low")),
    (
        (Cell("a(b=1)", "a(b=1)"), Cell("91.23 ± 0.10", 0.91234), Cell("–", math.nan)),
        (Cell("b", "b"), Cell("90.00 ± 0.20", 0.9), Cell("1.5", 1.5)),
    ),
    frozenset({(0, 1)}),
)


def test_csv_holds_unrounded_numbers():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["method", "score_1 (%)", "s"],
        ["a(b=1)", "0.91234", ""],
        ["b", "0.9", "1.5"],
    ]


def test_markdown_marks_what_is_bold():
    assert TABLE.markdown().splitlines() == [
        "| method | score_1 (%) | s |",
        "| --- | ---: | ---: |",
        "| a(b=1) | **91.23 ± 0.10** | – |",
        "| b | 90.00 ± 0.20 | 1.5 |",
    ]


def test_latex_is_a_tabular_with_escaped_text():
    assert TABLE.latex().splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & score\_1 (\%) & s \\",
        r"\midrule",
        r"a(b=1) & \textbf{91.23 $\pm$ 0.10} & -- \\",
        r"b & 90.00 $\pm$ 0.20 & 1.5 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


SHORT = Table(
    "t",
    "T",
    "",
    (Column("method"), Column("worst client", "high", "worst"), Column("memory", short="")),
    ((Cell("a", "a"), Cell("91.23 ± 0.10", 0.9123, "91.23"), Cell("394", 394.0)),),
)


def test_a_short_table_has_short_heads_and_texts_and_leaves_columns_out():
    short = SHORT.shorten()
    assert [column.head for column in short.columns] == ["method", "worst"]
    assert [cell.text for cell in short.rows[0]] == ["a", "91.23"]
    assert short.rows[0][1].value == 0.9123
    assert short.columns[1].best == "high"


def test_a_table_without_short_forms_stays_as_it_is():
    assert TABLE.shorten() == TABLE


def test_what_is_bold_stays_with_its_column():
    assert TABLE.pick([0, 1]).bold == {(0, 1)}
    assert TABLE.pick([1, 2]).bold == {(0, 0)}
    assert TABLE.pick([0, 2]).bold == set()


def test_groups_of_columns_and_second_places_are_written_in_every_form():
    heads = (Column("method"), Column("a", has_interval=True, spread="std", group="D"), Column("b", group="D"))
    cells = (Cell("x", "x"), Cell("1 ± 2", 1.0, None, 2.0), Cell("3", 3.0))
    table = Table("t", "", "", heads, (cells,), frozenset({(0, 1)}), frozenset({(0, 2)}))
    assert table.latex().splitlines()[2:6] == [
        r"\multicolumn{1}{l}{} & \multicolumn{2}{c}{D} \\",
        r"\cmidrule(lr){2-3}",
        r"method & a & b \\",
        r"\midrule",
    ]
    assert r"\textbf{1 $\pm$ 2} & \underline{3}" in table.latex()
    assert table.csv() == "method,D: a,std D: a,D: b\nx,1.0,2.0,3.0\n"
    assert table.markdown().splitlines()[2] == "| x | **1 ± 2** | <u>3</u> |"
    assert table.pick([0, 2]).second == {(0, 1)}
