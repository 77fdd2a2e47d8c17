"""The tables of a report: their numbers, their statistics, and the three formats."""

import csv
import io
import json
import math

import pytest
from scipy import stats

from idiolect.core.tables import Cell, Column, Table
from idiolect.report.curves import common_target, reached
from idiolect.report.tables import clients, leaderboard, runs, tables, targets, versus


def column(table, head):
    """The values of a column by method."""
    place = [each.head for each in table.columns].index(head)
    return {row[0].value: row[place].value for row in table.rows}


def test_the_leaderboard_holds_the_numbers_of_the_comparison(comparison, study):
    written = {each["method"]: each for each in json.loads((comparison / "comparison.json").read_text())["methods"]}
    table = leaderboard(study)
    for head, found in {
        "selected (%)": lambda each: each["selected"]["mean"],
        "last": lambda each: each["last"]["mean"],
        "best (by test)": lambda each: each["best"]["mean"],
        "bottom decile": lambda each: each["bottom_decile"],
        "worst client": lambda each: each["worst"],
        "std of clients": lambda each: each["std"],
        "unseen clients": lambda each: each["unseen"]["mean"],
        "MB up": lambda each: each["mb_up"],
        "MB down": lambda each: each["mb_down"],
        "seconds": lambda each: each["seconds"],
        "memory (MB)": lambda each: each["peak_memory_mb"],
    }.items():
        assert column(table, head) == {method: found(each) for method, each in written.items()}, head


def test_intervals_are_shown_beside_means(study):
    standing = study.comparison.rows[0]
    row = leaderboard(study).rows[0]
    assert row[1].text == f"{100 * standing.selected.mean:.2f} ± {100 * standing.selected.half:.2f}"


def test_paired_tests_agree_with_scipy(study):
    table = versus(study)
    raw = column(table, "p")
    assert study.baseline not in raw
    for method, p in raw.items():
        a, b = study.comparison[method].scores, study.comparison[study.baseline].scores
        test = stats.ttest_rel(a, b)
        if not math.isnan(test.pvalue):
            assert p == pytest.approx(test.pvalue)
            interval = test.confidence_interval(0.95)
            assert (column(table, "low")[method], column(table, "high")[method]) == pytest.approx(interval)


def test_holm_corrects_step_by_step(study):
    table = versus(study)
    raw, corrected = column(table, "p"), column(table, "p (Holm)")
    order = sorted(raw, key=raw.get)
    largest = 0.0
    for place, method in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * raw[method]))
        assert corrected[method] == pytest.approx(largest)


def test_clients_won_tied_and_lost_are_all_clients(study):
    table = versus(study)
    total = sum(len(run.scores) for run in study.runs[study.baseline].values())
    for row in table.rows:
        assert sum(cell.value for cell in row[-3:]) == total


def test_time_to_target_is_where_the_curve_first_reaches_it(study):
    target = common_target(study, 0.9)
    assert target == pytest.approx(0.9 * max(each.best.mean for each in study.comparison.rows))
    method = study.methods[0]
    rounds = []
    for run in study.runs[method].values():
        rounds.append(next((r for r, v in zip(*run.curve, strict=True) if v >= target), math.nan))
    assert reached(study, method, target).rounds == pytest.approx(sum(rounds) / len(rounds), nan_ok=True)
    assert column(targets(study), "90 %: rounds")[method] == pytest.approx(sum(rounds) / len(rounds), nan_ok=True)


def test_a_target_beyond_all_is_never_reached(study):
    assert all(math.isnan(each) for each in reached(study, study.methods[0], 2.0))


def test_every_client_and_every_run_is_listed(study):
    assert len(clients(study).rows) == len(study.first("fedavg").scores)
    assert len(runs(study).rows) == 2 * len(study.methods)


# -- formats ----------------------------------------------------------------------------------------------

TABLE = Table(
    "t",
    "T",
    "",
    (Column("method"), Column("score_1 (%)", "high"), Column("s", "low")),
    (
        (Cell("a(b=1)", "a(b=1)"), Cell("91.23 ± 0.10", 0.91234), Cell("–", math.nan)),
        (Cell("b", "b"), Cell("90.00 ± 0.20", 0.9), Cell("1.5", 1.5)),
    ),
)


def test_csv_holds_unrounded_numbers():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["method", "score_1 (%)", "s"],
        ["a(b=1)", "0.91234", ""],
        ["b", "0.9", "1.5"],
    ]


def test_markdown_marks_the_best():
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


def test_every_table_has_all_formats(study):
    for table in tables(study):
        assert len(table.csv().splitlines()) == len(table.rows) + 1
        assert len(table.markdown().splitlines()) == len(table.rows) + 2
        assert table.latex().count(r"\\") == len(table.rows) + 1
