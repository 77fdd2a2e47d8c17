"""A client's service: it replies for itself only, and continues from the last round that the server accepted."""

import json

import pytest
import torch

from idiolect.core import codec
from idiolect.engines.slots import first_server, sent_names
from idiolect.flower.client import ClientService, report_problems
from idiolect.flower.messages import Message
from idiolect.testing import tiny_plan


@pytest.fixture
def plan():
    return tiny_plan("ditto")


def make_request(plan, kind="train", round=0, **fields):
    server = first_server(plan.server(round))
    download = plan.method.download(plan.server(round), server, plan.data.seen)
    return Message({"kind": kind, "client": 0, "round": round, **fields}, {"shared": codec.encode(download.of(0))})


def own(service, at=None):
    state = service.states.clients([0], at)[0]
    return None if state is None else state["ditto.own"]["0.weight"]


def test_it_sends_the_declared_upload_and_nothing_else(plan):
    reply = ClientService(plan, 0).handle(make_request(plan))
    counts = {"steps", "samples", "gradients", "passes"}
    assert set(reply.fields) == {"client", "kind", "round", "loss", *counts, "scores", "state", "proof"}
    assert set(codec.decode(reply.payloads["upload"])[0]) <= set(sent_names(plan.method))


def test_it_says_who_it_is_with_the_same_key_after_a_restart(plan, tmp_path):
    first = ClientService(plan, 0, tmp_path).handle(Message({"kind": "hello"}))
    second = ClientService(plan, 0, tmp_path).handle(Message({"kind": "hello"}))
    other = ClientService(plan, 1).handle(Message({"kind": "hello"}))
    assert first == second
    assert first.fields["key"] != other.fields["key"]
    assert json.loads(first.fields["data"]) == {
        "classes": 3, "words": None, "x": [[4], "float32"], "y": [[], "int64"],
    }  # fmt: skip


def test_a_round_that_is_asked_for_twice_gives_the_same(plan, tmp_path):
    service = ClientService(plan, 0, tmp_path)
    service.handle(make_request(plan))
    first = service.handle(make_request(plan, round=1, accepted=0))
    assert ClientService(plan, 0, tmp_path).handle(make_request(plan, round=1, accepted=0)) == first


def test_a_round_that_was_not_accepted_is_forgotten(plan):
    service = ClientService(plan, 0)
    service.handle(make_request(plan))
    accepted = own(service)
    for round in (1, 2, 3):
        service.handle(make_request(plan, round=round, accepted=0))
        assert torch.equal(own(service, at=0), accepted), "what counts is still there"
    assert not torch.equal(own(service), accepted)


def test_a_new_run_of_the_same_federation_starts_from_nothing(plan):
    service = ClientService(plan, 0)
    first = service.handle(make_request(plan))
    service.handle(make_request(plan, round=1, accepted=0))
    assert service.handle(make_request(plan)) == first


def test_evaluating_changes_no_state_and_keeps_the_model(plan):
    service = ClientService(plan, 0)
    service.handle(make_request(plan))
    before = own(service)
    reply = service.handle(make_request(plan, "evaluate", accepted=0, unseen=False))
    assert torch.equal(own(service), before)
    assert {score[2] for score in json.loads(reply.fields["scores"])} >= {"loss", "accuracy"}
    assert torch.equal(service.models.clients([0])[0]["params"]["0.weight"], before)


def test_the_model_of_the_selected_round_is_kept(plan):
    service = ClientService(plan, 0)
    for round in range(3):
        accepted = {"accepted": round - 1} if round else {}
        service.handle(make_request(plan, round=round, **accepted))
        selected = {"selected": 0} if round else {}
        service.handle(make_request(plan, "evaluate", round, accepted=round, unseen=False, **selected))
    service.handle(Message({"kind": "finish", "client": 0, "selected": 0}))
    assert torch.equal(service.models.clients([0], 0)[0]["params"]["0.weight"], own_of_first_round(plan))


def own_of_first_round(plan):
    service = ClientService(plan, 0)
    service.handle(make_request(plan))
    return own(service)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            Message({"kind": "dance"}),
            "the server asks for 'dance', but this client knows hello, train,",
        ),
        (Message({"kind": "train", "client": 1}), "the server asks client 1, but this is client 0"),
        (Message({}), "the field kind must be of type str, but is None"),
        (Message({"kind": "train", "round": 0}, {"shared": b"no"}), "these 2 bytes are not a message of slots"),
    ],
)
def test_what_goes_wrong_is_said(plan, message, problem):
    reply = report_problems(ClientService(plan, 0).handle, message, 0)
    assert reply.fields["problem"].startswith(problem)
    assert not reply.payloads


def test_what_fails_unexpectedly_does_not_quote_data():
    def fail(_):
        raise ValueError("patient 4711 has no age")

    reply = report_problems(fail, Message({"kind": "train"}), 3)
    assert reply.fields == {"client": 3, "problem": "it failed with ValueError; see the client's own log"}
