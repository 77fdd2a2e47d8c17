"""From summaries to a leaderboard: order, differences, marks and texts, on summaries written by hand."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from idiolect.comparison.conclusion import summarize
from idiolect.comparison.leaderboard import Comparison, rank
from idiolect.comparison.tables import (
    footnotes,
    leaderboard_tables,
    markdown,
    protocol_lines,
    table_csv,
    write_comparison,
)


def summary(score, metric="accuracy", direction="higher", gradients=100, point="personal", refused=0):
    counts = {"scored": 4, "undefined": 0, "clients": 4}

    def block(value):
        return {"weighted": value, "mean": value, "std": 0.1, "worst": 0.2, "bottom_decile": 0.3, "round": 5} | counts

    return {
        "metric": metric,
        "direction": direction,
        "point": point,
        "selection": "sample-weighted validation",
        "headline": "weighted",
        metric: {"selected": block(score), "last": block(score - 0.01), "best": block(score + 0.01)},
        "bytes_up": 2_000_000,
        "bytes_down": 3_000_000,
        "bytes_eval": 0,
        "steps": 100,
        "gradients": gradients,
        "passes": 0,
        "seconds": 4.0,
        "peak_memory_mb": 300.0,
        "refused": refused,
        "refusals": {"not finite": refused} if refused else {},
    }


def comparison(runs, baseline="fedavg", metric="accuracy", direction="higher", skipped=None):
    seeds = list(next(iter(runs.values())))
    protocol = {
        "metric": metric,
        "direction": direction,
        "selection": "sample-weighted validation",
        "headline": "weighted",
        "baseline": baseline,
        "seeds": seeds,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4, "hashes": {str(seed): f"hash{seed}" for seed in seeds}},
        "fedavg_gradients": 100,
        "rounds": 5,
        "participation": 0.5,
        "local_epochs": 1,
        "batch_size": 32,
        "lr": 0.05,
        "optimizer": "sgd",
        "model": "mlp",
    }
    return Comparison(protocol, rank(runs, baseline, dict.fromkeys(seeds, 100)), (), skipped or {})


def texts(board):
    """What a terminal shows: the rows of every table."""
    return [[[cell.text for cell in row] for row in table.shorten().rows] for table in leaderboard_tables(board)]


THREE = {
    "fedavg": {0: summary(0.50), 1: summary(0.60), 2: summary(0.70)},
    "ditto": {0: summary(0.60, gradients=200), 1: summary(0.71, gradients=200), 2: summary(0.78, gradients=200)},
    "finetune(fedavg)": {0: summary(0.55, point="adapted"), 1: summary(0.6), 2: summary(0.74, refused=2)},
}


def test_the_best_comes_first_and_nan_last():
    runs = {**THREE, "broken": dict.fromkeys((0, 1, 2), summary(math.nan))}
    assert [each.method for each in comparison(runs).rows] == ["ditto", "finetune(fedavg)", "fedavg", "broken"]


def test_lower_can_be_better():
    runs = {name: {0: summary(value, "mse", "lower")} for name, value in (("fedavg", 0.5), ("local", 0.4))}
    board = comparison(runs, metric="mse", direction="lower")
    assert [each.method for each in board.rows] == ["local", "fedavg"]
    assert "lower is better" in leaderboard_tables(board)[0].title


def test_differences_are_paired_with_the_baseline():
    """ditto - fedavg is 0.10, 0.11, 0.08: mean 0.0966667, s = 0.0152753, t = 10.961, so p = 0.0082."""
    board = comparison(THREE)
    ditto = board["ditto"]
    assert ditto.versus.difference == pytest.approx(0.0966667, abs=1e-6)
    assert ditto.versus.p == pytest.approx(0.0082, abs=1e-4)
    assert ditto.p_holm == pytest.approx(2 * ditto.versus.p)
    assert board["fedavg"].versus is None


def test_costs_and_marks():
    board = comparison(THREE)
    assert board["ditto"].relative_gradients == 2.0
    assert board["ditto"].needs_more_gradients
    assert not board["fedavg"].needs_more_gradients
    assert (board["ditto"].mb_up, board["ditto"].mb_down) == (2.0, 3.0)
    scores, costs = texts(board)
    assert "finetune(fedavg)†" in [row[0] for row in scores]
    assert [row[5] for row in costs if row[0] == "ditto"] == ["2.00*"]
    notes = "\n".join(footnotes(board))
    assert "more gradients" in notes
    assert "adapted a copy" in notes
    assert "2 uploads were left out" in notes


def test_a_larger_budget_is_not_marked_for_round_off():
    runs = {"fedavg": {0: summary(0.5)}, "other": {0: summary(0.5, gradients=100.2)}}
    assert not comparison(runs)["other"].needs_more_gradients


def test_one_seed_shows_no_interval():
    board = comparison({name: {0: by_seed[0]} for name, by_seed in THREE.items()})
    scores, costs = texts(board)
    assert "±" not in scores[0][1]
    assert "one seed" in costs[0][1]
    assert "one seed" in " ".join(protocol_lines(board))


def test_one_method_has_costs_and_no_differences():
    costs = leaderboard_tables(comparison({"fedavg": THREE["fedavg"]}))[1]
    assert costs.title == "cost per run"
    assert [column.head for column in costs.shorten().columns] == ["method", "MB up/down", "gradients", "s"]


def test_the_protocol_is_stated():
    text = " ".join(protocol_lines(comparison(THREE)))
    for part in ("accuracy", "weighted by samples", "validation", "hash0 (seed 0)", "5 rounds", "participation 0.5"):
        assert part in text
    assert "optimistic" in text


def test_clients_that_never_trained_are_apart():
    runs = {
        name: {seed: each | {"unseen": {"selected": {"weighted": 0.25 + seed / 4}}} for seed, each in by_seed.items()}
        for name, by_seed in THREE.items()
    }
    board = comparison({name: {seed: by_seed[seed] for seed in (0, 1)} for name, by_seed in runs.items()})
    assert board["ditto"].unseen.mean == 0.375
    assert texts(board)[2][0] == ["ditto", "37.50 ± 158.83"]
    assert len(leaderboard_tables(comparison(THREE))) == 2


def test_skipped_methods_are_named():
    board = comparison(THREE, skipped={"fedmd": "it needs public data"})
    assert "skipped fedmd: it needs public data" in footnotes(board)


def test_files_hold_the_same_numbers(tmp_path):
    board = comparison(THREE)
    write_comparison(board, tmp_path)
    held = json.loads((tmp_path / "comparison.json").read_text())
    rows = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert [each["method"] for each in held["methods"]] == [row["method"] for row in rows]
    assert float(rows[0]["selected_mean"]) == held["methods"][0]["selected"]["mean"]
    assert rows[-1]["versus_p"] == ""
    assert held["methods"][-1]["versus"]["p"] is None
    assert (tmp_path / "comparison.md").read_text() == markdown(board) == str(board)
    assert "| ditto | **69.67 ± 22.54** |" in markdown(board)
    assert not list(tmp_path.glob(".*"))


def test_csv_has_one_line_per_method():
    assert len(table_csv(comparison(THREE)).splitlines()) == 1 + len(THREE)


# -- what stands ------------------------------------------------------------------------------------------------


def of_seeds(**scores):
    return {method: {seed: summary(score) for seed, score in enumerate(values)} for method, values in scores.items()}


FAR = {
    "fedavg": (0.70, 0.71, 0.72),
    "ditto": (0.80, 0.812, 0.821),
    "apfl": (0.60, 0.612, 0.621),
    "fedper": (0.6, 0.9, 0.71),
}


def test_bold_is_what_differs_from_the_baseline_by_more_than_chance():
    scores, costs, *_ = leaderboard_tables(comparison(of_seeds(**FAR)))
    assert [[scores.rows[row][0].value, column] for row, column in scores.bold] == [["ditto", 1]]
    assert {costs.rows[row][0].value for row, _ in costs.bold} == {"ditto", "apfl"}
    one_seed = leaderboard_tables(comparison(of_seeds(fedavg=(0.1,), ditto=(0.9,))))
    assert not any(table.bold for table in one_seed)
    assert not any("Bold" in table.note for table in one_seed)


def test_a_report_says_what_came_out_and_how_sure_it_is():
    sure = summarize(comparison(of_seeds(**FAR)))
    assert sure.startswith(
        "Over 3 seeds, ditto has the best score, a test accuracy of 81.10 % (95 % interval 78.48 to 83.72)"
    )
    assert "+10.10 points beside fedavg" in sure
    assert "is more than chance explains (Holm-corrected p <.001)" in sure
    unsure = summarize(comparison(of_seeds(fedavg=(0.7, 0.8), ditto=(0.9, 0.8))))
    assert "may be chance (Holm-corrected p = " in unsure
    assert "a test accuracy of 85.00 % (95 % interval 21.47 to 100.00)" in unsure, "no accuracy is above 100 %"
    assert "One seed says nothing of chance" in summarize(comparison(of_seeds(fedavg=(0.7,), ditto=(0.9,))))
    board = comparison(of_seeds(**FAR))
    poor = replace(board, rows=tuple(replace(row, beats_constants=False) for row in board.rows))
    assert summarize(poor) == f"{sure} No method is better than predicting a constant."
    assert summarize(comparison(of_seeds(fedavg=(0.9, 0.9), ditto=(0.7, 0.8)))).startswith(
        "No method has a better score"
    )
    assert summarize(comparison(of_seeds(fedavg=(math.nan,)))) == "The test accuracy of fedavg is undefined."
