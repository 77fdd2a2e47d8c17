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
            describe_trials(tuned.trials, tuned.failed, tuned.pruned),
        )
        for tuned in tuning.methods
        for has_score in [math.isfinite(tuned.score)]
    ]
    heads = ("chosen", "lr", "as given", "tuned", "trials")
    return text_table("tuning", f"validation {label(tuning.metric)}", heads, rows)


def failed_lines(tuning: Tuning) -> list[str]:
    """Which trials failed or were stopped early, and why."""
    show = formatter(tuning.metric)
    lines = []
    for trial in tuning.trials:
        what = f"{trial.expression}, lr {trial.lr:g}"
        if trial.pruned:
            score = show(math.nan if trial.early is None else trial.early)
            lines.append(f"{what}, pruned after round {trial.pruned}: {score}, worse than the median of its trials")
        elif trial.error:
            lines.append(f"{what}, failed: {trial.error}")
    return lines


def describe_trials(trials: int, failed: int, pruned: int = 0) -> str:
    """How many trials there were.

    >>> describe_trials(10, 0), describe_trials(10, 2), describe_trials(10, 1, 3)
    ('10', '10 (2 failed)', '10 (1 failed, 3 pruned)')
    """
    parts = [f"{count} {what}" for count, what in ((failed, "failed"), (pruned, "pruned")) if count]
    return f"{trials} ({', '.join(parts)})" if parts else str(trials)
