"""A client: index sets into data which are kept once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, InputError
from . import arrays
from .partitions.shift import Shift
from .samples import Draw, Inputs, Samples, join_inputs
from .splits import SPLITS, Shares, cut

if TYPE_CHECKING:
    from .transforms import Transforms


@dataclass(frozen=True, eq=False, repr=False)
class Client:
    """One client: index sets into `x` and `y`, which all clients may share. `labels` are the names of its own classes,
    where they are not those of all clients.

    >>> client = Client("a", torch.eye(3), torch.tensor([0, 1, 0]), *map(torch.tensor, ([0, 2], [1], [])))
    >>> client.split("val")
    (tensor([[0., 1., 0.]]), tensor([1]))
    """

    name: str
    x: Inputs
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    shift: Shift | None = None
    transform: Transforms | None = None
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shift = f", {self.shift}" if self.shift else ""
        return f"Client({self.name!r}, train={len(self.train)}, val={len(self.val)}, test={len(self.test)}{shift})"

    def __len__(self) -> int:
        """The number of training samples."""
        return len(self.train)

    @property
    def indices(self) -> Tensor:
        """All samples of the client, in the order of the data."""
        return torch.cat([self.train, self.val, self.test]).sort().values

    def split(self, which: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the training, validation or test samples."""
        if which not in SPLITS:
            raise InputError(f"there is no split {which!r}; choose {', '.join(SPLITS)}")
        return self.take(getattr(self, which).long())

    @property
    def late(self) -> bool:
        """Whether the inputs are read when they are needed, so that a batch is all that should be taken at once."""
        return isinstance(self.x, Samples)

    def take(self, positions: Tensor, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets at some positions of `x` and `y`, as this client sees them. In a pass over training
        samples `draw` says in which, and random transforms apply."""
        y, owner = self.y.index_select(0, positions), f"client {self.name!r}"
        if isinstance(self.x, Samples):
            x, y = self.x.take(positions, y, owner, draw)
        else:
            x = self.x.index_select(0, positions)  # several times faster than x[positions]
        x = self.shift(x, positions) if self.shift else x
        return (self.transform(x, positions, owner, draw) if self.transform else x), y


PLAIN = "plain"
"""What a client calls its training samples without random transforms, from which validation and test are cut."""


def build_client(name: str, data: Any, shares: Shares, rng: np.random.Generator, classes: int | None) -> Client:
    """A client with its own tensors: the splits it gives one after another, the others cut from its training data."""
    owner = f"client {name!r}"
    splits = dict(data) if isinstance(data, Mapping) else {"train": data}
    if "train" not in splits or set(splits) - {*SPLITS, PLAIN}:
        raise DataError(
            f"{owner} has the keys {', '.join(map(str, splits)) or 'none'}; give train and, if you like, val and test,"
            f" or {PLAIN}: the training samples without random transforms"
        )
    parts = {
        which: arrays.pair(splits[which], f"{owner}, {which}", classes) for which in (*SPLITS, PLAIN) if which in splits
    }
    if not sum(len(x) for x, _ in parts.values()):
        raise DataError(f"{owner} is empty; leave it out or give it samples")
    if len({(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in parts.values()}) > 1:
        raise DataError(f"{owner}: its splits differ in the shape or type of their samples; bring them to one")
    wanted = [
        share if which == "train" or which not in splits else 0.0 for which, share in zip(SPLITS, shares, strict=True)
    ]
    first, second, third = (share / sum(wanted) for share in wanted)
    start = len(parts["train"][0])
    cuts = cut(start, (first, second, third), rng)
    for which in [which for which in parts if which in ("val", "test")]:
        cuts[which] = np.arange(start, start + len(parts[which][0]))
        start += len(cuts[which])
    if PLAIN in parts:
        if len(parts[PLAIN][0]) != len(parts["train"][0]) or not torch.equal(parts[PLAIN][1], parts["train"][1]):
            raise DataError(f"{owner}: {PLAIN} must hold the samples of train in the same order, with the same targets")
        cuts |= {which: start + cuts[which] for which in ("val", "test") if which not in parts}
    x, y = join_inputs([x for x, _ in parts.values()]), torch.cat([y for _, y in parts.values()])
    train, val, test = (torch.from_numpy(cuts[which]) for which in SPLITS)
    return Client(name, x, y, train, val, test)
