"""Trials: runs without test data, judged by validation. Races and tuning are made of them, so neither can learn
anything from the data that results are reported on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from ..core.errors import InputError
from ..data import Federation
from ..engines import Plan, engines
from .interrupt import catch_interrupt
from .round_loop import Progress, RoundLoop
from .store import Store
from .summary import by_round, weighted_mean

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


@dataclass
class Trial:
    """One plan, carried out in memory, a few rounds at a time.

    Attributes:
        plan: what is trained; its data have no test samples.
        engine: the engine's expression, `auto` resolved.
        eval_every: rounds between evaluations.
    """

    plan: Plan
    engine: str
    eval_every: int = NEVER
    store: Store = field(default_factory=lambda: Store(None))

    @property
    def rounds(self) -> int:
        """The rounds that are done."""
        return self.store.facts.rounds_done

    @property
    def steps(self) -> int:
        """The local steps that were taken."""
        return self.store.facts.steps

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
        """Train until so many rounds are done; Ctrl-C ends it after a round."""
        with self._open_loop() as loop, catch_interrupt() as asked:
            loop.run(watch, lambda: asked() or loop.first_round >= rounds)
        if self.rounds < rounds:
            raise KeyboardInterrupt

    def score(self) -> float:
        """The sample-weighted validation score now."""
        at = self.rounds - 1
        with self._open_loop() as loop, torch.random.fork_rng(devices=[]):
            rows, _ = loop.evaluate(at, self.store.server(), {})
        return weighted_mean(*by_round(rows, "seen", loop.point, "val", loop.metric)[at])

    @contextmanager
    def _open_loop(self) -> Iterator[RoundLoop]:
        engine = engines.build(self.engine).make(self.plan)
        try:
            yield RoundLoop(self.plan, engine, self.store, self.eval_every)
        finally:
            engine.close()
