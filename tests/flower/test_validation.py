"""What the server accepts of a client: each check names what is wrong."""

import pytest
import torch

from idiolect.core import codec
from idiolect.core.errors import InputError
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.flower.messages import Message, sign
from idiolect.flower.validation import (
    UploadValidator,
    check_reply,
    one_line,
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


def check(plan, download, slots, samples=None):
    samples = int(plan.context(1, 0).samples) if samples is None else samples
    return UploadValidator(plan, 0, download).read(1, Message({}, {"upload": codec.encode(slots)}), samples)


def test_a_real_upload_is_accepted(plan, download, slots):
    check(plan, download, slots)


def test_an_upload_that_does_not_match_says_what_is_unexpected_and_what_is_missing(plan, download, slots):
    slots["params"] = {**slots["params"], "0.weight": torch.ones(2)}
    message = (
        r"does not match the method: unexpected params 0\.weight \[2\] torch\.float32; "
        r"missing params 0\.weight \[\d+, 4\] torch\.float32$"
    )
    with pytest.raises(InputError, match=message):
        check(plan, download, slots)


def test_a_slot_that_is_not_declared_is_refused(plan, download, slots):
    with pytest.raises(InputError, match="it uploads diary, which the method does not declare"):
        check(plan, download, {**slots, "diary": {"page": torch.ones(1)}})


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
        check_reply(REQUEST, reply if "problem" in reply.fields else sign(reply, "key"), max_mb=1.0, key="key")


def test_an_error_of_the_transport_is_raised_as_it_is():
    with pytest.raises(InputError, match="the node is gone"):
        require_success("the node is gone")


def test_a_reply_under_a_new_head_is_refused():
    reply = sign(Message({"kind": "train", "client": 1, "round": 2, "nonce": "a"}, {"upload": b"old"}), "key")
    request = Message({"kind": "train", "client": 1, "round": 3, "nonce": "b"})
    new_head = Message({**reply.fields, "round": 3, "nonce": "b"}, reply.payloads)
    with pytest.raises(InputError, match="it is not signed with the key that the client had when it joined"):
        check_reply(request, new_head, max_mb=1.0, key="key")
    with pytest.raises(InputError, match="it replies to an earlier request"):
        check_reply(request, sign(Message({**reply.fields, "round": 3}), "key"), max_mb=1.0, key="key")


def test_the_head_counts_as_well():
    with pytest.raises(InputError, match=r"it has 2\.0 MB, more than max_message_mb=1"):
        check_reply(REQUEST, Message({"client": 1, "scores": "x" * 2_000_000}), max_mb=1.0, key="key")


def test_an_upload_counts_for_the_samples_that_the_client_joined_with(plan, download, slots):
    with pytest.raises(InputError, match=r"it counts for .* samples, but had 5 when it joined"):
        check(plan, download, slots, samples=5)


def test_a_shape_is_refused_before_memory_is_taken_for_it(plan, download, slots, monkeypatch):
    huge = codec.encode({"params": {"0.weight": torch.zeros(1000)}}, {"params": {"0.weight": torch.arange(1000) < 1}})
    reply = Message({}, {"upload": huge})
    monkeypatch.setattr(codec, "decode", lambda data: pytest.fail("it was decoded"))
    with pytest.raises(InputError, match="does not match the method"):
        UploadValidator(plan, 0, download).read(1, reply, 5)


def test_only_an_upload_is_asked_for(plan, download):
    with pytest.raises(InputError, match="but only an upload was asked for"):
        UploadValidator(plan, 0, download).read(1, Message({}, {"upload": b"", "more": b""}), 5)


def test_a_text_of_a_client_stays_one_short_line():
    assert one_line("a\nb\x1b[2J") == r"a\nb\x1b[2J"
    assert len(one_line("x" * 10_000)) == len(one_line("\n" * 10_000)) == 300
