"""What the server accepts of a client: each check names what is wrong."""

import json

import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.flower.messages import Message
from idiolect.flower.validation import (
    UploadValidator,
    check_reply,
    one_line,
    read_scores,
    read_training,
    require_success,
)
from idiolect.testing import tiny_plan

REQUEST = Message({"kind": "train", "client": 1, "round": 3})


@pytest.fixture(scope="module")
def plan():
    return tiny_plan("ditto")


@pytest.fixture(scope="module")
def download(plan):
    server = first_server(plan.server(0))
    return plan.method.download(plan.server(0), server, plan.data.seen)


@pytest.fixture
def slots(plan, download):
    return dict(train(plan, 1, 0, None, download.of(1)).upload.slots)


def test_a_real_upload_is_accepted(plan, download, slots):
    UploadValidator(plan, 0, download).check(1, slots)


def test_an_upload_that_does_not_match_says_what_is_unexpected_and_what_is_missing(plan, download, slots):
    slots["params"] = {**slots["params"], "0.weight": torch.ones(2)}
    message = (
        r"does not match the method: unexpected params 0\.weight \[2\] torch\.float32; "
        r"missing params 0\.weight \[\d+, 4\] torch\.float32$"
    )
    with pytest.raises(InputError, match=message):
        UploadValidator(plan, 0, download).check(1, slots)


def test_a_slot_that_is_not_declared_is_refused(plan, download, slots):
    with pytest.raises(InputError, match="it uploads diary, which the method does not declare"):
        UploadValidator(plan, 0, download).check(1, {**slots, "diary": {"page": torch.ones(1)}})


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Message({"kind": "train", "client": 2, "round": 3}), "it is a reply of client 2, not of client 1"),
        (Message({"kind": "train", "round": 3}), "the field client must be of type int, but is None"),
        (
            Message({"kind": "evaluate", "client": 1, "round": 2}),
            "it replies to 'evaluate' of round 2, not to 'train' of round 3",
        ),
        (
            Message({"kind": "train", "client": 1, "round": 3}, {"upload": bytes(2_000_000)}),
            "it has 2.0 MB, more than max_message_mb=1",
        ),
        (Message({"client": 1, "problem": "the disk is full"}), "the disk is full"),
    ],
)
def test_a_reply_must_belong_to_its_request(reply, problem):
    with pytest.raises(InputError, match=problem):
        check_reply(REQUEST, reply, max_mb=1.0)


def test_an_error_of_the_transport_is_raised_as_it_is():
    with pytest.raises(InputError, match="the node is gone"):
        require_success("the node is gone")


@pytest.mark.parametrize("report", [{"steps": -1}, {"samples": -1}, {"loss": float("inf")}])
def test_impossible_training_is_refused(report):
    with pytest.raises(InputError, match="are impossible; steps and samples must not be negative"):
        read_training(Message({"loss": 0.5, "steps": 1, "samples": 4, **report}))


@pytest.mark.parametrize(
    "score",
    [
        ["view", "test", "loss", float("inf"), 3],
        ["view", "test", "loss", 0.5, -1],
        ["view", "test", "loss\n", 0.5, 3],
        ["view", "test", "l" * 101, 0.5, 3],
    ],
)
def test_scores_that_cannot_be_stored_are_refused(score):
    with pytest.raises(InputError, match="is impossible; names must be printable and numbers finite"):
        read_scores(Message({"scores": json.dumps([score])}))


def test_a_text_of_a_client_stays_one_short_line():
    assert one_line("a\nb\x1b[2J") == "a b [2J"
    assert len(one_line("x" * 10_000)) == 300
