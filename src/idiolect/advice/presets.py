"""Presets: the learning rate and the options that tuning found for a method, by what clients differ in and by the
optimiser. They are in presets.yaml, which is written from the committed results of tuning; here they are only read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparison.entrants import resolve_methods
from ..core.errors import InputError
from ..core.registry import describe
from ..methods.fedavg import FedAvg
from ..runs.settings import Config, read_config
from ..runs.setup import make_plan, separate
from ..task.optimizers import Optimizer
from .profile import measure_federation
from .rules import Finding, findings

PRESETS = Path(__file__).with_name("presets.yaml")
TUNED = "tuned"
"""The name under which they are asked for."""
LABELS, INPUTS, NATURAL = KINDS = ("label skew", "feature shift", "natural clients")
"""What clients may differ in: labels, inputs, or as people and places do."""


@dataclass(frozen=True)
class Preset:
    """What tuning found for a method: its expression with the options that were chosen, and a learning rate: the middle
    one of those that were chosen on several federations, which `rates` has by name."""

    method: str
    lr: float
    kind: str
    optimizer: str
    rates: Mapping[str, float]

    def __str__(self) -> str:
        found = ", ".join(f"{name} {lr:g}" for name, lr in self.rates.items())
        return f"{self.method} with lr={self.lr:g}, tuned on clients with {self.kind} ({found})"


def name_optimizer(optimizer: Optimizer) -> str:
    """What of an optimiser learning rates depend on: its name, and whether it has momentum.

    >>> from idiolect.runs import configure
    >>> name_optimizer(configure({"momentum": 0.9}).build_optimizer())
    'sgd with momentum'
    """
    return describe(optimizer).partition("(")[0] + " with momentum" * bool(getattr(optimizer, "momentum", 0))


def find_kind(measured: tuple[Finding, ...]) -> str:
    """What clients differ in most, by the numbers about them: natural clients by strong shifts of inputs or else as
    people do; others by labels, else by inputs; empty where they are alike."""
    levels = {finding.scale.name: finding.level for finding in measured}
    if levels.get("natural clients", "none") != "none":
        return INPUTS if levels["feature shift"] == "strong" else NATURAL
    if levels.get("label skew", "none") != "none":
        return LABELS
    return INPUTS if levels.get("feature shift", "none") != "none" else ""


def read_presets(path: Path = PRESETS) -> dict[tuple[str, str, str], Preset]:
    """All presets, by kind, optimiser and the method as it was given to be tuned."""
    return {
        (kind, optimizer, method): Preset(entry["method"], entry["lr"], kind, optimizer, entry["rates"])
        for kind, of_kind in (read_config(path) if path.is_file() else {}).items()
        for optimizer, of_optimizer in of_kind.items()
        for method, entry in of_optimizer.items()
    }


def find_presets(methods: Mapping[str, str], kind: str, config: Config, path: Path = PRESETS) -> dict[str, Preset]:
    """The presets of those methods that have one, by the names that `methods` gives their expressions."""
    known, optimizer = read_presets(path), name_optimizer(config.build_optimizer())
    return {
        name: known[kind, optimizer, expression]
        for name, expression in methods.items()
        if (kind, optimizer, expression) in known
    }


def apply_preset(method: str = "fedavg", data: Any = "digits", path: Path = PRESETS, **settings: Any) -> Preset:
    """What tuning found for a method on clients like these, or an error that says what is known.

    Args:
        method: an expression.
        data: as for `run`. Training data are measured.
        path: the file of the presets.
        settings: any other argument of `run`.

    Returns:
        The preset, whose `method` and `lr` are settings of a run.
    """
    (built,) = resolve_methods([method])
    config, objects = separate({"data": data, **settings})
    plan = make_plan(replace(config, method="fedavg"), {**objects, "method": FedAvg()})
    kind = find_kind(findings(measure_federation(plan)))
    found = find_presets({TUNED: describe(built)}, kind, config, path)
    if TUNED in found:
        return found[TUNED]
    optimizer = name_optimizer(config.build_optimizer())
    known = [name for at, by, name in read_presets(path) if (at, by) == (kind, optimizer)]
    clients = f"clients with {kind}" if kind else "clients that are alike"
    listing = f"there is one of {', '.join(known)}" if known else "there is none of any method"
    raise InputError(
        f"there is no tuned preset of {describe(built)} for {clients} and {optimizer}: {listing};"
        " find your own: idiolect tune"
    )
