"""What must hold for data to be usable, and sentences that say which client breaks it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from .arrays import vocabulary_of
from .pool_clients import PoolClients, distinct, label_ranges, names_of, sizes_of
from .samples import Inputs, Samples

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("idiolect")

MOST_CLASSES = 10**7
"""How many classes, or different tokens, there may be: a network has an output, or a row, for each."""


def check_clients(clients: Sequence[Client], classes: int | None) -> int | None:
    """Raise `DataError` unless the clients make a federation; returns the number of classes (None: numbers)."""
    if not clients:
        raise DataError("a federation needs clients, but none were given; give at least one")
    names = names_of(clients)
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise DataError(f"several clients are called {doubled[0]!r}; give each its own name")
    for name in names:
        _check_name(name)
    _check_sizes(clients)
    for client in distinct(clients):
        _check_alike(clients[0], client)
    _check_finite(clients, lambda client: client.x, "inputs")
    _check_finite(clients, lambda client: client.y, "targets")
    if (words := vocabulary_of(client.x for client in distinct(clients))) > MOST_CLASSES:
        raise DataError(
            f"the largest token is {words - 1}, but there may be at most {MOST_CLASSES:,}; number them from 0"
        )
    for client in clients if not isinstance(clients, PoolClients) or clients.shifts else ():
        if client.shift is not None:
            client.take(client.train[:1].long())
    return None if clients[0].y.is_floating_point() else _check_labels(clients, classes)


def warn_of_random(clients: Sequence[Client]) -> None:
    """Say once whose validation and test samples draw random numbers, as if they were to be augmented."""
    if not any(client.late for client in distinct(clients)):
        return
    names = [
        client.name
        for client in clients
        if isinstance(client.x, Samples) and client.x.draws_at(torch.cat([client.val, client.test]).long())
    ]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        log.warning(
            "the data set of client %r%s draws random numbers, which its validation and test samples also get (always"
            " the same ones); give the same samples without them as well: {'train': augmented, 'plain': plain}",
            names[0],
            more,
        )


def check_public(public: tuple[Inputs, Tensor], clients: Sequence[Client]) -> None:
    """Raise `DataError` unless public samples look like the clients' own."""
    x, client_x = public[0], clients[0].x
    if not len(x) or x.shape[1:] != client_x.shape[1:] or x.dtype != client_x.dtype:
        raise DataError(
            f"the public data hold {len(x)} samples of shape {list(x.shape[1:])} and type {x.dtype}, but the clients'"
            f" samples have the shape {list(client_x.shape[1:])} and type {client_x.dtype}; they must be alike"
        )


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name of client {name!r} is not valid Unicode text; rename it") from error


def _check_sizes(clients: Sequence[Client]) -> None:
    sizes = sizes_of(clients)
    for at in np.flatnonzero(sizes[:, 0] == 0)[:1].tolist():
        name, (_, val, test) = clients[at].name, sizes[at].tolist()
        if not val and not test:
            raise DataError(f"client {name!r} is empty; leave it out or give it samples")
        raise DataError(
            f"client {name!r} has no training samples ({val} for validation, {test} for test); give it at least one"
        )


def _check_alike(first: Client, client: Client) -> None:
    for what, mine, other in (("inputs", client.x, first.x), ("targets", client.y, first.y)):
        if mine.shape[1:] != other.shape[1:] or mine.dtype != other.dtype:
            raise DataError(
                f"the {what} of client {client.name!r} have the shape {list(mine.shape[1:])} and type {mine.dtype},"
                f" those of client {first.name!r} {list(other.shape[1:])} and {other.dtype}; all clients must agree"
            )


def _check_finite(clients: Sequence[Client], get: Callable[[Client], Inputs], what: str) -> None:
    # Clients may share one tensor, which is then looked at once; part by part, as a whole one would be copied.
    # What is read when it is needed is looked at then.
    tensors = {id(body): body for body in map(get, distinct(clients)) if isinstance(body, Tensor)}
    if all(bool(torch.isfinite(part).all()) for tensor in tensors.values() for part in torch.split(tensor, 1024)):
        return
    for client in clients:
        body = get(client)
        if isinstance(body, Samples):
            continue
        values = body[client.indices].flatten(1) if body.ndim > 1 else body[client.indices, None]
        bad = int((~torch.isfinite(values)).any(1).sum())
        if bad:
            raise DataError(
                f"client {client.name!r} has {bad} of {len(values)} samples with NaN or infinite {what};"
                " drop them or fill the gaps first"
            )


def _check_labels(clients: Sequence[Client], classes: int | None) -> int:
    lows, highs = label_ranges(clients)
    classes = int(highs.max()) + 1 if classes is None else classes
    if classes > MOST_CLASSES:
        raise DataError(
            f"the largest label is {classes - 1}, but there may be at most {MOST_CLASSES:,} classes; number the classes"
            " from 0 on"
        )
    for at in np.flatnonzero((lows < 0) | (highs >= classes))[:1].tolist():
        name, low, high = clients[at].name, int(lows[at]), int(highs[at])
        if low < 0:
            raise DataError(f"client {name!r} has the label {low}; number the classes from 0 on")
        raise DataError(
            f"client {name!r} has the label {high}; labels must be whole numbers from 0 to {classes - 1}."
            f" Number the classes from 0 on, or raise classes={classes}"
        )
    return classes
