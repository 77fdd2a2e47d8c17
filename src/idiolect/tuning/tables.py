"""A tuning as a table and sentences, for the terminal and for notebooks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..core.tables import Table, formatter, label, text_table

if TYPE_CHECKING:
    from .api import Tuning


def chosen_table(tuning: Tuning) -> Table:
    """What was chosen for each method, and by how many trials."""
    show = formatter(tuning.metric)
    rows = [
        (
            tuned.expression if has_score else f"nothing for {tuned.method}",
            f"{tuned.lr:g}" if has_score else "",
            show(tuned.before),
            show(tuned.score),
            describe_trials(tuned.trials, tuned.failed),
        )
        for tuned in tuning.methods
        for has_score in [math.isfinite(tuned.score)]
    ]
    heads = ("chosen", "lr", "as given", "tuned", "trials")
    return text_table("tuning", f"validation {label(tuning.metric)}", heads, rows)


def failed_lines(tuning: Tuning) -> list[str]:
    """Which trials failed, and why."""
    return [f"{trial.expression}, lr {trial.lr:g}, failed: {trial.error}" for trial in tuning.trials if trial.error]


def describe_trials(trials: int, failed: int) -> str:
    """How many trials there were.

    >>> describe_trials(10, 0), describe_trials(10, 2)
    ('10', '10 (2 failed)')
    """
    return f"{trials} ({failed} failed)" if failed else str(trials)
