"""What a practitioner should be told, once: of data on which results say little, and of training that diverges."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..core.layout import walk
from ..core.names import shorten, visible
from ..core.once import say_once
from ..data import Federation
from ..data.fitting import COLUMNS
from ..data.pool_clients import label_ranges, sizes_of
from ..data.splits import SPLITS
from ..engines import Plan

SHOWN = 3
"""How many names a sentence lists."""
LARGE = 100.0
"""An input this large, and this many times as large as the others, may make training diverge."""
LOOKED_AT = 32
"""So many training samples show whether there is a loss at all."""
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
    broken = "the loss is not a number even before the first step: look at the loss, the network and the data"
    alone = help if _is_finite_at_first(plan, index) else broken
    if client.late or not client.x.is_floating_point():
        return alone
    x, names = _numbers(plan.part(index, "train").take()[0], data)
    largest = x.abs().amax(0)
    if not largest.numel() or not bool(torch.isfinite(largest).all()) or float(largest.max()) < LARGE:
        return alone
    if x.ndim != 2 or x.shape[1] == 1:
        return f"{help}; inputs go up to {float(largest.max()):.3g}: bring them near 1"
    at = int(largest.argmax())
    usual = float(largest.median())
    if float(largest[at]) < LARGE * max(usual, 1e-6):
        return f"{help}; inputs go up to {float(largest.max()):.3g}: {scale}"
    name = repr(names[at]) if names else f"number {at}"
    return f"{help}; the input {name} goes up to {float(largest[at]):.3g}, where others reach {usual:.3g}: {scale}"


def _is_finite_at_first(plan: Plan, index: int) -> bool:
    """Whether the initial model has a loss on some training samples; a server that has no data cannot say otherwise."""
    client, task = plan.data.clients[index], plan.task_of(index)
    if len(client.x) < len(client.train):
        return True
    x, y = client.take(client.train[:LOOKED_AT].long())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = task.net.apply(task.net.params, task.net.buffers, x.to(plan.device)).outputs
        return bool(torch.isfinite(task.loss_fn(outputs, y.to(plan.device))).all())


def _numbers(x: Tensor, data: Federation) -> tuple[Tensor, tuple[str, ...]]:
    """Inputs of a client and their names; of several those that are columns of numbers, one beside the other."""
    if data.layout is None:
        return x, data.names.features
    parts, names = [], list[str]()
    for path, part in walk(data.layout.unpack(x)):
        if isinstance(part, Tensor) and part.is_floating_point() and part.ndim == 2:
            parts.append(part)
            here = data.names.features if path == COLUMNS else ()
            names += here or [f"{path}[{at}]" if part.shape[1] > 1 else path for at in range(part.shape[1])]
    return torch.cat([x.new_zeros(len(x), 0), *parts], 1), tuple(names)
