"""The round loop: sample, send, train, screen, aggregate, evaluate, commit. It knows no method and no engine."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..contract import Download, ServerContext, slot_of
from ..core import codec
from ..core.errors import TrainingError
from ..core.names import visible
from ..core.tree import Slots
from ..engines import Engine, Plan
from ..engines.client_evaluation import adapt_phases
from ..engines.client_round import Outcome
from ..engines.loop import AddsUp, KnowsPresent
from ..engines.machine import peak_memory_mb, threads
from ..engines.presence import DROPPED, LATE
from ..engines.slots import aggregate, first_server
from ..engines.uploads import NOT_FINITE, OUTSIZED, UNREADABLE, Refusal, Report, inspect
from .facts import RunFacts
from .global_model import explain_no_global_model, find_global_model
from .practice import diverges, explain_divergence
from .screening import aggregate_finite, copy_lent, find_outsized
from .selection import Selection, headline_mean
from .store import Row, Store
from .summary import ClientScores, average, group_scores

log = logging.getLogger("idiolect")


SAID = 10
"""In how many rounds it is said whose uploads are left out."""


@dataclass(frozen=True)
class Progress:
    """What is reported after a round; `score` is the newest validation score of the federation, `samples` the number of
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

    def __init__(self, plan: Plan, engine: Engine, store: Store, eval_every: int = 1, select: str = "weighted") -> None:
        self.plan, self.engine, self.store, self.eval_every, self.rule = plan, engine, store, eval_every, select
        self.metric = next(iter(plan.tasks[0].metrics))
        self.higher = plan.tasks[0].metrics[self.metric].higher_is_better
        self.score = math.nan
        self.first_loss = math.nan
        self.is_diverging = False
        self.rounds_left_out = 0

    @property
    def first_round(self) -> int:
        """The next round to do; rounds before 0 set a method up."""
        known = self.store.facts.next_round
        return -self.plan.method.needs.setup_rounds if known is None else known

    @property
    def point(self) -> str:
        """The headline's evaluation point: `adapted` where the method adapts before predicting, else `personal`."""
        ctx = self.plan.context(self.plan.data.seen[0], 0)
        return "adapted" if adapt_phases(ctx) else "personal"

    def run(self, watch: Callable[[Progress], None] = lambda _: None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Do all rounds that are left; False if `stop` ended it early. Every round is committed when done."""
        plan = self.plan
        server = self.store.server() or first_server(plan.server(self.first_round))
        if plan.eval_global and self.first_round < plan.rounds and find_global_model(plan, server, 0) is None:
            log.warning("nothing is recorded at the point global: %s", explain_no_global_model(plan))
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
        ids = list(
            plan.participants(round, self.engine.find_present() if isinstance(self.engine, KnowsPresent) else None)
        )
        fates = {i: plan.fate(i, round) for i in ids}
        download = plan.method.download(ctx, server, ids) if ids else Download({})
        outcomes, refused = self.train(round, fates, download, server)
        late = {i: outcome for i, outcome in outcomes.items() if fates[i] == LATE}
        accepted = {i: outcome for i, outcome in outcomes.items() if i not in refused and i not in late}
        idle = [visible(plan.data.clients[i].name) for i, outcome in accepted.items() if outcome.is_idle]
        if idle and before.idle == 0:
            log.warning(
                "no batch to train on, so nothing is sent and its state stays as it is: client %s", ", ".join(idle)
            )
        reports = {i: outcome.report for i, outcome in accepted.items() if outcome.report and outcome.report.norms}
        norms = {i: report.norms for i, report in reports.items()}
        after, spoiling = aggregate_finite(server, norms, lambda left: self.aggregate(ctx, server, left, outcomes))
        self.say_left_out(round, spoiling)
        for index, wrong in spoiling.items():
            refused[index] = wrong
            del accepted[index], reports[index]
        if refused and not reports and before.bytes_up == 0:
            raise TrainingError(self.explain_failure(round, refused))
        states = {i: outcome.state for i, outcome in accepted.items() if not outcome.is_idle}
        rows = self.training_rows(round, accepted, ctx, after)
        facts = replace(
            self.traffic(before, download, ids, sum(report.bytes for report in (*reports.values(), *_reports(late)))),
            next_round=round + 1,
            steps=before.steps + sum(outcome.steps for outcome in outcomes.values()),
            gradients=before.gradients + sum(outcome.effort.gradients for outcome in outcomes.values()),
            passes=before.passes + sum(outcome.effort.passes for outcome in outcomes.values()),
            refusals=dict(Counter(before.refusals) + Counter(refusal.kind for refusal in refused.values())),
            idle=before.idle + len(idle),
            dropped=before.dropped + sum(fate == DROPPED for fate in fates.values()),
            late=before.late + len(late),
        )
        if round >= 0 and ((round + 1) % self.eval_every == 0 or round + 1 == plan.rounds):
            scores, bytes_eval = self.evaluate(round, after, states)
            rows += scores
            facts = self.select(replace(facts, bytes_eval=before.bytes_eval + bytes_eval), round, scores)
        changed = {slot: leaves for slot, leaves in after.items() if leaves is not server.get(slot)}
        seconds = time.perf_counter() - started
        facts = replace(
            facts,
            seconds=before.seconds + seconds,
            server_mb=max(before.server_mb, codec.size(after) / 1e6),
            peak_memory_mb=max(before.peak_memory_mb, peak_memory_mb()),
        )
        self.store.commit(round, after if before.next_round is None else changed, states, rows, facts)
        losses = [outcome.loss for outcome in accepted.values() if not math.isnan(outcome.loss)]
        if round >= 0:
            self.watch_losses(round, {i: outcome.loss for i, outcome in accepted.items()})
        watch(
            Progress(
                round,
                plan.rounds,
                len(ids),
                sum(losses) / len(losses) if losses else math.nan,
                self.score,
                seconds,
                sum(outcome.samples for outcome in outcomes.values()),
            )
        )
        return after

    def train(
        self, round: int, fates: Mapping[int, str], download: Download, server: Slots
    ) -> tuple[dict[int, Outcome], dict[int, Refusal]]:
        """What clients made of their part of the round, and why some of it is refused: uploads that are not finite,
        misshapen, not declared or out of all proportion; such a client's state stays as it was, as does that of one
        whose upload comes too late. Uploads are looked at as they arrive."""
        outcomes, refused = dict[int, Outcome](), dict[int, Refusal]()
        ids = [index for index, fate in fates.items() if fate != DROPPED]
        if not ids:
            return outcomes, refused
        for index, outcome in self.engine.train(round, self.store.clients(ids), download):
            known = server.get(slot_of("params", self.plan.server_network(index)), {})
            if outcome.upload:
                outcome = replace(outcome, report=inspect(self.plan, outcome.upload, known))
            outcomes[index] = outcome
            wrong = Refusal(UNREADABLE, outcome.refused) if outcome.refused else None
            if outcome.report:
                wrong = outcome.report.refusal
            if wrong:
                refused[index] = wrong
            else:
                refused.pop(index, None)
        refused = {i: wrong for i, wrong in refused.items() if fates[i] != LATE}
        reports = {i: o.report for i, o in sorted(outcomes.items()) if i not in refused and fates[i] != LATE}
        usable = {i: report.norms for i, report in reports.items() if report}
        refused |= find_outsized(usable, server)
        self.say_left_out(round, {i: wrong for i, wrong in sorted(refused.items()) if not outcomes[i].refused})
        return dict(sorted(outcomes.items())), dict(sorted(refused.items()))

    def aggregate(
        self, ctx: ServerContext, server: Slots, ids: Sequence[int], outcomes: Mapping[int, Outcome]
    ) -> Slots:
        """The server's slots after a round in which these clients' uploads count; those that the engine keeps, it adds
        up itself."""
        uploads = {i: upload for i in ids if (upload := outcomes[i].upload) is not None}
        if not uploads and isinstance(self.engine, AddsUp):
            return self.plan.method.aggregate(ctx, server, self.engine.add_up(server, ids), {})
        return copy_lent(aggregate(ctx, server, uploads), uploads)

    def explain_failure(self, round: int, refused: Mapping[int, Refusal]) -> str:
        """Why a run cannot go on whose server has had no upload that it could use."""
        index, first = next(iter(refused.items()))
        helps = f"; {explain_divergence(self.plan, index)}" if first.kind == NOT_FINITE else ""
        return (
            f"{self.plan.method.name}: nothing that the {len(refused)} clients sent in round {round + 1} can be used, "
            f"and nothing was before, so there is nothing to learn from; client "
            f"{visible(self.plan.data.clients[index].name)} ({index}): {first.reason}{helps}"
        )

    def say_left_out(self, round: int, refused: Mapping[int, Refusal]) -> None:
        """Log whose uploads do not enter the round, and why that of the first does not; not in every one of many
        rounds."""
        if not refused or self.rounds_left_out > SAID:
            return
        self.rounds_left_out += 1
        if self.rounds_left_out > SAID:
            log.warning("round %d: uploads are left out again; from here on they are counted only", round + 1)
            return
        index, wrong = next(iter(refused.items()))
        reason = wrong.reason
        if wrong.kind in (NOT_FINITE, OUTSIZED) and not self.is_diverging:
            self.is_diverging = True
            reason += f", as where training diverges; {explain_divergence(self.plan, index)}"
        name, others = visible(self.plan.data.clients[index].name), len(refused) - 1
        more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        log.warning("round %d: left out client %s (%d)%s: %s", round + 1, name, index, more, reason)

    def watch_losses(self, round: int, losses: Mapping[int, float]) -> None:
        """Log once that training diverges, where the training loss has grown far beyond that of the first round."""
        known = {i: loss for i, loss in losses.items() if not math.isnan(loss)}
        if not known or self.is_diverging:
            return
        mean = sum(known.values()) / len(known)
        if math.isnan(self.first_loss):
            self.first_loss = mean
        elif diverges(self.first_loss, mean):
            self.is_diverging = True
            log.warning(
                "round %d: training diverges: the loss is %.3g, and was %.3g at first; %s",
                round + 1,
                mean,
                self.first_loss,
                explain_divergence(self.plan, max(known, key=lambda i: abs(known[i]))),
            )

    def training_rows(self, round: int, outcomes: Mapping[int, Outcome], ctx: Any, server: Slots) -> list[Row]:
        """The training loss, scores right after local training, and what the server recorded."""
        rows: list[Row] = []
        for i, outcome in outcomes.items():
            if not math.isnan(outcome.loss):
                rows.append((round, i, "seen", "train", "train", "loss", outcome.loss, self.plan.part(i, "train").size))
            rows += [(round, i, "seen", s.point, s.split, s.metric, s.value, s.samples) for s in outcome.scores]
        records = self.plan.method.server_records(ctx, server)
        return rows + [(round, -1, "server", "state", "", name, float(v), 0) for name, v in records.items()]

    def traffic(self, facts: RunFacts, download: Download, ids: list[int], up: int) -> RunFacts:
        """The facts with the bytes of a round added, up and down."""
        shared = codec.size(download.shared)
        down = sum(shared + codec.size(download.each.get(i, {})) for i in ids)
        return replace(facts, bytes_down=facts.bytes_down + down, bytes_up=facts.bytes_up + up)

    def evaluate(self, round: int, server: Slots, fresh: Mapping[int, Slots]) -> tuple[list[Row], int]:
        """Scores of all clients, participants or not, or of a sample of them, and the bytes of the downloads they
        need."""
        plan, ctx, rows, sent = self.plan, self.plan.server(round), [], 0
        seen, unseen = plan.evaluated, plan.evaluated_unseen
        download = plan.method.download(ctx, server, seen)
        others = plan.method.download(ctx, server, unseen) if unseen else Download({})
        for cohort, ids, message in (("seen", seen, download), ("unseen", unseen, others)):
            shared = codec.size(message.shared)
            sent += sum(shared + codec.size(message.each.get(i, {})) for i in ids)
            states = lambda wanted: {**self.store.clients(wanted), **{i: fresh[i] for i in wanted if i in fresh}}  # noqa: E731
            for index, scores in self.engine.evaluate(round, ids, states, message, cohort == "unseen"):
                rows += [(round, index, cohort, s.point, s.split, s.metric, s.value, s.samples) for s in scores]
        return rows, sent

    @cached_property
    def selection(self) -> Selection:
        """The selection so far, from the rounds in the store."""
        selection = Selection(self.rule, self.higher)
        if self.store.facts.selected is not None:
            rows = self.store.rows(cohort="seen", point=self.point, split="val", metric=self.metric)
            for round, scores in group_scores(rows).get(("seen", self.point), {}).items():
                selection.add(round, scores)
        return selection

    def validation(self, rows: Iterable[Row], round: int) -> ClientScores:
        """The headline's validation scores of a round."""
        wanted = (row for row in rows if row[4:6] == ("val", self.metric))
        return group_scores(wanted).get(("seen", self.point), {}).get(round, {})

    def select(self, facts: RunFacts, round: int, rows: Sequence[Row]) -> RunFacts:
        """The facts with the round that is selected now that this one has scores."""
        selection, scores = self.selection, self.validation(rows, round)
        selection.add(round, scores)
        self.score = average(scores, headline_mean(self.rule))
        score = selection.score if math.isfinite(selection.score) else None
        return replace(facts, selected=selection.round, selected_score=score, selection=selection.words)


def _reports(outcomes: Mapping[int, Outcome]) -> list[Report]:
    return [outcome.report for outcome in outcomes.values() if outcome.report is not None]
