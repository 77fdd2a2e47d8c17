"""Inputs that are read late: when a batch is made. `Samples` stands wherever a tensor of inputs does; what a kind of
them reads from is in `lazy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError

if TYPE_CHECKING:
    from .lazy.cache import Store

LARGE = 768 << 20
"""Bytes, as float32, up to which files and data sets are read at once and kept."""
PART = 256
"""Samples that are looked at together where all are looked at."""


class Draw(NamedTuple):
    """Which pass over its training samples a client is in: with a sample's number, what its randomness depends on."""

    seed: int
    client: int
    round: int
    epoch: int


class Samples(ABC):
    """Inputs that are read when they are needed.

    Attributes:
        shape: of all samples together, as a tensor's.
        dtype: of a batch.
        finite: whether they cannot be NaN or infinite.
        key: what names the raw rows from one process to the next, for a cache on disk; empty if nothing does.
        raw: shape and type of one row as it is cached; None where nothing is cached.
    """

    shape: torch.Size
    dtype: torch.dtype = torch.float32
    finite = False
    key = ""
    raw: tuple[tuple[int, ...], np.dtype[np.generic]] | None = None
    store: Store | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: np.ndarray | Tensor) -> Samples:
        """Some of the samples, still unread."""
        return Chosen(self, torch.as_tensor(np.asarray(chosen)))

    @property
    def ndim(self) -> int:
        """The number of dimensions of a batch."""
        return len(self.shape)

    @property
    def sample_bytes(self) -> int:
        """The size of a sample in a batch."""
        return self.shape[1:].numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether a batch holds numbers rather than tokens."""
        return self.dtype.is_floating_point

    def take(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        """Inputs at some positions, and their targets, which are `y` unless reading gives them too. `draw` is given for
        training samples: whatever is random in reading them depends on it."""
        x, y = self.read(positions, y, owner, draw)
        if not self.finite:
            self._check_finite(x, positions, owner)
        return x, y

    @abstractmethod
    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """The same, unchecked."""

    @abstractmethod
    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """Bytes that name some of the samples, without holding all of them at once."""

    @property
    def parts(self) -> Sequence[Samples]:
        """Those that read by themselves, if these are made of others."""
        return (self,)

    def largest(self) -> int:
        """The largest token."""
        return max(part.largest() for part in self.parts)

    def draws_at(self, positions: Tensor) -> bool:
        """Whether reading some of the samples draws random numbers."""
        return False

    def _check_finite(self, x: Tensor, positions: Tensor, owner: str) -> None:
        """Look at what has not been looked at."""
        if not hasattr(self, "_seen"):
            self._seen = torch.zeros(len(self), dtype=torch.bool)
        fresh = ~self._seen[positions]
        if x.is_floating_point() and bool(fresh.any()):
            good = torch.isfinite(x.flatten(1)).all(1)
            if not bool(good.all()):
                raise DataError(
                    f"{owner}, sample {int(positions[~good][0])}: its inputs are NaN or infinite; drop the sample or"
                    " fill the gaps first"
                )
            self._seen[positions] = True


class Chosen(Samples):
    """Some samples of others."""

    def __init__(self, inner: Samples, index: Tensor) -> None:
        self.inner, self.index = inner, index
        self.shape, self.dtype = torch.Size((len(index), *inner.shape[1:])), inner.dtype
        self.finite = inner.finite

    @property
    def parts(self) -> Sequence[Samples]:
        """Those that it takes from."""
        return self.inner.parts

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Out of the others."""
        return self.inner.read(self.index[positions], y, owner, draw)

    def draws_at(self, positions: Tensor) -> bool:
        """As for the others."""
        return self.inner.draws_at(self.index[positions])

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """As of the others."""
        return self.inner.digest(self.index[positions])


class Joined(Samples):
    """Several bodies of samples one after another, as a client's splits are."""

    def __init__(self, bodies: Sequence[Tensor | Samples]) -> None:
        self.bodies = bodies
        ends = torch.tensor([len(body) for body in bodies]).cumsum(0)
        self.starts = [0, *ends.tolist()]
        self.shape, self.dtype = torch.Size((self.starts[-1], *bodies[0].shape[1:])), bodies[0].dtype
        self.finite = all(isinstance(body, Samples) and body.finite for body in bodies)

    @property
    def parts(self) -> Sequence[Samples]:
        """Those of its bodies that read late."""
        return [part for body in self.bodies if isinstance(body, Samples) for part in body.parts]

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Out of its bodies."""
        x, y = torch.empty((len(positions), *self.shape[1:]), dtype=self.dtype), y.clone()
        for at, body in enumerate(self.bodies):
            rows = ((positions >= self.starts[at]) & (positions < self.starts[at + 1])).nonzero().flatten()
            if len(rows):
                inside = positions[rows] - self.starts[at]
                if isinstance(body, Tensor):
                    x[rows] = body[inside]
                else:
                    x[rows], y[rows] = body.read(inside, y[rows], owner, draw)
        return x, y

    def draws_at(self, positions: Tensor) -> bool:
        """In any of its bodies."""
        inside = [(body, self._inside(at, positions)) for at, body in enumerate(self.bodies)]
        return any(isinstance(body, Samples) and len(rows) and body.draws_at(rows) for body, rows in inside)

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """Body after body."""
        for at, body in enumerate(self.bodies):
            yield from digest_rows(body, self._inside(at, positions))

    def _inside(self, at: int, positions: Tensor) -> Tensor:
        first, end = self.starts[at], self.starts[at + 1]
        inside: Tensor = positions[(positions >= first) & (positions < end)] - first
        return inside


Inputs = Tensor | Samples


def join_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Several bodies of inputs as one: a tensor where all are tensors."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts):
        return torch.cat(tensors)
    return parts[0] if len(parts) == 1 else Joined(parts)


def digest_rows(values: Inputs, positions: Tensor) -> Iterator[bytes]:
    """Bytes that name some rows, part by part."""
    if isinstance(values, Samples):
        yield from values.digest(positions)
    else:
        for part in torch.split(positions, PART):
            yield values[part].contiguous().numpy().tobytes()
