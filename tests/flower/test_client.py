"""A client's desk: it answers for itself only, and its state is what the server's last accepted round left."""

import json

import pytest
import torch

from idiolect.core import codec
from idiolect.flower.client import Desk, guarded
from idiolect.flower.messages import Parcel
from idiolect.testing import tiny_plan


@pytest.fixture
def plan():
    return tiny_plan("ditto")


def ask(plan, kind="train", round=0, **head):
    server = plan.method.server_init(plan.server(round))
    download = plan.method.download(plan.server(round), server, plan.data.seen)
    return Parcel({"kind": kind, "client": 0, "round": round, **head}, {"shared": codec.encode(download.of(0))})


def own(desk, at=None):
    state = desk.states.clients([0], at)[0]
    return None if state is None else state["ditto.own"]["0.weight"]


def test_it_sends_the_declared_upload_and_nothing_else(plan):
    told = Desk(plan, 0).answer(ask(plan))
    assert set(told.head) == {"client", "kind", "round", "loss", "steps", "samples", "scores", "fresh"}
    assert set(told.slots()[0]) <= set(plan.method.sends)


def test_it_says_who_it_is_with_the_same_key_after_a_restart(plan, tmp_path):
    first = Desk(plan, 0, tmp_path).answer(Parcel({"kind": "hello"}))
    second = Desk(plan, 0, tmp_path).answer(Parcel({"kind": "hello"}))
    other = Desk(plan, 1).answer(Parcel({"kind": "hello"}))
    assert first == second
    assert first.head["key"] != other.head["key"]
    assert json.loads(first.head["data"]) == {
        "classes": 3, "words": None, "x": [[4], "float32"], "y": [[], "int64"],
    }  # fmt: skip


def test_a_round_that_is_asked_for_twice_gives_the_same(plan, tmp_path):
    desk = Desk(plan, 0, tmp_path)
    desk.answer(ask(plan))
    first = desk.answer(ask(plan, round=1, accepted=0))
    assert Desk(plan, 0, tmp_path).answer(ask(plan, round=1, accepted=0)) == first


def test_a_round_that_came_to_nothing_is_forgotten(plan):
    desk = Desk(plan, 0)
    desk.answer(ask(plan))
    accepted = own(desk)
    for round in (1, 2, 3):
        desk.answer(ask(plan, round=round, accepted=0))
        assert torch.equal(own(desk, at=0), accepted), "what counts is still there"
    assert not torch.equal(own(desk), accepted)


def test_a_new_run_of_the_same_federation_starts_from_nothing(plan):
    desk = Desk(plan, 0)
    first = desk.answer(ask(plan))
    desk.answer(ask(plan, round=1, accepted=0))
    assert desk.answer(ask(plan)) == first


def test_evaluating_changes_no_state_and_keeps_the_model(plan):
    desk = Desk(plan, 0)
    desk.answer(ask(plan))
    before = own(desk)
    told = desk.answer(ask(plan, "evaluate", accepted=0, unseen=False))
    assert torch.equal(own(desk), before)
    assert {score[2] for score in json.loads(told.head["scores"])} >= {"loss", "accuracy"}
    assert torch.equal(desk.models.clients([0])[0]["params"]["0.weight"], before)


def test_the_model_of_the_selected_round_is_kept(plan):
    desk = Desk(plan, 0)
    for round in range(3):
        accepted = {"accepted": round - 1} if round else {}
        desk.answer(ask(plan, round=round, **accepted))
        selected = {"selected": 0} if round else {}
        desk.answer(ask(plan, "evaluate", round, accepted=round, unseen=False, **selected))
    desk.answer(Parcel({"kind": "finish", "client": 0, "selected": 0}))
    assert torch.equal(desk.models.clients([0], 0)[0]["params"]["0.weight"], own_of_first_round(plan))


def own_of_first_round(plan):
    desk = Desk(plan, 0)
    desk.answer(ask(plan))
    return own(desk)


@pytest.mark.parametrize(
    ("parcel", "problem"),
    [
        (
            Parcel({"kind": "dance"}),
            "the server asks for 'dance', but this client knows hello, train,",
        ),
        (Parcel({"kind": "train", "client": 1}), "the server asks client 1, but this is client 0"),
        (Parcel({}), "it says kind=None, where a value of type str belongs"),
        (Parcel({"kind": "train", "round": 0}, {"shared": b"no"}), "these 2 bytes are not a message of slots"),
    ],
)
def test_what_goes_wrong_is_said(plan, parcel, problem):
    told = guarded(parcel, 0, Desk(plan, 0).answer)
    assert told.head["problem"].startswith(problem)
    assert not told.bodies


def test_what_fails_unexpectedly_does_not_quote_data():
    def fail(_):
        raise ValueError("patient 4711 has no age")

    told = guarded(Parcel({"kind": "train"}), 3, fail)
    assert told.head == {"client": 3, "problem": "it failed with ValueError; its own log says where"}
