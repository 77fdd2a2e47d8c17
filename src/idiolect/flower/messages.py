"""What crosses the network: a parcel of plain values and of encoded slots. Nothing in it executes, and whatever is
read from one is checked first."""

from __future__ import annotations

import json
import math
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
class Parcel:
    """A message: named values, and slots as bytes.

    >>> Parcel({"round": 3}).get("round", int)
    3
    """

    head: Mapping[str, Value]
    bodies: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of everything that is encoded."""
        return sum(map(len, self.bodies.values()))

    def get(self, name: str, kind: type[T]) -> T:
        """A value that must be there and be of a kind."""
        held = self.head.get(name)
        if type(held) is not kind:
            raise InputError(f"it says {name}={held!r:.80}, where a value of type {kind.__name__} belongs")
        return held

    def json(self, name: str) -> Any:
        """A value that is written as JSON."""
        try:
            return json.loads(self.get(name, str))
        except (ValueError, RecursionError) as error:
            raise InputError(f"its {name} cannot be read") from error

    def slots(self) -> tuple[Slots, Slots]:
        """The slots of all bodies together, and the masks of those that were sent in part."""
        slots: Slots = {}
        masks: Slots = {}
        for data in self.bodies.values():
            some, partial = codec.decode(data)
            slots |= some
            masks |= partial
        return slots, masks


def write_scores(scores: Sequence[Score]) -> str:
    """Scores as JSON."""
    return json.dumps([[s.point, s.split, s.metric, s.value, s.samples] for s in scores])


def read_scores(parcel: Parcel) -> list[Score]:
    """The scores of a parcel."""
    kinds = (str, str, str, float, int)
    scores = []
    for entry in parcel.json("scores"):
        if not isinstance(entry, list) or [type(each) for each in entry] != list(kinds):
            raise InputError(f"it sent the score {entry!r:.80}, which is none")
        scores.append(Score(*entry))
    for each in scores:
        names = (each.point, each.split, each.metric)
        if not 0 <= each.samples < 2**40 or math.isinf(each.value) or not all(map(is_name, names)):
            raise InputError(f"it sent the score {each!r:.120}, which cannot be")
    return scores


def is_name(text: str) -> bool:
    """Whether a client's word may be kept as the name of something."""
    return text.isprintable() and len(text) <= 100


def one_line(text: str) -> str:
    """A client's words as one line of a log, which they cannot break up or flood.

    >>> one_line("no disk\\nINFO all is well")
    'no disk INFO all is well'
    """
    return "".join(each if each.isprintable() else " " for each in text[:300])
