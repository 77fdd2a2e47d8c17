"""Whether whole numbers are tokens or measurements, and targets classes or numbers: what the user says, and what is
said where he does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..core.errors import DataError, UnknownNameError
from ..core.layout import is_nested
from ..core.options import did_you_mean
from . import arrays
from .client import PLAIN
from .naming import is_text
from .notes import MANY, say_classes, say_missing_classes, say_tokens
from .pool_clients import distinct
from .samples import Samples
from .splits import SPLITS

if TYPE_CHECKING:
    from .federation import Federation

CHOICES = {"predict": ("classes", "numbers"), "inputs": ("tokens", "numbers"), "labels": ("shared", "own")}


@dataclass(frozen=True)
class Kinds:
    """What arrays hold: targets that are `classes` or `numbers`, inputs that are `tokens` or `numbers`; None takes them
    by their type. Labels are `shared` by all clients, or each client's `own`."""

    predict: str | None = None
    inputs: str | None = None
    labels: str | None = None

    def clients(self, clients: Any) -> Any:
        """Clients, in a mapping or in order, with their arrays as what they are said to hold."""
        if self == Kinds():
            return clients
        if isinstance(clients, Mapping):
            return {name: self.change(data, f"client {name!r}") for name, data in clients.items()}
        return [self.change(data, f"client {place}") for place, data in enumerate(clients)]

    def change(self, data: Any, owner: str) -> Any:
        """A client, or a pool, with its arrays as what they are said to hold."""
        if self == Kinds():
            return data
        if isinstance(data, Mapping) and set(data) <= {*SPLITS, PLAIN}:
            return {which: self.change(part, f"{owner}, {which}") for which, part in data.items()}
        if isinstance(data, Dataset):
            data = arrays.pair(data, owner)
        if not isinstance(data, tuple | list) or len(data) != 2:
            return data
        return self._inputs(data[0], owner), self._targets(data[1], owner)

    def _inputs(self, x: Any, owner: str) -> Any:
        if self.inputs is None or is_nested(x):
            return x
        read = arrays.inputs(x, owner)
        if isinstance(read, Samples):
            if (self.inputs == "numbers") != read.is_floating_point():
                raise DataError(
                    f"{owner}: inputs={self.inputs} is not what the array holds, which is read when it is needed; store"
                    " it as such"
                )
            return read
        if self.inputs == "tokens" and read.is_floating_point():
            if not bool((read == read.round()).all()):
                raise DataError(
                    f"{owner}: inputs={self.inputs} are whole numbers, but some of these are not; leave it out"
                )
            return read.long()
        return read.float() if self.inputs == "numbers" else read

    def _targets(self, y: Any, owner: str) -> Any:
        if self.predict == "numbers" and is_text(y):
            raise DataError(
                f"{owner}: the targets are text, so they are no numbers to predict; leave out predict=numbers"
            )
        if self.predict is None or is_text(y):
            return y
        read = torch.as_tensor(np.asarray(y)) if not isinstance(y, Tensor) else y
        return read.float() if self.predict == "numbers" else arrays.targets(read, owner, 0)

    def say(self, data: Federation) -> None:
        """Say what whole numbers are taken as, where nobody said it."""
        client = data.clients[0]
        if self.inputs is None and data.layout is None and data.tokens:
            lowest = min((int(c.x.min()) for c in distinct(data.clients) if isinstance(c.x, Tensor)), default=0)
            say_tokens(f"{data.name}: the inputs", data.vocabulary - 1, lowest)
        if (
            self.predict is None
            and data.classes
            and data.classes > MANY
            and not data.names.classes
            and client.y.ndim == 1
        ):
            say_classes(f"{data.name}: the targets", data.classes)
        say_missing_classes(data)


def require_known(given: Iterable[str], known: Collection[str], data: str, near: Iterable[str] = ()) -> None:
    """Raise `UnknownNameError` for an argument of `load` that says nothing of such data, with a hint at the names that
    are `near`."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, near)
            raise UnknownNameError(f"load has no argument {name!r} for {data}.{hint} It has {', '.join(known)}.")


def read_kinds(given: Mapping[str, Any]) -> Kinds:
    """What a user says of arrays."""
    require_known(given, CHOICES, "arrays")
    for name, value in given.items():
        if value not in CHOICES[name] and value is not None:
            raise DataError(f"{name}={value!r} is not allowed; {name} must be {' or '.join(CHOICES[name])}")
    return Kinds(**given)
