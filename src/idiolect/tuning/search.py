"""What to try next: the method as it is given first, then what Optuna's TPE proposes from the trials before. A proposal
depends on the recorded trials and the seed alone, so an interrupted tuning goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.errors import MissingExtraError
from ..core.randomness import torch_seed
from .records import Candidate, TrialRecord
from .space import LEARNING_RATE, Dimension

DIGITS = 3
"""Significant digits of the values that are tried."""


def load_optuna() -> Any:
    """The package Optuna, or an error that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("tuning needs the package optuna: pip install idiolect[tune]") from error
    return optuna


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
        distributions = {path: _distribution(optuna, each) for path, each in candidate.space.items()}
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
    return {path: _round(each, params[path]) for path, each in candidate.space.items()}


def first_values(candidate: Candidate, lr: float) -> dict[str, Any]:
    """The values of the method as it is given; of what has only one value, that one."""
    return {
        path: each.values[0] if len(each.values) == 1 else lr if path == LEARNING_RATE else _option(candidate, path)
        for path, each in candidate.space.items()
    }


def _option(candidate: Candidate, path: str) -> Any:
    value: Any = candidate.method
    for name in path.split("."):
        value = getattr(value, name)
    return value


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
