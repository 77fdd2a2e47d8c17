"""The engine of real clients: it asks them over a network and checks what they answer. Their states stay with them;
in their place the server keeps receipts, which say the last round of each client that counts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ..contract import Download, Upload
from ..core import codec
from ..core.errors import IdiolectError, InputError
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client_evaluation import Score
from ..engines.client_round import Outcome, train
from ..engines.loop import States
from ..engines.slots import sent_names
from ..runs.store import Store
from .membership import Roster
from .messages import Parcel, Value, one_line, read_scores
from .project import PROBE, blank, describe_data
from .settings import Deployment

log = logging.getLogger("idiolect")
Signature = frozenset[tuple[str, str, tuple[int, ...], str]]


class FlowerEngine:
    """Clients on other machines.

    Args:
        plan: the server's plan, without the clients' data.
        roster: which clients are there, and how to reach them.
        store: the server's store, whose selected round clients are told.
        deployment: how long to wait and what to accept.
    """

    def __init__(self, plan: Plan, roster: Roster, store: Store, deployment: Deployment) -> None:
        self.plan, self.roster, self.store, self.deployment = plan, roster, store, deployment
        probes = blank(describe_data(plan.data, 0), len(plan.data), plan.data.unseen, {}, public=plan.data.public)
        self._probe = replace(plan, data=probes, training=replace(plan.training, epochs=1, batch_size=PROBE))

    def train(self, round: int, states: States, download: Download) -> Iterator[tuple[int, Outcome]]:
        """Ask clients for their part of a round until enough have answered."""
        needed, done = self.deployment.needed(len(states)), set[int]()
        bodies = encoded(download)
        fits = Fits(self._probe, round, download)
        for attempt in range(self.deployment.attempts):
            left = [index for index in states if index not in done]
            here = self.roster.gather(left, max(1, needed - len(done)), patience=0.0)
            asks = {i: self._ask("train", round, i, states[i], bodies(i)) for i in here}
            for index, parcel in self._exchange(round, here, asks):
                with self._refusing(round, index):
                    yield index, self._outcome(round, index, states[index], parcel, fits)
                    done.add(index)
            if absent := [index for index in states if index not in done]:
                log.warning("round %d: no part of client %s", round + 1, ", ".join(map(str, absent)))
            if len(done) >= needed:
                return
            log.warning("round %d: %d of %d clients answered, but %d are needed (attempt %d of %d)", round + 1,
                        len(done), len(states), needed, attempt + 1, self.deployment.attempts)  # fmt: skip
        raise IdiolectError(
            f"round {round + 1}: {len(done)} of {len(states)} clients answered and {needed} are needed; the rounds "
            f"before it are saved, so look at the clients' logs and run the app again"
        )

    def evaluate(
        self,
        round: int,
        ids: Sequence[int],
        states: Callable[[Sequence[int]], States],
        download: Download,
        unseen: bool,
    ) -> Iterator[tuple[int, list[Score]]]:
        """Ask the connected clients for their scores."""
        if not ids:
            return
        here = {index: node for index, node in self.roster.refresh().items() if index in ids}
        receipts, bodies = states(sorted(here)), encoded(download)
        asks = {i: self._ask("evaluate", round, i, receipts[i], bodies(i), unseen=unseen) for i in here}
        heard = set[int]()
        for index, parcel in self._exchange(round, here, asks):
            with self._refusing(round, index):
                yield index, read_scores(parcel)
                heard.add(index)
        if absent := sorted(set(ids) - heard):
            log.warning("round %d: no scores of client %s", round + 1, ", ".join(map(str, absent)))

    def finish(self) -> None:
        """Tell the connected clients that the run is complete, and which round is the selected one."""
        here = self.roster.refresh()
        head: dict[str, Value] = {"kind": "finish", "selected": int(self.store.fact("selected"))}
        asks = {index: Parcel({**head, "client": index}) for index in here}
        told = sorted(index for index, _ in self._exchange(self.plan.rounds - 1, here, asks))
        log.info("told that the run is complete: client %s", ", ".join(map(str, told)) or "none")

    def close(self) -> None:
        """Nothing is held."""

    def _ask(
        self, kind: str, round: int, index: int, receipt: Slots | None, bodies: Mapping[str, bytes], **more: Value
    ) -> Parcel:
        head: dict[str, Value] = {"kind": kind, "client": index, "round": round, **more}
        if receipt:
            head["accepted"] = int(receipt["receipt"]["round"])
        if (selected := self.store.fact("selected")) is not None:
            head["selected"] = selected
        return Parcel(head, bodies)

    def _exchange(
        self, round: int, nodes: Mapping[int, int], asks: Mapping[int, Parcel]
    ) -> Iterator[tuple[int, Parcel]]:
        """Send questions and give the answers as they come, until all are there or the time is up."""
        post, owner = self.roster.post, {node: index for index, node in nodes.items()}
        sent = post.send({nodes[index]: ask for index, ask in asks.items()})
        waiting = {ticket: owner[node] for node, ticket in sent.items()}
        end = time.monotonic() + self.deployment.timeout
        while waiting:
            connected = post.nodes()
            answers = post.collect(waiting)
            for ticket, told in answers.items():
                index = waiting.pop(ticket)
                if isinstance(told, str):
                    log.warning("round %d: client %d did not answer: %s", round + 1, index, one_line(told))
                    continue
                with self._refusing(round, index):
                    yield index, self._checked(index, round, asks[index], told)
            for ticket, index in list(waiting.items()):
                if nodes[index] not in connected:
                    log.warning("round %d: client %d disconnected", round + 1, index)
                    del waiting[ticket]
            if time.monotonic() > end:
                break
            if waiting and not answers:
                time.sleep(post.poll)
        for index in waiting.values():
            log.warning("round %d: client %d did not answer in %g s", round + 1, index, self.deployment.timeout)

    def _checked(self, index: int, round: int, ask: Parcel, told: Parcel) -> Parcel:
        if "problem" in told.head:
            raise InputError(told.get("problem", str))
        if told.get("client", int) != index:
            raise InputError(f"it answers as client {told.head['client']}")
        if (limit := self.deployment.max_message_mb * 1e6) < told.size:
            raise InputError(f"it sent {told.size / 1e6:.1f} MB, and max_message_mb={limit / 1e6:g} are read")
        if (told.head.get("kind"), told.head.get("round")) != (ask.head.get("kind"), ask.head.get("round")):
            raise InputError(f"it answers {told.head.get('kind')!r:.20} of round {told.head.get('round')!r:.20}")
        return told

    def _outcome(self, round: int, index: int, before: Slots | None, told: Parcel, fits: Fits) -> Outcome:
        loss, steps, samples = told.get("loss", float), told.get("steps", int), told.get("samples", int)
        if steps < 0 or samples < 0 or math.isinf(loss):
            raise InputError(f"it says that it took {steps} steps on {samples} samples with loss {loss}")
        if told.get("fresh", bool) and before:
            log.warning("round %d: client %d has lost its state and started anew", round + 1, index)
        scores = read_scores(told)
        if not told.bodies:
            return Outcome(before or {}, None, loss, steps, samples, scores)
        slots, masks = told.slots()
        fits.check(index, slots)
        receipt: Slots = {"receipt": {"round": torch.tensor(round)}}
        return Outcome(receipt, Upload(slots, masks), loss, steps, samples, scores)

    def _refusing(self, round: int, index: int) -> Refusing:
        return Refusing(f"round {round + 1}: refused what client {index} sent: %s")


class Refusing:
    """Log what is wrong with an answer, and go on without it."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, InputError):
            log.warning(self.sentence, one_line(str(error)))
        return isinstance(error, InputError)


