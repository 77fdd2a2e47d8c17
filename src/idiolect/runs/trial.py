"""Trials: runs without test data, judged by validation. Races and tuning are made of them, so neither can learn
anything from the data that results are reported on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..core.errors import InputError
from ..data import Federation
from ..engines import Plan, engines
from .interrupt import catch_interrupt
from .round_loop import Progress, RoundLoop
from .selection import headline_mean
from .store import Store
from .summary import ClientScores, average

NEVER = 2**31


def without_test(data: Federation) -> Federation:
    """The same federation without its test data; an error where nothing is left to judge by.

    >>> from idiolect.data import load
    >>> [len(client.test) for client in without_test(load("digits", clients=3)).clients]
    [0, 0, 0]
    """
    if not any(len(data.clients[index].val) for index in data.seen):
        raise InputError(
            f"{data.name} has no validation data, and test data choose nothing here; give a split with a validation"
            " share, as in split=[0.6, 0.2, 0.2]"
        )
    return replace(data, clients=tuple(replace(client, test=client.test[:0]) for client in data.clients))


def describe_trial(metric: str, score: float, seconds: float) -> dict[str, Any]:
    """What a reporter is told of a trial that ended, in the form of a summary."""
    return {"metric": metric, "headline": "weighted", metric: {"selected": {"weighted": score}}, "seconds": seconds}


@dataclass
class Trial:
    """One plan, carried out in memory, a few rounds at a time.

    Attributes:
        plan: what is trained; its data have no test samples.
        engine: the engine's expression, `auto` resolved.
        eval_every: rounds between evaluations.
        select: how the round is selected, and which mean over clients is the score.
    """

    plan: Plan
    engine: str
    eval_every: int = NEVER
    select: str = "weighted"
    store: Store = field(default_factory=lambda: Store(None))

    @property
    def rounds(self) -> int:
        """The rounds that are done."""
        return self.store.facts.rounds_done

    @property
    def gradients(self) -> int:
        """The gradients that local training took."""
        return self.store.facts.gradients

    @property
    def seconds(self) -> float:
        """The time that the rounds took."""
        return self.store.facts.seconds

    @property
    def best(self) -> tuple[float, int]:
        """The best validation score of the evaluated rounds, and its round, counted from 1; NaN and 0 before one."""
        facts = self.store.facts
        if facts.selected is None:
            return math.nan, 0
        return math.nan if facts.selected_score is None else facts.selected_score, facts.selected + 1

    def advance(self, rounds: int, watch: Callable[[Progress], None] = lambda _: None) -> None:
        """Train until so many rounds are done; Ctrl-C and SIGTERM take effect after a round."""
        with self._open_loop() as loop, catch_interrupt() as request:
            loop.run(watch, lambda: request() or loop.first_round >= rounds)
        request.pass_on()
        if self.rounds < rounds:
            raise KeyboardInterrupt

    def client_scores(self) -> ClientScores:
        """Every client's validation score now."""
        at = self.rounds - 1
        with self._open_loop() as loop, torch.random.fork_rng(devices=[]):
            rows, _ = loop.evaluate(at, self.store.server(), {})
        return loop.validation(rows, at)

    def mean(self, scores: ClientScores) -> float:
        """The score of all clients."""
        return average(scores, headline_mean(self.select))

    def score(self) -> float:
        """The validation score now."""
        return self.mean(self.client_scores())

    @contextmanager
    def _open_loop(self) -> Iterator[RoundLoop]:
        engine = engines.build(self.engine).make(self.plan)
        try:
            yield RoundLoop(self.plan, engine, self.store, self.eval_every, self.select)
        finally:
            engine.close()
