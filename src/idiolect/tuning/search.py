"""What to try next: the method as it is given first, then what Optuna's TPE proposes from the trials before, or each
listed value of one option after another. A proposal depends on the recorded trials and the seed alone, so an
interrupted tuning goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.extras import import_extra
from ..core.options import options_of
from ..core.randomness import torch_seed
from .records import Candidate, TrialRecord
from .space import LEARNING_RATE, Dimension

DIGITS = 3
"""Significant digits of the values that are tried."""


def load_optuna() -> Any:
    """The package Optuna, or an error that says how to install it."""
    return import_extra("optuna", "tune", "tuning needs")


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Let Optuna log warnings only, and as much as before afterwards."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def propose(
    candidate: Candidate, before: Sequence[TrialRecord], lr: float, seed: int, trials: int, higher: bool
) -> dict[str, Any]:
    """The values to try next.

    Args:
        candidate: the method and what may be tried with it.
        before: its trials so far.
        lr: the learning rate of the settings, where the first trial starts.
        seed: determines all proposals.
        trials: how many trials there will be.
        higher: whether a higher score is better.
    """
    start = first_values(candidate, lr)
    if not before and all(candidate.space[path].contains(value) for path, value in start.items()):
        return start
    optuna = load_optuna()
    with _quiet(optuna):
        sampler = optuna.samplers.TPESampler(
            seed=torch_seed(seed, f"tune {candidate.name}", len(before)) % 2**32,
            n_startup_trials=max(3, min(10, trials // 3)),
        )
        study = optuna.create_study(direction="maximize" if higher else "minimize", sampler=sampler)
        distributions = {path: _distribution(optuna, dimension) for path, dimension in candidate.space.items()}
        state = optuna.trial.TrialState
        for record in before:
            study.add_trial(
                optuna.trial.create_trial(
                    state=state.PRUNED if record.score is None else state.COMPLETE,  # TPE takes pruned ones for worse
                    value=record.score,
                    params=dict(record.values),
                    distributions=distributions,
                )
            )
        params = study.ask(distributions).params
    return {path: _round(dimension, params[path]) for path, dimension in candidate.space.items()}


def propose_stepwise(candidate: Candidate, before: Sequence[TrialRecord], lr: float, higher: bool) -> dict[str, Any]:
    """The values to try next where options are tuned one after another: the next untried value of the first option
    that has one, with the best values so far of those before it."""
    chosen = first_values(candidate, lr)
    if not before:
        return chosen
    tried = iter(before)
    best = next(tried)
    for path, dimension in candidate.space.items():
        start = best
        for value in dimension.values:
            if _same(value, start.values[path]):
                continue
            record = next(tried, None)
            if record is None:
                return {**start.values, path: value}
            worse_or_none = record.score is None or (
                best.score is not None and (record.score <= best.score if higher else record.score >= best.score)
            )
            best = best if worse_or_none else record
    return dict(best.values)


def count_stepwise(candidate: Candidate, lr: float) -> int:
    """How many trials it takes to tune options one after another: the method as given, and each other value once."""
    start = first_values(candidate, lr)
    return 1 + sum(
        not _same(value, start[path]) for path, dimension in candidate.space.items() for value in dimension.values
    )


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal; a list is a tuple once it was written down."""
    return (list(a) if isinstance(a, tuple) else a) == (list(b) if isinstance(b, tuple) else b)


def first_values(candidate: Candidate, lr: float) -> dict[str, Any]:
    """The values of the method as it is given; of what has only one value, that one."""
    return {
        path: dim.values[0] if len(dim.values) == 1 else lr if path == LEARNING_RATE else _option(candidate, path, lr)
        for path, dim in candidate.space.items()
    }


def _option(candidate: Candidate, path: str, lr: float) -> Any:
    value: Any = candidate.method
    for name in path.split("."):
        owner, value = value, getattr(value, name)
    return lr if value is None and options_of(type(owner))[name].tuned == "rate" else value


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    """A dimension as Optuna has it."""
    if dimension.values:
        return optuna.distributions.CategoricalDistribution(dimension.values)
    if dimension.whole:
        return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _round(dimension: Dimension, value: Any) -> Any:
    """A value with few digits, within its dimension."""
    if dimension.values or dimension.whole:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), dimension.low), dimension.high)
