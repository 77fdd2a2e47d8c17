"""Rounds with real clients equal those of the simulation, and no client can stop or spoil a round."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from idiolect.core import codec
from idiolect.core.errors import IdiolectError
from idiolect.flower.loopback import Loopback, LoopbackEngine
from idiolect.flower.messages import Parcel
from idiolect.flower.settings import Deployment
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.testing import play, tiny_plan

LENIENT = Deployment(quorum=0.5, timeout=0.2, attempts=2)
BAD = 1


def same(a, b):
    return a.keys() == b.keys() and all(
        a[slot].keys() == b[slot].keys() and all(torch.equal(a[slot][n], b[slot][n]) for n in a[slot]) for slot in a
    )


def assert_states(found, expected):
    for index, state in expected.items():
        assert (found[index] is None) == (state is None), index
        assert state is None or same(found[index], state), index


def test_scores_right_after_local_training_come_along():
    plan = tiny_plan("ditto", participation=0.6, after_local=True)
    engine = LoopbackEngine(plan)
    rows = play(engine.plan, lambda _: engine).rows
    assert {row[3] for row in rows} >= {"view", "after_local"}
    assert rows == play(plan).rows


def test_the_server_keeps_receipts_instead_of_states():
    plan = tiny_plan("ditto")
    engine, store = LoopbackEngine(plan), Store(None)
    RoundLoop(engine.plan, engine, store).run()
    assert store.clients([0])[0] == {"receipt": {"round": torch.tensor(plan.rounds - 1)}}


# -- clients that misbehave ----------------------------------------------------------------------------


class Misbehaving(Loopback):
    """A post on whose way the training answers of client 1 are changed; None is no answer."""

    def __init__(self, desks, change: Callable[[Parcel], Parcel | str | None]) -> None:
        super().__init__(desks)
        self.change = change

    def send(self, parcels):
        tickets = super().send(parcels)
        for node, parcel in parcels.items():
            if node == 100 + BAD and parcel.head["kind"] == "train":
                changed = self.change(self._answers.pop(tickets[node]))
                if changed is not None:
                    self._answers[tickets[node]] = changed
        return tickets


def with_head(**values):
    return lambda told: replace(told, head={**told.head, **values})


def with_slots(change):
    def changed(told):
        slots, masks = told.slots()
        return replace(told, bodies={"upload": codec.encode(change(slots), masks)})

    return changed


def spoilt(value):
    return with_slots(lambda slots: {**slots, "params": {n: leaf * value for n, leaf in slots["params"].items()}})


FAULTS = {
    "silence": (lambda _: None, "client 1 did not answer in 0.2 s"),
    "a crash": (lambda _: "the ClientApp ended", "client 1 did not answer: the ClientApp ended"),
    "garbage": (lambda told: replace(told, bodies={"upload": b"\x80\x04garbage"}), "these 9 bytes are not a message"),
    "cut short": (
        lambda told: replace(told, bodies={"upload": told.bodies["upload"][:-5]}),
        "are not a message of slots: it is cut short",
    ),
    "not finite": (spoilt(float("nan")), "is not finite"),
    "wrong shapes": (
        with_slots(lambda slots: {**slots, "params": {n: leaf[:1] for n, leaf in slots["params"].items()}}),
        "does not fit the method",
    ),
    "a slot is missing": (with_slots(lambda slots: {"params": slots["params"]}), "does not fit the method"),
    "a slot too many": (
        with_slots(lambda slots: {**slots, "diary": {"page": torch.ones(1)}}),
        "it sent diary, which the method does not declare",
    ),
    "another client's number": (with_head(client=2), "it answers as client 2"),
    "another round": (with_head(round=7), "it answers 'train' of round 7"),
    "an old number for a loss": (with_head(loss="0.1"), "it says loss='0.1'"),
    "impossible steps": (with_head(steps=-1), "it says that it took -1 steps"),
    "scores that are none": (with_head(scores="[[1, 2]]"), "it sent the score [1, 2], which is none"),
    "scores that cannot be read": (with_head(scores="[["), "its scores cannot be read"),
    "scores that cannot be stored": (
        with_head(scores=json.dumps([["view", "test", "\ud800", 0.5, 3]])),
        "which cannot be",
    ),
    "scores of too many samples": (with_head(scores=f'[["view", "test", "loss", 0.5, {10**30}]]'), "which cannot be"),
    "a log line of its own": (with_head(problem="no\n2026 INFO complete"), "sent: no 2026 INFO complete"),
    "too much": (
        lambda told: replace(told, bodies={"upload": bytes(3_000_000)}),
        "it sent 3.0 MB, and max_message_mb=2 are read",
    ),
    "its own problem": (with_head(problem="the disk is full"), "refused what client 1 sent: the disk is full"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_goes_on_without_a_client_that_misbehaves(fault, caplog):
    change, reason = FAULTS[fault]
    plan = tiny_plan("ditto", rounds=2)
    deployment = replace(LENIENT, max_message_mb=2.0)
    engine = LoopbackEngine(plan, deployment, lambda desks: Misbehaving(desks, change))
    store = Store(None)
    RoundLoop(engine.plan, engine, store).run()
    assert reason in caplog.text
    assert store.clients([BAD])[BAD] is None, "what it sent was not accepted"
    assert store.clients([0])[0] is not None
    assert all(bool(torch.isfinite(leaf).all()) for leaf in store.server()["params"].values())


def test_a_client_that_was_refused_is_welcome_again_from_the_state_it_had(caplog):
    plan = tiny_plan("ditto", rounds=3)
    rounds = iter([spoilt(1.0), spoilt(float("inf")), spoilt(1.0)])
    engine = LoopbackEngine(plan, LENIENT, lambda desks: Misbehaving(desks, lambda told: next(rounds)(told)))
    store = Store(None)
    asked = []
    original = engine.desks[BAD].train
    engine.desks[BAD].train = lambda ask: asked.append(ask.head.get("accepted")) or original(ask)
    RoundLoop(engine.plan, engine, store).run()
    assert asked == [None, 0, 0], "after the refused round 1 it goes on from round 0"
    assert int(store.clients([BAD])[BAD]["receipt"]["round"]) == 2


class Leaving(Loopback):
    """A post that client 1 is not connected to for some rounds."""

    def __init__(self, desks) -> None:
        super().__init__(desks)
        self.away = False

    def nodes(self):
        return super().nodes() - ({100 + BAD} if self.away else set())


def test_a_client_that_comes_back_after_ten_rounds_goes_on_from_its_state(caplog):
    plan = tiny_plan("ditto", rounds=13)
    engine, store = LoopbackEngine(plan, LENIENT, Leaving), Store(None)
    post = engine.roster.post

    def watch(progress):
        post.away = 1 <= progress.round < 11

    seen = []
    original = engine.desks[BAD].train
    engine.desks[BAD].train = lambda ask: seen.append((ask.head["round"], ask.head.get("accepted"))) or original(ask)
    RoundLoop(engine.plan, engine, store).run(watch)
    assert seen == [(0, None), (1, 0), (12, 1)]
    assert caplog.text.count("no part of client 1") == 10
    scored = {row[0] for row in store.rows() if row[1] == BAD and row[3] == "view"}
    assert scored == {0, 1, 12}


def test_too_few_answers_end_the_run_with_the_state_saved():
    plan = tiny_plan("fedavg", rounds=2)
    deployment = replace(LENIENT, quorum=1.0)
    engine = LoopbackEngine(plan, deployment, lambda desks: Misbehaving(desks, lambda _: None))
    store = Store(None)
    with pytest.raises(IdiolectError, match=r"round 1: 4 of 5 clients answered and 5 are needed; .* run the app again"):
        RoundLoop(engine.plan, engine, store).run()
    assert store.fact("next_round") is None


def test_nobody_connected_ends_the_run_with_a_reason():
    engine = LoopbackEngine(tiny_plan("fedavg"), LENIENT, Leaving)
    engine.roster.post.nodes = frozenset
    started = time.monotonic()
    with pytest.raises(IdiolectError, match="only 0 of 5 clients are connected and 3 are needed"):
        RoundLoop(engine.plan, engine, Store(None)).run()
    assert time.monotonic() - started < 5


# -- a server that is restarted ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ditto", "lgmix", "fedfomo"])
@pytest.mark.parametrize("crash", [False, True], ids=["between rounds", "in the middle of a round"])
def test_a_restarted_server_goes_on_and_clients_keep_their_states(method, crash, tmp_path):
    whole = play(tiny_plan(method, participation=0.6))
    plan = tiny_plan(method, participation=0.6)
    store = Store(tmp_path / "server.sqlite")
    engine = LoopbackEngine(plan, folder=tmp_path, store=store)
    rounds = iter([False, False, True])
    RoundLoop(engine.plan, engine, store).run(stop=lambda: next(rounds))
    if crash:  # clients train the next round, but the server ends before it is committed
        experiment = RoundLoop(engine.plan, engine, store)
        experiment.store = Dying(store)
        with pytest.raises(KeyboardInterrupt):
            experiment.run()
    store.close()
    for desk in engine.desks.values():
        desk.close()

    store = Store(tmp_path / "server.sqlite")
    engine = LoopbackEngine(plan, folder=tmp_path, store=store)
    RoundLoop(engine.plan, engine, store).run()
    assert same(store.server(), whole.server)
    assert_states(engine.states(plan.data.seen), whole.clients)
    assert [row for row in store.rows() if row[3] != "state"] == [row for row in whole.rows if row[3] != "state"]


class Dying:
    """A store whose process ends when a round is to be committed."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def commit(self, *arguments):
        raise KeyboardInterrupt


def test_a_client_without_its_state_starts_anew_and_the_log_says_so(tmp_path, caplog):
    plan = tiny_plan("ditto", rounds=2)
    engine, store = LoopbackEngine(plan), Store(None)

    def watch(progress):
        engine.desks[BAD].states = Store(None)

    RoundLoop(engine.plan, engine, store).run(watch)
    assert "client 1 has lost its state and started anew" in caplog.text


def test_logs_are_quiet_when_all_is_well(caplog):
    caplog.set_level(logging.WARNING)
    engine = LoopbackEngine(tiny_plan("ditto"))
    RoundLoop(engine.plan, engine, Store(None)).run()
    assert not caplog.records
