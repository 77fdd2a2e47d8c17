"""Rounds with real clients equal those of the simulation, and no client can stop or spoil a round."""

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from idiolect.core import codec
from idiolect.core.errors import IdiolectError
from idiolect.engines.presence import Presence
from idiolect.flower.loopback import LoopbackEngine, LoopbackTransport
from idiolect.flower.messages import Message, sign
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
        assert (found.get(index) is None) == (state is None), index
        assert state is None or same(found[index], state), index


def test_scores_right_after_local_training_and_of_the_shared_model_come_along():
    plan = tiny_plan("ditto", participation=0.6, after_local=True, eval_global=True)
    engine = LoopbackEngine(plan)
    rows = play(engine.plan, lambda _: engine).rows
    assert {row[3] for row in rows} >= {"personal", "after_local", "global"}
    assert rows == play(plan).rows


def test_the_server_keeps_receipts_instead_of_states():
    plan = tiny_plan("ditto")
    engine, store = LoopbackEngine(plan), Store(None)
    RoundLoop(engine.plan, engine, store).run()
    assert store.clients([0])[0] == {"receipt": {"round": torch.tensor(plan.rounds - 1)}}


# -- clients that misbehave ----------------------------------------------------------------------------


class Misbehaving(LoopbackTransport):
    """A transport that changes the training replies of client 1; None is no reply."""

    def __init__(self, services, change: Callable[[Message], Message | str | None]) -> None:
        super().__init__(services)
        self.change = change

    def send(self, requests):
        message_ids = super().send(requests)
        for node, request in requests.items():
            if node == 100 + BAD and request.fields["kind"] == "train":
                changed = self.change(self._replies.pop(message_ids[node]))
                if isinstance(changed, Message) and "problem" not in changed.fields:
                    with contextlib.suppress(ValueError):  # a message that cannot be signed is sent as it is
                        changed = sign(changed, self.services[node].key)
                if changed is not None:
                    self._replies[message_ids[node]] = changed
        return message_ids


def with_fields(**values):
    return lambda reply: replace(reply, fields={**reply.fields, **values})


def with_slots(change):
    def change_reply(reply):
        slots, masks = codec.decode(reply.payloads["upload"])
        return replace(reply, payloads={"upload": codec.encode(change(slots), masks)})

    return change_reply


def with_params_times(value):
    return with_slots(lambda slots: {**slots, "params": {n: leaf * value for n, leaf in slots["params"].items()}})


