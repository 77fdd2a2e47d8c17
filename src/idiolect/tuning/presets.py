"""What a tuning found, as a file that can be given to others: options and learning rate of each method, and how they
were found. It is read back as settings of a run or of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..comparison.entrants import resolve_methods
from ..contract import Method
from ..core.errors import InputError
from ..core.options import did_you_mean
from ..core.registry import describe
from ..runs.settings import read_config

if TYPE_CHECKING:
    from .api import Tuning

PRESETS = "presets.yaml"
HEAD = """\
# What tuning found: use it with `idiolect compare --presets THIS.yaml` or `idiolect run METHOD --preset THIS.yaml`.
# Every method had the same number of trials, judged by validation data.
"""
SHOWN = ("data", "partition", "clients", "model", "rounds", "participation", "local_epochs", "batch_size", "optimizer")
"""Under which settings it was found."""


def write_presets(tuning: Tuning) -> str:
    """The file of a tuning; methods without a score are left out."""
    settings = tuning.config.as_dict()
    found = {
        tuned.method: {
            "method": tuned.expression,
            "lr": tuned.lr,
            "score": tuned.score,
            "as_given": tuned.before if math.isfinite(tuned.before) else None,
            "trials": tuned.trials,
            "failed": tuned.failed,
            "pruned": tuned.pruned,
        }
        for tuned in tuning.methods
        if math.isfinite(tuned.score)
    }
    content = {
        "metric": tuning.metric,
        "found_on": {name: settings[name] for name in SHOWN if settings[name] is not None},
        "methods": found,
    }
    return HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def use_presets(methods: str | Sequence[str | Method], path: str | Path) -> dict[str, Any]:
    """Methods with what a file of presets says of them: `methods`, the expressions, and `rates`, their learning rates.

    >>> import idiolect
    >>> place = getfixture("tmp_path") / "t"
    >>> _ = idiolect.tune("fedavg", clients=3, rounds=1, trials=1, model="linear", out=place)
    >>> use_presets("fedavg", place / "presets.yaml")
    {'methods': ['fedavg'], 'rates': {'fedavg': 0.05}}
    """
    path = Path(path)
    known = _read(path)
    expressions: list[str] = []
    rates: dict[str, float] = {}
    for method in resolve_methods(methods):
        name = describe(method)
        if name not in known:
            raise InputError(f"{path} says nothing of {name}.{did_you_mean(name, known)} It has {', '.join(known)}.")
        expression = describe(resolve_methods([known[name]["method"]])[0])
        expressions.append(expression)
        rates[expression] = float(known[name]["lr"])
    return {"methods": expressions, "rates": rates}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    content = read_config(path)
    known = content.get("methods")
    is_whole = isinstance(known, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("method"), str) and isinstance(entry.get("lr"), int | float)
        for entry in known.values()
    )
    if not is_whole:
        raise InputError(
            f"{path} is no file of presets; give presets.yaml of a tuning, which lists methods with their lr"
        )
    return {str(name): entry for name, entry in known.items()}  # type: ignore[union-attr]
