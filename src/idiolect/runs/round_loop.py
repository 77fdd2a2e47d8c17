"""The round loop: sample, send, train, screen, aggregate, evaluate, commit. It knows no method and no engine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..contract import Download, Upload, slot_of
from ..core import codec
from ..core.tree import Slots, Tree
from ..engines import Engine, Plan
from ..engines.client_evaluation import adapt_phases
from ..engines.client_round import Outcome
from ..engines.machine import peak_memory_mb, threads
from ..engines.slots import aggregate, first_server, sent_names
from .facts import RunFacts
from .store import Row, Store
from .summary import by_round, is_better, weighted_mean

log = logging.getLogger("idiolect")


@dataclass(frozen=True)
class Progress:
    """What is reported after a round; `score` is the newest sample-weighted validation score, `samples` the number of
    samples that clients trained on."""

    round: int
    rounds: int
    clients: int
    loss: float
    score: float
    seconds: float
    samples: int


class RoundLoop:
    """The rounds of one run: a plan that an engine carries out, with its state in a store."""

    def __init__(self, plan: Plan, engine: Engine, store: Store, eval_every: int = 1) -> None:
        self.plan, self.engine, self.store, self.eval_every = plan, engine, store, eval_every
        self.metric = next(iter(plan.tasks[0].metrics))
        self.higher = plan.tasks[0].metrics[self.metric].higher_is_better
        self.score = math.nan

    @property
    def first_round(self) -> int:
        """The next round to do; rounds before 0 set a method up."""
        known = self.store.facts.next_round
        return -self.plan.method.needs.setup_rounds if known is None else known

    @property
    def point(self) -> str:
        """The headline's evaluation point: `adapted` where the method tunes before predicting, else `view`."""
        ctx = self.plan.context(self.plan.data.seen[0], 0)
        return "adapted" if adapt_phases(ctx) else "view"

    def run(self, watch: Callable[[Progress], None] = lambda _: None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do all rounds that are left; False if `stop` ended it early. Every round is committed when done."""
        plan = self.plan
        server = self.store.server() or first_server(plan.server(self.first_round))
        with threads(1), torch.random.fork_rng(devices=[]):
            for round in range(self.first_round, plan.rounds):
                if stop():
                    return False
                server = self.do_round(round, server, watch)
        return True

    def do_round(self, round: int, server: Slots, watch: Callable[[Progress], None]) -> Slots:
        """One round, committed in one transaction."""
        started = time.perf_counter()
        plan, ctx, before = self.plan, self.plan.server(round), self.store.facts
        ids = list(plan.participants(round))
        download = plan.method.download(ctx, server, ids)
        outcomes, refused = self.train(round, ids, download, server)
        accepted = {i: each for i, each in outcomes.items() if i not in refused}
        idle = [plan.data.clients[i].name for i, each in outcomes.items() if each.upload is None]
        if idle and before.idle == 0:
            log.warning(
                "no batch to train on, so nothing is sent and its state stays as it is: client %s", ", ".join(idle)
            )
        uploads = {i: each.upload for i, each in accepted.items() if each.upload is not None and each.upload.slots}
        after = owned(aggregate(ctx, server, uploads), uploads) if uploads else server
        states = {i: each.state for i, each in accepted.items() if each.upload is not None}
        rows = self.training_rows(round, accepted, ctx, after)
        facts = replace(
            self.traffic(before, download, ids, uploads),
            next_round=round + 1,
            steps=before.steps + sum(each.steps for each in outcomes.values()),
            refused=before.refused + len(refused),
            idle=before.idle + len(idle),
        )
        if round >= 0 and ((round + 1) % self.eval_every == 0 or round + 1 == plan.rounds):
            scores, bytes_eval = self.evaluate(round, after, states)
            rows += scores
            facts = self.select(replace(facts, bytes_eval=before.bytes_eval + bytes_eval), round, scores)
        changed = {slot: each for slot, each in after.items() if each is not server.get(slot)}
        seconds = time.perf_counter() - started
        facts = replace(
            facts,
            seconds=before.seconds + seconds,
            server_mb=max(before.server_mb, codec.size(after) / 1e6),
            peak_memory_mb=max(before.peak_memory_mb, peak_memory_mb()),
        )
        self.store.commit(round, after if before.next_round is None else changed, states, rows, facts)
        losses = [each.loss for each in accepted.values() if not math.isnan(each.loss)]
        watch(
            Progress(
                round,
                plan.rounds,
                len(ids),
                sum(losses) / len(losses) if losses else math.nan,
                self.score,
                seconds,
                sum(each.samples for each in outcomes.values()),
            )
        )
        return after

    def train(
        self, round: int, ids: list[int], download: Download, server: Slots
    ) -> tuple[dict[int, Outcome], dict[int, str]]:
        """What clients made of their part of the round, and why some of it is refused: uploads that are not finite,
        misshapen or not declared; such a client's state stays as it was. Uploads are looked at as they arrive."""
        outcomes, refused = {}, {}
        for index, outcome in self.engine.train(round, self.store.clients(ids), download):
            outcomes[index] = outcome
            known = server.get(slot_of("params", self.plan.networks[index] if self.plan.networks else 0), {})
            if outcome.upload and (reason := refusal(outcome.upload, sent_names(self.plan.method), known)):
                refused[index] = reason
        for index, reason in sorted(refused.items()):
            name = self.plan.data.clients[index].name
            log.warning("round %d: left out client %s (%d): %s", round + 1, name, index, reason)
        return dict(sorted(outcomes.items())), refused

    def training_rows(self, round: int, outcomes: Mapping[int, Outcome], ctx: Any, server: Slots) -> list[Row]:
        """The training loss, scores right after local training, and what the server recorded."""
        rows: list[Row] = []
        for i, each in outcomes.items():
            if not math.isnan(each.loss):
                rows.append((round, i, "seen", "train", "train", "loss", each.loss, self.plan.part(i, "train").size))
            rows += [(round, i, "seen", s.point, s.split, s.metric, s.value, s.samples) for s in each.scores]
        records = self.plan.method.server_records(ctx, server)
        return rows + [(round, -1, "server", "state", "", name, float(v), 0) for name, v in records.items()]

    def traffic(self, facts: RunFacts, download: Download, ids: list[int], uploads: Mapping[int, Upload]) -> RunFacts:
        """The facts with the bytes of a round added, up and down."""
        shared = codec.size(download.shared)
        down = sum(shared + codec.size(download.each.get(i, {})) for i in ids)
        up = sum(codec.size(each.slots, each.masks) for each in uploads.values())
        return replace(facts, bytes_down=facts.bytes_down + down, bytes_up=facts.bytes_up + up)

    def evaluate(self, round: int, server: Slots, fresh: Mapping[int, Slots]) -> tuple[list[Row], int]:
        """Scores of all clients, participants or not, and the bytes of the downloads they need."""
        plan, ctx, rows, sent = self.plan, self.plan.server(round), [], 0
        seen = plan.data.seen
        download = plan.method.download(ctx, server, seen)
        unseen = tuple(sorted(plan.data.unseen))
        others = plan.method.download(ctx, server, unseen) if unseen else Download({})
        for cohort, ids, message in (("seen", seen, download), ("unseen", unseen, others)):
            shared = codec.size(message.shared)
            sent += sum(shared + codec.size(message.each.get(i, {})) for i in ids)
            states = lambda wanted: {**self.store.clients(wanted), **{i: fresh[i] for i in wanted if i in fresh}}  # noqa: E731
            for index, scores in self.engine.evaluate(round, ids, states, message, cohort == "unseen"):
                rows += [(round, index, cohort, s.point, s.split, s.metric, s.value, s.samples) for s in scores]
        return rows, sent

    def select(self, facts: RunFacts, round: int, rows: list[Row]) -> RunFacts:
        """The facts with this round selected, if it is the best so far by sample-weighted validation."""
        scores = by_round(rows, "seen", self.point, "val", self.metric).get(round)
        if scores is None:
            return replace(facts, selected=round)
        self.score = weighted_mean(*scores)
        before = facts.selected_score
        if before is not None and not is_better(self.score, before, self.higher):
            return facts
        return replace(facts, selected=round, selected_score=self.score)


def owned(server: Slots, uploads: Mapping[int, Upload]) -> Slots:
    """The server's slots with a copy of whatever lies in an upload, whose memory the engine may use again."""
    lent = {
        leaf.untyped_storage().data_ptr()
        for each in uploads.values()
        for slots in (each.slots, each.masks)
        for leaves in slots.values()
        for leaf in leaves.values()
    }

    def own(leaves: Tree) -> Tree:
        copies = {name: leaf.clone() for name, leaf in leaves.items() if leaf.untyped_storage().data_ptr() in lent}
        return {**leaves, **copies} if copies else leaves

    return {slot: own(leaves) for slot, leaves in server.items()}


def refusal(upload: Upload, declared: tuple[str, ...], known: Tree) -> str:
    """Why an upload cannot be used; an empty string if it can. `known` is the server's model."""
    if extra := upload.slots.keys() - set(declared):
        return f"it sent {', '.join(sorted(extra))}, which the method does not declare"
    for slot, leaves in upload.slots.items():
        for name, leaf in leaves.items():
            if slot == "params" and name in known and leaf.shape != known[name].shape:
                return f"{slot} {name} of shape {tuple(leaf.shape)} does not fit the server's model"
            if leaf.is_floating_point() and not finite(leaf):
                return f"{slot} {name} is not finite"
    return ""


def finite(leaf: Tensor) -> bool:
    """Whether all numbers are finite. A finite sum proves it in one pass; one that is not may be just too large."""
    return math.isfinite(float(leaf.sum())) or bool(torch.isfinite(leaf).all())
