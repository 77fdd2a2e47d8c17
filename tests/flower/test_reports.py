"""What clients report in numbers: declared names, once each, in their ranges."""

import json
import math

import pytest

from idiolect.contract import Download
from idiolect.core.errors import InputError
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.flower.messages import Message, write_scores
from idiolect.flower.reports import ScoreValidator, count_steps, read_effort, read_training
from idiolect.testing import tiny_plan

SIZES = {"train": 4, "val": 2, "test": 3}
GOOD = ["personal", "test", "accuracy", 0.5, 3]


@pytest.fixture(scope="module")
def plan():
    return tiny_plan("ditto")


def read(plan, text):
    return ScoreValidator(plan, 0, Download({}), ("personal",)).read(1, Message({"scores": text}), SIZES)


@pytest.mark.parametrize(
    "report", [{"steps": -1}, {"steps": 2**70}, {"steps": 9}, {"samples": -1}, {"samples": 2**70}, {"loss": math.inf}]
)
def test_impossible_training_is_refused(report):
    with pytest.raises(InputError, match="are impossible; steps must lie between 0 and 8"):
        read_training(Message({"loss": 0.5, "steps": 1, "samples": 4, **report}), most_steps=8)


@pytest.mark.parametrize("report", [{"gradients": -1}, {"gradients": 2**70}, {"passes": -1}, {"passes": 2**70}])
def test_impossible_effort_is_refused(report):
    with pytest.raises(InputError, match="in 2 steps are impossible; both must lie between 0 and 30000"):
        read_effort(Message({"gradients": 4, "passes": 2, **report}), steps=2)


@pytest.mark.parametrize(
    "report", [{"steps": True}, {"steps": 1.0}, {"steps": "1"}, {"samples": False}, {"loss": 1}, {"loss": "nan"}]
)
def test_training_is_reported_in_the_declared_types(report):
    with pytest.raises(InputError, match=f"the field {next(iter(report))} must be of type"):
        read_training(Message({"loss": 0.5, "steps": 1, "samples": 4, **report}), most_steps=8)


@pytest.mark.parametrize("method", ["ditto", "fedrep", "fedavg", "fedalt"])
def test_a_client_takes_no_more_steps_than_counted(method):
    plan = tiny_plan(method)
    server = first_server(plan.server(0))
    download = plan.method.download(plan.server(0), server, plan.data.seen)
    for index in plan.data.seen:
        assert train(plan, index, 0, None, download.of(index)).steps == count_steps(plan, index, 0)


@pytest.mark.parametrize(
    ("score", "problem"),
    [
        (["personal", "test", "accuracy", 77.0, 3], "its accuracy of 77 is impossible; 0 to 1 is allowed"),
        (["personal", "test", "loss", math.inf, 3], "its loss of inf is impossible"),
        (["personal", "test", "loss", 1e300, 3], "its loss of 1e\\+300 is impossible"),
        (
            ["personal", "test", "accuracy", 1.0, 2**39],
            "scores 5.49756e\\+11 test samples, but had 3 when it joined",
        ),
        (["personal", "test", "accuracy", 1.0, -1], "it scores -1 test samples"),
        (["personal", "train", "accuracy", 1.0, 4], "which nobody asked for"),
        (["after_local", "test", "accuracy", 1.0, 3], "which nobody asked for"),
        (["personal", "test", "loss\n", 0.5, 3], "which nobody asked for"),
        (["personal", "test", "\ud800", 0.5, 3], "which nobody asked for"),
        (["state", "", "diary", 0.5, 0], "which nobody asked for"),
        (["personal", "test", "accuracy", 1, 3], "is not a score"),
        (["personal", "test", "accuracy", 1.0, True], "is not a score"),
        (["personal", "test", "accuracy", "1.0", 3], "is not a score"),
        (["personal", "test", "accuracy", 1.0, 3, "unseen"], "is not a score"),
        (["personal", "test", "accuracy", -0.1, 3], "its accuracy of -0.1 is impossible"),
        (["personal", "public", "accuracy", 1.0, 3], "which nobody asked for"),
        ([1, 2], "is not a score"),
        ("score", "is not a score"),
    ],
)
def test_a_score_that_cannot_be_is_refused(plan, score, problem):
    with pytest.raises(InputError, match=problem):
        ScoreValidator(plan, 0, first_download(plan), ("personal",)).read(
            1, Message({"scores": json.dumps([score])}), SIZES
        )


def first_download(plan):
    return plan.method.download(plan.server(0), first_server(plan.server(0)), plan.data.seen)


@pytest.mark.parametrize("text", ["5", "null", "true", '"x"', "{}", "1e999", "[[", "NaN", "", "[" * 100_000])
def test_what_is_no_list_of_scores_is_refused(plan, text):
    if text == "{}":
        text = '{"a": 1}'
    with pytest.raises(InputError):
        read(plan, text)


def test_a_score_counts_once(plan):
    with pytest.raises(InputError, match="accuracy'\\) twice"):
        read(plan, json.dumps([GOOD] * 1000))


def test_undefined_metrics_and_the_extremes_are_accepted(plan):
    entries = [["personal", "test", "accuracy", math.nan, 3], ["personal", "val", "accuracy", 1.0, 2]]
    assert write_scores(read(plan, json.dumps(entries))) == json.dumps(entries)
