"""Tuning and comparison in one step: every method gets the same trials on validation data, and then competes as it was
tuned. Both go on where they stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from ..comparison.api import compare
from ..comparison.entrants import resolve_methods
from ..comparison.folder import TUNING
from ..comparison.leaderboard import Comparison
from ..contract import Method
from ..core.errors import InputError, TrainingError
from ..core.registry import describe
from ..core.tables import write_html
from ..runs.arguments import Arguments
from ..runs.progress import Reporter
from .api import Tuning, tune
from .tables import chosen_table, failed_lines


class TunedComparison(NamedTuple):
    """What tuning found, and the comparison of it."""

    tuning: Tuning
    comparison: Comparison

    def _repr_html_(self) -> str:
        """Both in a notebook."""
        found = write_html([chosen_table(self.tuning)], [repr(self.tuning), *failed_lines(self.tuning)])
        return found + self.comparison._repr_html_()


def compare_tuned(
    methods: str | Sequence[str | Method],
    data: Any = "digits",
    *,
    trials: int = 10,
    space: Sequence[str] = (),
    prune: bool = False,
    seeds: int | str | Sequence[int] = 3,
    baseline: str | Method | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    on: str | None = None,
    reporter: Reporter | None = None,
    budget: str = "rounds",
    **settings: Unpack[Arguments],
) -> TunedComparison:
    """Tune methods, each with the same number of trials, its learning rate always among what is tried, on validation
    data; then compare what was chosen. What was found is remembered in the folder, so that the same call goes on.

    Args:
        methods, data: as for `compare`.
        trials, space, prune: as for `tune`.
        seeds, baseline, jobs, on, budget: as for `compare`; the baseline by the expression that is given here.
        out: the folder of the comparison; the tuning is inside, with `presets.yaml`, which can be given to others.
        reporter: receives how trials and runs go on.
        settings: any other argument of `run`.

    >>> found, board = compare_tuned("local, fedavg", clients=3, rounds=1, trials=2, seeds=1, model="linear")
    >>> [tuned.trials for tuned in found.methods], len(board.rows)
    ([2, 2], 2)
    """
    folder = None if out is None else Path(out)
    if fixed := [text for text in space if _fixes_rate(text)]:
        raise InputError(f"space={fixed[0]!r} keeps the learning rate, which a fair tuning always tries; give a range")
    inside = None if folder is None else folder / TUNING
    tuning = tune(
        methods, data, trials=trials, space=space, prune=prune, out=inside, on=on, reporter=reporter, **settings
    )
    return TunedComparison(
        tuning, compare_found(tuning, data, settings, seeds, baseline, folder, jobs, on, reporter, budget)
    )


def compare_found(
    tuning: Tuning,
    data: Any,
    settings: Mapping[str, Any],
    seeds: int | str | Sequence[int] = 3,
    baseline: str | Method | None = None,
    folder: Path | None = None,
    jobs: int = 1,
    on: str | None = None,
    reporter: Reporter | None = None,
    budget: str = "rounds",
) -> Comparison:
    """The comparison of what tuning chose; a method without a score is left out, with the reason."""
    found = [tuned for tuned in tuning.methods if math.isfinite(tuned.score)]
    if not found:
        raise TrainingError(f"no trial has a score, so there is nothing to compare; the first failed: {_why(tuning)}")
    skipped = {tuned.method: _why(tuning, tuned.method) for tuned in tuning.methods if tuned not in found}
    against = None
    if baseline is not None:
        (wanted,) = map(describe, resolve_methods([baseline]))
        against = next((tuned.expression for tuned in found if wanted in (tuned.method, tuned.expression)), wanted)
    elif tuned := next((tuned for tuned in found if tuned.method == "fedavg"), None):
        against = tuned.expression
    return compare(
        list(dict.fromkeys(tuned.expression for tuned in found)),
        data,
        seeds=seeds,
        baseline=against,
        rates={tuned.expression: tuned.lr for tuned in found},
        skipped=skipped,
        out=folder,
        jobs=jobs,
        on=on,
        reporter=reporter,
        budget=budget,
        **settings,
    )


def _why(tuning: Tuning, method: str = "") -> str:
    errors = [trial.error for trial in tuning.trials if trial.error and method in ("", trial.method)]
    return errors[0] if errors else "all its trials were pruned"


def _fixes_rate(text: str) -> bool:
    name, _, values = text.partition("=")
    return name.strip().rpartition(".")[2] == "lr" and ":" not in values and "," not in values
