"""The messages between server and clients: named plain values and encoded slots. Nothing in a message is executed, and
every value is checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core import codec
from ..core.errors import InputError
from ..core.tree import Slots
from ..engines.client_evaluation import Score

Value = int | float | str | bool
T = TypeVar("T", int, float, str, bool)


@dataclass(frozen=True)
class Message:
    """A request of the server or the reply of a client. `transport.to_records` makes a Flower message's content of it.

    Attributes:
        fields: plain values by name. A request has `kind` (`hello`, `train`, `evaluate` or `finish`); a reply has
            `client`, and `problem` where the client could not do what was asked.
        payloads: encoded slots by name: `shared` and `own` are the two parts of a download, `upload` is an upload.

    >>> Message({"round": 3}).get("round", int)
    3
    """

    fields: Mapping[str, Value]
    payloads: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return sum(map(len, self.payloads.values()))

    def get(self, name: str, kind: type[T]) -> T:
        """Read a field that must exist and be of a type."""
        value = self.fields.get(name)
        if type(value) is not kind:
            raise InputError(f"the field {name} must be of type {kind.__name__}, but is {value!r:.80}")
        return value

    def get_json(self, name: str) -> Any:
        """Read a field that holds JSON."""
        try:
            return json.loads(self.get(name, str))
        except (ValueError, RecursionError) as error:
            raise InputError(f"the field {name} is not valid JSON") from error

    def slots(self) -> tuple[Slots, Slots]:
        """Decode all payloads: their slots together, and the masks of those that were sent in part."""
        slots: Slots = {}
        masks: Slots = {}
        for data in self.payloads.values():
            some, partial = codec.decode(data)
            slots |= some
            masks |= partial
        return slots, masks


def write_scores(scores: Sequence[Score]) -> str:
    """Write scores as JSON; `validation.read_scores` reads them."""
    return json.dumps([[s.point, s.split, s.metric, s.value, s.samples] for s in scores])
