"""Data that are elsewhere: a federation whose names, sizes and shapes are known, but no sample. Whatever needs one says
so in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..core.errors import DataError
from .federation import Federation
from .samples import Draw, Samples


class AbsentInputs(Samples):
    """Inputs of which the shape and the type are known; `advice` says where to get the others."""

    finite = True

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, advice: str) -> None:
        self.shape, self.dtype, self.advice = torch.Size(shape), dtype, advice

    def __getitem__(self, chosen: Any) -> NoReturn:
        raise DataError(self.advice)

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """An error: there are none."""
        raise DataError(self.advice)

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """An error: there are none."""
        raise DataError(self.advice)

    def largest(self) -> int:
        """An error: there are none."""
        raise DataError(self.advice)


class AbsentTargets:
    """Targets of which the shape and the type are known."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, advice: str) -> None:
        self.shape, self.dtype, self.advice = torch.Size(shape), dtype, advice

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> NoReturn:
        raise DataError(self.advice)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DataError(self.advice)

    def is_floating_point(self) -> bool:
        """Whether they are numbers rather than classes."""
        return self.dtype.is_floating_point


@dataclass(frozen=True, eq=False, repr=False)
class DescribedFederation(Federation):
    """A federation whose data are elsewhere: what is otherwise computed of them is given."""

    known_fingerprint: str = ""
    known_shape: Any = ()

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the data that it describes."""
        return self.known_fingerprint

    @cached_property
    def input_shape(self) -> Any:
        """The shape of one sample, as networks see it."""
        return self.known_shape