class Fits:
    """What an upload of a round must look like. Slots, shapes and types never depend on data, so the server finds them
    by running the client's code on blank samples, once for every kind of client."""

    def __init__(self, probe: Plan, round: int, download: Download) -> None:
        self.probe, self.round, self.download = probe, round, download
        self._known: dict[Hashable, list[Signature]] = {}

    def check(self, index: int, slots: Slots) -> None:
        """Raise `InputError` unless slots look like an upload of this client."""
        if extra := slots.keys() - sent_names(self.probe.method):
            raise InputError(f"it sent {', '.join(sorted(extra))}, which the method does not declare")
        found = signature(slots)
        expected = self._expected(index)
        if found not in expected:
            odd = min((sorted(found ^ each) for each in expected), key=len)
            raise InputError(
                "it does not fit the method: " + "; ".join(f"{s} {n} {list(d)} {t}" for s, n, d, t in odd[:3])
            )

    def _expected(self, index: int) -> list[Signature]:
        plan = self.probe
        model = plan.networks[index] if plan.networks else 0
        key = (model, plan.method.variant(index), signature(self.download.each.get(index, {})))
        if key not in self._known:
            new = train(plan, index, self.round, None, self.download.of(index))
            again = train(plan, index, self.round, new.state, self.download.of(index))
            self._known[key] = [signature(each.upload.slots) for each in (new, again) if each.upload is not None]
        return self._known[key]


def signature(slots: Slots) -> Signature:
    """Slots without their values."""
    return frozenset(
        (s, n, tuple(leaf.shape), str(leaf.dtype)) for s, each in slots.items() for n, leaf in each.items()
    )


def encoded(download: Download) -> Callable[[int], dict[str, bytes]]:
    """A client's bodies: what all get is encoded once."""
    shared = codec.encode(download.shared)
    return lambda index: (
        {"shared": shared} | ({"own": codec.encode(download.each[index])} if index in download.each else {})
    )
