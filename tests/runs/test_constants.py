"""Constants: what a most frequent class or a mean scores, beside every method."""

import pytest
import torch
from torch import nn

import idiolect
from idiolect.comparison.tables import footnotes, markdown, scores_table

QUICK = {"rounds": 1, "engine": "loop"}


def given(*parts):
    """A client whose training and test data are what is said."""
    (train, test) = (torch.tensor(part) for part in parts)
    return {which: (torch.randn(len(y), 2), y) for which, y in (("train", train), ("val", train), ("test", test))}


CLASSES = {"a": given([0, 0, 1], [0, 0, 0, 1]), "b": given([1, 1, 1, 2], [1, 2])}
NUMBERS = {"a": given([1.0, 3.0], [2.0, 4.0]), "b": given([10.0, 12.0], [11.0])}


def constants(data, **settings):
    return idiolect.run("fedavg", data, model="linear", **QUICK, **settings).summary["constants"]


def test_the_most_frequent_class_of_each_client_and_of_all():
    """Class 1 is the most frequent of all: of a's four test labels one is right, of b's two one."""
    scores = constants(CLASSES)
    assert scores["own"]["weighted"] == pytest.approx((3 + 1) / 6)
    assert scores["shared"]["weighted"] == pytest.approx((1 + 1) / 6)
    assert (scores["own"]["worst"], scores["own"]["clients"]) == (0.5, 2)


def test_the_mean_of_each_client_and_of_all():
    """Means 2 and 11, and 6.5 of all four."""
    scores = constants(NUMBERS, metrics="mae")
    assert scores["own"]["mean"] == pytest.approx((1.0 + 0.0) / 2)
    assert scores["shared"]["mean"] == pytest.approx(((4.5 + 2.5) / 2 + 4.5) / 2)


def test_one_logit_and_times_to_events_have_constants_too():
    two = {"a": given([0, 1, 1], [1, 0])}
    one = idiolect.run("fedavg", two, model=nn.Linear(2, 1), loss="bce", **QUICK).summary["constants"]
    assert one["own"]["mean"] == 0.5
    times = {"a": given([1.0, -2.0, 3.0], [1.0, 2.0, -3.0])}
    assert constants(times, loss="cox")["own"]["mean"] == 0.5


def test_a_metric_that_cannot_score_a_constant_has_none():
    def picky(outputs, y):
        if len(outputs.unique(dim=0)) == 1:
            raise ValueError("a constant")
        return 0.0

    summary = idiolect.run("fedavg", CLASSES, model="linear", metrics={"picky": picky}, **QUICK).summary
    assert "constants" not in summary


def test_a_comparison_has_them_as_rows_and_marks_who_does_not_beat_them():
    board = idiolect.compare("local, fedavg", NUMBERS, model="linear", seeds=2, lr=1e-6, **QUICK)
    assert [row.beats_constants for row in board.rows] == [False, False]
    names = [row[0].text for row in scores_table(board).rows]
    assert names[2:] == ["a constant per client", "one constant for all"]
    assert all(name.endswith("‡") for name in names[:2])
    assert any(line.startswith("‡ does not beat a constant") for line in footnotes(board))
    assert "| a constant per client |" in markdown(board)


def test_all_metrics_are_in_summary_and_tables():
    settings = {"metrics": "macro_f1, accuracy, log_loss", "model": "linear", **QUICK}
    result = idiolect.run("fedavg", CLASSES, **settings)
    tests = result.metrics.filter(split="test", metric="log_loss", point="personal")
    assert set(result.summary["others"]) == {"accuracy", "log_loss"}
    assert result.summary["others"]["log_loss"]["mean"] == pytest.approx(tests["value"].mean())
    assert result.summary["others"]["log_loss"]["direction"] == "lower"
    board = idiolect.compare("local, fedavg", CLASSES, seeds=1, **settings)
    (table,) = (table for table in idiolect.comparison.tables.leaderboard_tables(board) if table.name == "others")
    assert [(column.head, column.best) for column in table.columns[1:]] == [("accuracy", "high"), ("log_loss", "low")]
    assert board["fedavg"].others["log_loss"].mean == result.summary["others"]["log_loss"]["weighted"]
