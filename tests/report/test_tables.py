"""The tables of a report: their numbers and their statistics."""

import csv
import json
import math

import pytest
from scipy import stats

from idiolect.comparison.constants import TITLES
from idiolect.comparison.tables import costs_table, leaderboard_tables, scores_table, unseen_table
from idiolect.report.scores import common_target, cost_to_reach
from idiolect.report.tables import clients_table, runs_table, study_tables, targets_table, wins_table


def column(table, head):
    """The values of a column by method."""
    place = [each.head for each in table.columns].index(head)
    return {row[0].value: row[place].value for row in table.rows}


def test_the_leaderboard_holds_the_numbers_of_the_comparison(comparison, study):
    written = {each["method"]: each for each in json.loads((comparison / "comparison.json").read_text())["methods"]}
    known = {
        scores_table: {
            "selected": lambda each: each["selected"]["mean"],
            "last": lambda each: each["last"]["mean"],
            "best (by test)": lambda each: each["best"]["mean"],
            "mean of clients": lambda each: each["mean"],
            "bottom decile": lambda each: each["bottom_decile"],
            "worst client": lambda each: each["worst"],
            "std of clients": lambda each: each["std"],
        },
        costs_table: {
            "MB up": lambda each: each["mb_up"],
            "MB down": lambda each: each["mb_down"],
            "gradients": lambda each: each["relative_gradients"],
            "seconds": lambda each: each["seconds"],
            "memory (MB)": lambda each: each["peak_memory_mb"],
        },
        unseen_table: {"selected": lambda each: each["unseen"]["mean"]},
    }
    for build, heads in known.items():
        for head, value in heads.items():
            factor = 1 if build is costs_table else 100
            values = {method: factor * value(each) for method, each in written.items()}
            shown = column(build(study.comparison), head)
            assert {method: shown.pop(method) for method in values} == values, head
            assert set(shown) == (set(TITLES.values()) if build is scores_table else set())


def test_a_csv_file_has_the_units_and_intervals_of_the_table(study):
    row, (first, *_) = study.comparison.rows[0], csv.DictReader(scores_table(study.comparison).csv().splitlines())
    assert float(first["selected (%)"]) == 100 * row.selected.mean
    assert float(first["± selected (%)"]) == 100 * row.selected.half
    assert float(first["std of clients (%)"]) == 100 * row.std
    assert list(first)[:5] == ["method", "selected (%)", "± selected (%)", "last (%)", "± last (%)"]


def test_intervals_are_shown_beside_means(study):
    standing = study.comparison.rows[0]
    row = scores_table(study.comparison).rows[0]
    assert row[1].text == f"{100 * standing.selected.mean:.2f} ± {100 * standing.selected.half:.2f}"


def test_paired_tests_agree_with_scipy(study):
    table = costs_table(study.comparison)
    raw = column(table, "p")
    assert math.isnan(raw.pop(study.baseline))
    for method, p in raw.items():
        a, b = study.comparison[method].scores, study.comparison[study.baseline].scores
        test = stats.ttest_rel(a, b)
        if not math.isnan(test.pvalue):
            assert p == pytest.approx(test.pvalue)
            points = [100 * bound for bound in test.confidence_interval(0.95)]
            assert [column(table, "low")[method], column(table, "high")[method]] == pytest.approx(points)


def test_holm_corrects_step_by_step(study):
    table = costs_table(study.comparison)
    raw, corrected = column(table, "p"), column(table, "p (Holm)")
    del raw[study.baseline]
    order = sorted(raw, key=raw.get)
    largest = 0.0
    for place, method in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * raw[method]))
        assert corrected[method] == pytest.approx(largest)


def test_clients_won_tied_and_lost_are_all_clients(study):
    table = wins_table(study)
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
    assert cost_to_reach(study, method, target).rounds == pytest.approx(sum(rounds) / len(rounds), nan_ok=True)
    assert column(targets_table(study), "90 %: rounds")[method] == pytest.approx(sum(rounds) / len(rounds), nan_ok=True)


def test_a_target_beyond_all_is_never_reached(study):
    assert all(math.isnan(each) for each in cost_to_reach(study, study.methods[0], 2.0))


def test_every_client_and_every_run_is_listed(study):
    assert len(clients_table(study).rows) == len(study.first("fedavg").scores)
    assert len(runs_table(study).rows) == 2 * len(study.methods)


def test_the_leaderboard_is_that_of_the_comparison(study):
    tables = leaderboard_tables(study.comparison)
    assert [table.name for table in tables] == ["leaderboard", "costs", "unseen"]
    assert study_tables(study)[:3] == list(tables)


def test_every_table_has_all_formats(study):
    for table in study_tables(study):
        assert len(table.csv().splitlines()) == len(table.rows) + 1
        assert len(table.markdown().splitlines()) == len(table.rows) + 2
        assert table.latex().count(r"\\") == len(table.rows) + 1
