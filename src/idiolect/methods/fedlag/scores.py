"""What the server makes of the clients' updates: how each layer's point apart, its score over rounds, which layers are
personal, and what the paper's theory predicts of that."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...analysis import constant_range, cosine_matrix, gains_of_angles, sketch
from ...contract.context import RoundContext
from ...core.tree import Slots, Tree

CONFLICTS, SCORE, PERSONAL, CHANGES = "fedlag.conflicts", "fedlag.score", "fedlag.personal", "fedlag.changes"
ROUNDS, QUIET = "fedlag.rounds", "fedlag.quiet"
NEEDS_CONFLICT = ("steady", "cumulative")
"""The schedules under which a layer is personal only as long as it goes on having conflicts."""
GAIN, GAINERS, BOUND = "fedlag.gain", "fedlag.gainers", "fedlag.bound"


class Angles(NamedTuple):
    """Of one layer, the cosines between the updates of every two clients, and the updates' lengths."""

    cosines: Tensor
    norms: Tensor


def measure_angles(updates: Iterable[Tensor], size: int | None) -> Angles:
    """The angles between updates, exact or of sketches of some size, and their lengths."""
    rows, norms = [], []
    for update in updates:
        # A common length changes no angle, but spares the squares of huge and of tiny updates.
        least, most = update.aminmax()
        longest = torch.maximum(-least, most).clamp_min(torch.finfo(update.dtype).tiny)
        row = update / longest
        norms.append(longest.double() * row.double().norm())
        rows.append(row if size is None else sketch(row, size))
    return Angles(cosine_matrix(rows), torch.stack(norms))


def add_conflicts(before: Tree, conflicts: Mapping[str, float], schedule: str, ema: float) -> dict[str, float]:
    """The score of each layer: all its conflicts so far, or this round's, or a moving average of them."""
    old, new = (ema, 1 - ema) if schedule == "dynamic" else (1.0, 1.0)
    return {unit: old * float(before[unit]) + new * count for unit, count in conflicts.items()}


def add_shared_conflicts(
    before: Tree, rounds: Tree, conflicts: Mapping[str, float], personal: set[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Each layer's conflicts in the rounds in which it was shared, and how many these are. While it is personal its
    clients no longer oppose each other, so what they do then says nothing, and its score, the mean, stays.

    >>> shared = {unit: torch.tensor(1.0) for unit in ("a", "b")}
    >>> add_shared_conflicts({"a": torch.tensor(4.0), "b": torch.tensor(4.0)}, shared, {"a": 0.0, "b": 1.0}, {"a"})
    ({'a': 4.0, 'b': 5.0}, {'a': 1.0, 'b': 2.0})
    """
    counts = {unit: float(rounds[unit]) + (unit not in personal) for unit in conflicts}
    return {unit: float(before[unit]) + count * (unit not in personal) for unit, count in conflicts.items()}, counts


def count_quiet(before: Tree, conflicts: Mapping[str, float], uploads: int) -> dict[str, float]:
    """How many updates of each layer were compared since it last had a conflict.

    >>> count_quiet({"a": torch.tensor(4.0), "b": torch.tensor(4.0)}, {"a": 1.0, "b": 0.0}, uploads=3)
    {'a': 0.0, 'b': 7.0}
    """
    return {unit: 0.0 if count > 0 else float(before[unit]) + uploads for unit, count in conflicts.items()}


def count_change(ctx: RoundContext, before: set[str], now: set[str], schedule: str) -> float:
    """1 if other layers are personal than before, which is worth a warning after the last round."""
    if not before or now == before:
        return 0.0
    if ctx.round == ctx.rounds - 1:
        other = "" if schedule == "steady" else ", or let schedule=steady choose"
        warnings.warn(
            "fedlag: the personal layers changed in the last round, so that the last models were never trained as "
            f"they are; look at the selected round{other}",
            stacklevel=2,
        )
    return 1.0


def predict_gains(ctx: RoundContext, angles: Mapping[str, Angles], personal: set[str]) -> Slots:
    """What the theory says of each layer, if it were personal, and of those that are (lemmas 5.1, 5.2, theorem 5.3)."""
    gains = {unit: gains_of_angles(*each) for unit, each in angles.items()}
    total = sum(float(gains[unit].mean()) * len(gains[unit]) ** 2 for unit in sorted(personal))
    lr = ctx.training.lr * ctx.training.schedule.factor(max(ctx.round, 0), ctx.rounds)
    low, high = constant_range(lr, ctx.training.epochs)
    return {
        GAIN: numbers(ctx, {unit: float(each.mean()) for unit, each in gains.items()}),
        GAINERS: numbers(ctx, {unit: share_of_gainers(gains[unit], each.norms) for unit, each in angles.items()}),
        BOUND: numbers(ctx, {"least": -high * total, "most": -low * total}),
    }


def share_of_gainers(gains: Tensor, norms: Tensor) -> float:
    """Which share of the clients gains more than round-off."""
    return float((gains > 1e-6 * norms.square()).double().mean())


def records_of(server: Slots) -> dict[str, float]:
    """What a run records of the layers: conflicts, gains and the share of clients that gain, changes, the bound."""
    names = {"conflicts": CONFLICTS, "gain": GAIN, "gainers": GAINERS}
    by_unit = {f"{name}/{unit}": float(leaf) for name, slot in names.items() for unit, leaf in server[slot].items()}
    bound = {f"bound_{end}": float(leaf) for end, leaf in server[BOUND].items()}
    return {**by_unit, "personal_changes": float(server[CHANGES]["count"]), **bound}


def numbers(ctx: RoundContext, values: Mapping[str, float]) -> Tree:
    """Numbers, or booleans, as leaves."""
    device = next(iter(ctx.initial["params"].values())).device
    kinds = {True: torch.bool, False: torch.float64}
    return {n: torch.tensor(v, dtype=kinds[isinstance(v, bool)], device=device) for n, v in values.items()}