FAULTS = {
    "silence": (lambda _: None, "client 1 did not reply in 0.2 s"),
    "a crash": (lambda _: "the ClientApp ended", "client 1 did not reply: the ClientApp ended"),
    "garbage": (
        lambda reply: replace(reply, payloads={"upload": b"\x80\x04garbage"}),
        "these 9 bytes are not a message",
    ),
    "cut short": (
        lambda reply: replace(reply, payloads={"upload": reply.payloads["upload"][:-5]}),
        "are not a message of slots: it is cut short",
    ),
    "not finite": (with_params_times(float("nan")), "is not finite"),
    "wrong shapes": (
        with_slots(lambda slots: {**slots, "params": {n: leaf[:1] for n, leaf in slots["params"].items()}}),
        "does not match the method",
    ),
    "a slot is missing": (with_slots(lambda slots: {"params": slots["params"]}), "does not match the method"),
    "a slot too many": (
        with_slots(lambda slots: {**slots, "diary": {"page": torch.ones(1)}}),
        "it uploads diary, which the method does not declare",
    ),
    "another client's number": (with_fields(client=2), "it is a reply of client 2, not of client 1"),
    "another round": (with_fields(round=7), "it replies to 'train' of round 7, not to 'train' of round 0"),
    "a loss that is a text": (with_fields(loss="0.1"), "the field loss must be of type float, but is '0.1'"),
    "impossible steps": (with_fields(steps=-1), "steps=-1, samples="),
    "scores of another form": (with_fields(scores="[[1, 2]]"), "[1, 2] is not a score"),
    "scores that cannot be read": (with_fields(scores="[["), "the field scores is not valid JSON"),
    "scores that cannot be stored": (
        with_fields(scores=json.dumps([["personal", "test", "\ud800", 0.5, 3]])),
        "which nobody asked for",
    ),
    "scores of too many samples": (
        with_fields(scores=f'[["personal", "test", "loss", 0.5, {10**30}]]'),
        "which nobody asked for",
    ),
    "a number for its scores": (with_fields(scores="5"), "5 is not a list of scores"),
    "steps without end": (with_fields(steps=2**70), "steps must lie between 0 and"),
    "numbers of 5000 digits": (with_fields(steps=10**5000), "it is not signed with the key"),
    "numbers of 400 digits": (with_fields(steps=10**400), "it cannot be read (OverflowError)"),
    "finite, but out of all proportion": (with_params_times(3e37), "params has a norm of"),
    "more samples than it has": (
        with_slots(lambda slots: {**slots, "weight": {"samples": torch.tensor(2.0**39)}}),
        "it counts for 5.49756e+11 samples",
    ),
    "a state that was never accepted": (with_fields(state=5), "which was never accepted"),
    "a log line of its own": (with_fields(problem="no\n2026 INFO complete"), r"client 1: no\n2026 INFO complete"),
    "too much": (
        lambda reply: replace(reply, payloads={"upload": bytes(3_000_000)}),
        "it has 3.0 MB, more than max_message_mb=2",
    ),
    "its own problem": (with_fields(problem="the disk is full"), "refused the reply of client 1: the disk is full"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_goes_on_without_a_client_that_misbehaves(fault, caplog):
    change, reason = FAULTS[fault]
    plan = tiny_plan("ditto", rounds=2)
    deployment = replace(LENIENT, max_message_mb=2.0)
    engine = LoopbackEngine(plan, deployment, lambda services: Misbehaving(services, change))
    store = Store(None)
    RoundLoop(engine.plan, engine, store).run()
    assert reason in caplog.text
    assert store.clients([BAD])[BAD] is None, "what it sent was not accepted"
    silent = fault in ("silence", "a crash")
    assert store.facts.refused == (0 if silent else 2), "every refusal is counted"
    assert store.clients([0])[0] is not None
    assert all(bool(torch.isfinite(leaf).all()) for leaf in store.server()["params"].values())


@pytest.mark.parametrize("proof", ["", "forged", "\ud800", 5, None])
def test_a_reply_with_any_other_signature_is_refused(proof, caplog):
    class Forged(LoopbackTransport):
        def send(self, requests):
            message_ids = super().send(requests)
            for node, request in requests.items():
                if node == 100 + BAD and request.fields["kind"] == "train":
                    reply = self._replies[message_ids[node]]
                    fields = {name: value for name, value in reply.fields.items() if name != "proof"}
                    fields |= {} if proof is None else {"proof": proof}
                    self._replies[message_ids[node]] = replace(reply, fields=fields)
            return message_ids

    engine, store = LoopbackEngine(tiny_plan("fedavg", rounds=1), LENIENT, Forged), Store(None)
    RoundLoop(engine.plan, engine, store).run()
    assert "it is not signed with the key that the client had when it joined" in caplog.text
    assert store.facts.refused == 1


def test_a_client_that_was_refused_is_welcome_again_from_the_state_it_had(caplog):
    plan = tiny_plan("ditto", rounds=3)
    rounds = iter([with_params_times(1.0), with_params_times(float("inf")), with_params_times(1.0)])
    engine = LoopbackEngine(plan, LENIENT, lambda services: Misbehaving(services, lambda reply: next(rounds)(reply)))
    store = Store(None)
    asked = []
    original = engine.services[BAD].train
    engine.services[BAD].train = lambda request: asked.append(request.fields.get("accepted")) or original(request)
    RoundLoop(engine.plan, engine, store).run()
    assert asked == [None, 0, 0], "after the refused round 1 it goes on from round 0"
    assert int(store.clients([BAD])[BAD]["receipt"]["round"]) == 2


class Leaving(LoopbackTransport):
    """A transport that client 1 is not connected to for some rounds."""

    def __init__(self, services) -> None:
        super().__init__(services)
        self.away = False

    def nodes(self):
        return super().nodes() - ({100 + BAD} if self.away else set())


def test_a_client_that_comes_back_after_ten_rounds_goes_on_from_its_state(caplog):
    plan = tiny_plan("ditto", rounds=13)
    engine, store = LoopbackEngine(plan, LENIENT, Leaving), Store(None)
    transport = engine.membership.transport

    def watch(progress):
        transport.away = 1 <= progress.round < 11

    seen = []
    original = engine.services[BAD].train

    def train(request):
        seen.append((request.fields["round"], request.fields.get("accepted")))
        return original(request)

    engine.services[BAD].train = train
    RoundLoop(engine.plan, engine, store).run(watch)
    assert seen == [(0, None), (1, 0), (12, 1)]
    assert caplog.text.count("no update from client 1") == 10
    scored = {row[0] for row in store.rows() if row[1] == BAD and row[3] == "personal"}
    assert scored == {0, 1, 12}


def test_too_few_replies_end_the_run_with_the_state_saved():
    plan = tiny_plan("fedavg", rounds=2)
    deployment = replace(LENIENT, quorum=1.0)
    engine = LoopbackEngine(plan, deployment, lambda services: Misbehaving(services, lambda _: None))
    store = Store(None)
    with pytest.raises(IdiolectError, match=r"round 1: 4 of 5 clients replied and 5 are needed; .* run the app again"):
        RoundLoop(engine.plan, engine, store).run()
    assert store.fact("next_round") is None


def test_nobody_connected_ends_the_run_with_a_reason():
    engine = LoopbackEngine(tiny_plan("fedavg"), LENIENT, Leaving)
    engine.membership.transport.nodes = frozenset
    started = time.monotonic()
    with pytest.raises(IdiolectError, match="only 0 of 5 clients are connected and 3 are needed"):
        RoundLoop(engine.plan, engine, Store(None)).run()
    assert time.monotonic() - started < 5


class Coming(LoopbackTransport):
    """A transport of which some clients are there."""

    there = frozenset({101, 102, 104})

    def nodes(self):
        return super().nodes() & self.there


def test_clients_join_and_leave_while_a_run_goes_on_as_in_a_simulation_with_that_schedule():
    rounds = {0: ((1, 2),), 1: ((0, 0), (2, 2)), 3: ((5, 9),)}
    plan = tiny_plan("ditto", epochs=1)
    engine, store = LoopbackEngine(plan, Deployment(sample="connected", timeout=0.2), Coming), Store(None)
    transport = engine.membership.transport

    def watch(progress):
        transport.there = {0: frozenset({100, 102, 104}), 1: frozenset({100, 101, 102, 104})}.get(progress.round)

    RoundLoop(engine.plan, engine, store).run(watch, stop=lambda: transport.there is None)
    simulated = play(replace(plan, presence=Presence(rounds)))
    assert same(store.server(), simulated.server)
    assert_states(engine.states([0, 1, 2, 4]), simulated.clients)
    assert store.facts.steps == simulated.cost["steps"]


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
    for service in engine.services.values():
        service.close()

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
    plan = tiny_plan("ditto", rounds=3)
    engine, store = LoopbackEngine(plan, LENIENT), Store(None)

    def watch(progress):
        if progress.round == 0:
            engine.services[BAD].states = Store(None)

    RoundLoop(engine.plan, engine, store).run(watch)
    assert "it is not signed with the key that the client had when it joined" in caplog.text
    assert "round 3: client 1 has lost its state and started anew" in caplog.text
    assert int(store.clients([BAD])[BAD]["receipt"]["round"]) == 2


@pytest.mark.parametrize("old_state", ["accept", "refuse"])
def test_a_client_that_was_restored_from_a_backup_is_noticed(old_state, tmp_path, caplog):
    plan = tiny_plan("ditto", rounds=4)
    deployment = replace(LENIENT, old_state=old_state)
    engine, store = LoopbackEngine(plan, deployment, folder=tmp_path / "clients"), Store(None)
    service = engine.services[BAD]

    def watch(progress):
        if progress.round == 0:
            service.states.close()
            shutil.copy(tmp_path / "clients" / "1" / "state.sqlite", tmp_path / "backup")
            service.states = Store(tmp_path / "clients" / "1" / "state.sqlite")
        if progress.round == 2:
            service.states.close()
            shutil.copy(tmp_path / "backup", tmp_path / "clients" / "1" / "state.sqlite")
            service.states = Store(tmp_path / "clients" / "1" / "state.sqlite")

    RoundLoop(engine.plan, engine, store).run(watch)
    assert "it went on from its state of round 1, but round 3 was accepted last" in caplog.text
    assert int(store.clients([BAD])[BAD]["receipt"]["round"]) == (3 if old_state == "accept" else 2)


def test_logs_are_quiet_when_all_is_well(caplog):
    caplog.set_level(logging.WARNING)
    engine = LoopbackEngine(tiny_plan("ditto"))
    RoundLoop(engine.plan, engine, Store(None)).run()
    assert not caplog.records
