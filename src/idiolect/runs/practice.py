"""What a practitioner should be told, once: of data on which results say little, and of training that diverges."""

from __future__ import annotations

import math

import numpy as np
import torch

from ..core.names import shorten, visible
from ..core.once import say_once
from ..data import Federation
from ..data.pool_clients import label_ranges, sizes_of
from ..data.splits import SPLITS
from ..engines import Plan

SHOWN = 3
"""How many names a sentence lists."""
LARGE = 100.0
"""An input this large, and this many times as large as the others, may make training diverge."""
GROWN = 100.0
"""A training loss that has grown so many times as large diverges."""


def warn_of_data(data: Federation, select: str) -> None:
    """Say where clients have one class only, or nothing to validate or test on."""
    named, sizes = data.name, sizes_of(data.clients)
    if data.classes is not None and data.classes > 1 and data.clients[0].y.ndim == 1:
        low, high = label_ranges(data.clients, training=True)
        of_one = [data.client_names[at] for at in np.flatnonzero((low == high) & (sizes[:, 0] > 1))]
        if of_one:
            say_once(
                f"{_count(of_one, data)} training samples of one class only, so that a model of their own learns to say"
                " nothing else",
                about=f"one class {named}",
            )
    for split, missing in (("val", "validation"), ("test", "test")):
        lacking = [data.client_names[at] for at in np.flatnonzero(sizes[:, SPLITS.index(split)] == 0)]
        if split == "val" and select != "last" and len(lacking) == len(data):
            say_once(
                "no client has validation samples, so that no round can be selected by them and the last one is"
                " reported;"
                " give some, as in split=[0.6, 0.2, 0.2]",
                about=f"no val {named}",
            )
        elif split == "test" and len(lacking) == len(data):
            say_once("no client has test samples, so that there are no test scores", about=f"no test {named}")
        elif lacking and len(lacking) < len(data):
            then = "which round is selected" if split == "val" else "the test scores"
            say_once(f"{_count(lacking, data)} no {missing} samples and no part in {then}", about=f"{split} {named}")


def _count(names: list[str], data: Federation) -> str:
    shown = ", ".join(shorten(visible(name)) for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names)} of {len(data)} clients ({shown}) {'has' if len(names) == 1 else 'have'}"


def diverges(first: float, now: float) -> bool:
    """Whether a training loss has grown too much since the first round.

    >>> diverges(0.7, 90.0), diverges(0.7, 2.0), diverges(0.7, math.inf)
    (True, False, True)
    """
    return not math.isfinite(now) or abs(now) > GROWN * max(abs(first), 1e-3)


def explain_divergence(plan: Plan, index: int) -> str:
    """What may help against divergence: a smaller learning rate, and inputs of one scale where one is not."""
    client, data = plan.data.clients[index], plan.data
    help, scale = "a smaller learning rate may help", "bring columns to one scale, scale=federated for tables"
    if data.layout is not None or client.late or not client.x.is_floating_point():
        return help
    x, _ = plan.part(index, "train").take()
    largest = x.abs().amax(0)
    if not largest.numel() or not bool(torch.isfinite(largest).all()) or float(largest.max()) < LARGE:
        return help
    if x.ndim != 2 or x.shape[1] == 1:
        return f"{help}; inputs go up to {float(largest.max()):.3g}: bring them near 1"
    at = int(largest.argmax())
    usual = float(largest.median())
    if float(largest[at]) < LARGE * max(usual, 1e-6):
        return f"{help}; inputs go up to {float(largest.max()):.3g}: {scale}"
    name = repr(data.names.features[at]) if data.names.features else f"number {at}"
    return f"{help}; the input {name} goes up to {float(largest[at]):.3g}, where others reach {usual:.3g}: {scale}"
