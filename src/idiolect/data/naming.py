"""What the data call their classes, features and words, and labels that are text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.names import natural_key
from .splits import Indices

SHOWN = 20
"""How many names a line lists."""


@dataclass(frozen=True)
class Naming:
    """Names, in the order of the numbers that stand for them; empty where the data have none.

    Attributes:
        classes: a name for every class.
        features: a name for every number of a sample.
        words: a name for every token.
        targets: a name for every number that is predicted, where these are several.
    """

    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.classes or self.features or self.words or self.targets)

    def as_dict(self) -> dict[str, list[str]]:
        """The names that there are, as plain values."""
        return {kind: list(names) for kind, names in vars(self).items() if names}

    def check(self, classes: int | None, features: tuple[int, ...]) -> Naming:
        """The same names, or a `DataError` where their number is not that of the data."""
        if self.classes and len(self.classes) != classes:
            raise DataError(
                f"{len(self.classes)} names of classes are given for {classes or 'no'} classes; give one for each"
            )
        if self.features and (len(self.features),) != features:
            raise DataError(
                f"{len(self.features)} names of features are given, but a sample has the shape {list(features)}; give"
                " one for each number"
            )
        return self


UNNAMED = Naming()
"""Of data that have numbers only."""


def make_naming(classes: Iterable[Any] | None = None, features: Iterable[Any] | None = None) -> Naming:
    """The names that a user gives."""
    return Naming(tuple(map(str, classes or ())), tuple(map(str, features or ())))


def list_names(names: Sequence[str]) -> str:
    """Names with their numbers, in one line.

    >>> list_names(["cat", "dog"])
    '0 cat, 1 dog'
    """
    more = f", ... ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names[:SHOWN])) + more


def is_text(values: Any) -> bool:
    """Whether labels are text rather than numbers."""
    if isinstance(values, list | tuple):
        return bool(values) and all(isinstance(value, str) for value in values)
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    return isinstance(values, np.ndarray) and (
        values.dtype.kind in "UT" or (values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat))
    )


def sort_names(values: Iterable[Any]) -> tuple[str, ...]:
    """Different names in the order in which people sort them.

    >>> sort_names(["ward 10", "ward 2", "ward 2"])
    ('ward 2', 'ward 10')
    """
    return tuple(sorted({str(value) for value in values}, key=natural_key))


def number_names(clients: int) -> list[str]:
    """Names for clients that have none.

    >>> number_names(2)
    ['client-0', 'client-1']
    """
    return [f"client-{position:0{len(str(clients - 1))}}" for position in range(clients)]


def name_dealt(indices: Sequence[Indices], groups: np.ndarray | None) -> list[str]:
    """The clients' names: of their groups where each holds one of its own, else numbers."""
    if groups is not None:
        names = [np.unique(groups[index]) for index in indices]
        if all(len(inside) == 1 for inside in names) and len({inside[0] for inside in names}) == len(names):
            return [str(inside[0]) for inside in names]
    return number_names(len(indices))


def number_labels(values: Any, names: Sequence[str], owner: str) -> np.ndarray:
    """The numbers of labels that are text."""
    number = {name: place for place, name in enumerate(names)}
    labels = [str(value) for value in np.asarray(values, dtype=object).ravel()]
    if unknown := [label for label in labels if label not in number]:
        raise DataError(f"{owner} has the label {unknown[0]!r}, which is not among {', '.join(names[:SHOWN])}")
    return np.array([number[label] for label in labels], np.int64).reshape(np.shape(np.asarray(values, dtype=object)))


def number_clients(
    clients: Sequence[tuple[str, Any]], names: Sequence[str] = ()
) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    """Clients by name, with numbers in place of labels that are text, and the names of the classes: the given ones,
    else all that occur, as people sort them. A client is a pair (x, y) or a mapping of such."""
    found = [value for _, data in clients for _, y in _pairs(data) if is_text(y) for value in np.ravel(np.asarray(y))]
    if not found:
        return list(clients), tuple(names)
    known = tuple(names) or sort_names(found)

    def number(data: Any, owner: str) -> Any:
        if isinstance(data, Mapping):
            return {which: number(part, f"{owner}, {which}") for which, part in data.items()}
        if not _pairs(data):
            raise DataError(f"{owner} is no (x, y) with labels that are text, as others are; give all alike")
        x, y = data
        if not is_text(y):
            raise DataError(f"{owner} has labels that are no text, but other clients have; give all as text or numbers")
        return x, number_labels(y, known, owner)

    return [(name, number(data, f"client {name!r}")) for name, data in clients], known


def number_own(clients: Sequence[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], list[tuple[str, ...]]]:
    """Clients by name, each with its labels numbered by itself, and the names of each one's classes."""
    numbered, names = [], []
    for name, data in clients:
        pairs = _pairs(data)
        if not pairs:
            raise DataError(f"client {name!r}: labels=own is for arrays (x, y); read the data set first")
        labels = [np.asarray(y) for _, y in pairs]
        if any(y.dtype.kind == "f" for y in labels):
            raise DataError(f"client {name!r} has numbers to predict, and labels=own is for classes; leave it out")
        own = sort_names(value for y in labels for value in y.ravel().tolist())
        number = partial(_number, names=own)
        numbered.append(
            (name, {which: number(part) for which, part in data.items()} if isinstance(data, Mapping) else number(data))
        )
        names.append(own)
    return numbered, names


def number_dealt(y: Tensor, names: Sequence[str], clients: Sequence[Tensor]) -> tuple[Tensor, list[tuple[str, ...]]]:
    """Labels of which each client, given by the positions of its samples, numbers its own, and their names.

    >>> number_dealt(torch.tensor([2, 0, 2, 1]), ["ash", "elm", "oak"], [torch.tensor([0, 1]), torch.tensor([2, 3])])
    (tensor([1, 0, 1, 0]), [('ash', 'oak'), ('elm', 'oak')])
    """
    numbered, own = y.clone(), []
    for index in clients:
        known, places = torch.unique(y[index], return_inverse=True)
        numbered[index] = places
        own.append(tuple(names[label] for label in known.tolist()))
    return numbered, own


def _number(pair: Any, names: tuple[str, ...]) -> tuple[Any, np.ndarray]:
    return pair[0], number_labels(np.asarray(pair[1]), names, "it")


def _pairs(data: Any) -> list[Any]:
    parts = list(data.values()) if isinstance(data, Mapping) else [data]
    return [part for part in parts if isinstance(part, tuple | list) and len(part) == 2]
