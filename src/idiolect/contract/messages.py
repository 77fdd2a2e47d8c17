"""The only things that cross the wire: what the server sends, and what a client sends back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ..core.tree import Slots


class Download(NamedTuple):
    """What the server sends: the slots that all participants get, and those that each gets besides."""

    shared: Slots
    each: Mapping[int, Slots] = {}

    def of(self, client: int) -> Slots:
        """Everything that one client gets."""
        return {**self.shared, **self.each.get(client, {})}


@dataclass(frozen=True)
class Upload:
    """What a client sends back: slots and, for slots that are not sent whole, which coordinates are."""

    slots: Slots
    masks: Slots = field(default_factory=dict)

    @property
    def weight(self) -> Tensor:
        """The client's number of training samples."""
        return self.slots["weight"]["samples"]


Uploads = Mapping[int, Upload]
"""What each client sent, by the number of the client."""
