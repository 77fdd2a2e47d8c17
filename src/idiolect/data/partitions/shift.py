"""Feature shift: a fixed transformation of one client's inputs, such as a rotation or noise.
It is applied when the client's samples are gathered, so that the data themselves are held once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import DataError, OptionError

KINDS = ("rotate", "noise", "contrast", "scale", "invert", "blur")
_NEUTRAL = {"rotate": 0.0, "noise": 0.0, "contrast": 1.0, "scale": 1.0, "invert": 0.0, "blur": 0.0}


@dataclass(frozen=True)
class Shift:
    """A transformation of inputs by a fixed amount.

    | kind | amount | inputs |
    |---|---|---|
    | rotate | degrees, counter-clockwise | images `[n, c, h, w]` |
    | noise | standard deviation of Gaussian noise | any numbers |
    | contrast | factor on the distance from the sample's mean | any numbers |
    | scale | factor on the values | any numbers |
    | invert | weight of `1 - x` | numbers in [0, 1] |
    | blur | width of a Gaussian, in pixels | images `[n, c, h, w]` |

    >>> Shift("invert", 1.0)(torch.tensor([[0.0, 0.25]]), torch.tensor([7]))
    tensor([[1.0000, 0.7500]])
    """

    kind: str
    amount: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"a shift cannot be {self.kind!r}; it must be one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind}({self.amount:g})"

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """The inputs `x` of the samples numbered `index`, transformed."""
        if not x.is_floating_point():
            raise DataError(f"the shift {self} needs numbers as inputs, not tokens of type {x.dtype}")
        if self.kind in ("rotate", "blur") and x.ndim != 4:
            raise DataError(
                f"the shift {self} needs images [samples, channels, height, width], but the inputs have the shape"
                f" {list(x.shape)}; use noise, contrast, scale or invert"
            )
        if len(x) == 0:
            return x
        if self.kind == "noise":
            return x + self.amount * _gaussian(index, x[0].numel(), self.seed).reshape(x.shape)
        return _APPLY[self.kind](x, self.amount)


def shift_for(kind: str, strength: float, position: int, clients: int) -> Shift | None:
    """The shift of the client at `position` among `clients`; None where it changes nothing.

    Rotations are spread evenly over `strength` times the full circle; noise, contrast, scale and blur grow evenly
    from nothing at the first client; every second client is inverted; `mixed` goes through the kinds in turn,
    the first client of all unchanged and every further turn weaker than the last.

    >>> [str(shift_for("rotate", 1.0, position, 4)) for position in range(4)]
    ['None', 'rotate(90)', 'rotate(180)', 'rotate(270)']
    >>> str(shift_for("mixed", 1.0, 2, 6))
    'noise(0.5)'
    """
    if kind == "mixed":
        if position == 0:
            return None
        turn, place = divmod(position - 1, len(KINDS))
        kind, level = KINDS[place], strength / (1 + turn)
        circle = 0.25 * level
    else:
        level = strength * (position % 2 if kind == "invert" else position / max(1, clients - 1))
        circle = strength * position / clients
    amount = {
        "rotate": 360.0 * circle % 360.0,
        "noise": 0.5 * level,
        "contrast": 1.0 - 0.8 * level,
        "scale": 1.0 - 0.8 * level,
        "invert": level,
        "blur": 2.0 * level,
    }[kind]
    return None if amount == _NEUTRAL[kind] else Shift(kind, amount, seed=position)


def _rotate(x: Tensor, degrees: float) -> Tensor:
    height, width = x.shape[-2:]
    turns, rest = divmod(degrees, 90.0)
    if rest == 0 and (height == width or turns % 2 == 0):
        return torch.rot90(x, int(turns), dims=(2, 3))
    grid = _turned_grid(degrees, height, width).to(x.dtype)
    return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), align_corners=False)


@lru_cache(maxsize=1024)
def _turned_grid(degrees: float, height: int, width: int) -> Tensor:
    """Where the pixels of a turned image come from, which is the same for all images of a client."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    theta = torch.tensor([[[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]])
    return F.affine_grid(theta, [1, 1, height, width], align_corners=False)


def _contrast(x: Tensor, factor: float) -> Tensor:
    mean = x.flatten(1).mean(1).reshape(-1, *[1] * (x.ndim - 1))
    return mean + factor * (x - mean)


def _scale(x: Tensor, factor: float) -> Tensor:
    return factor * x


def _invert(x: Tensor, weight: float) -> Tensor:
    return (1 - weight) * x + weight * (1 - x)


def _blur(x: Tensor, sigma: float) -> Tensor:
    radius = max(1, math.ceil(3 * sigma))
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = kernel / kernel.sum()
    planes = F.pad(x.reshape(-1, 1, *x.shape[-2:]), [radius] * 4, mode="replicate")
    return F.conv2d(F.conv2d(planes, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1)).reshape(x.shape)


_APPLY: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotate": _rotate,
    "contrast": _contrast,
    "scale": _scale,
    "invert": _invert,
    "blur": _blur,
}


def _gaussian(index: Tensor, width: int, seed: int) -> Tensor:
    """Standard normal numbers that depend on a sample's own number, not on what it is gathered with."""
    cells = index.numpy().astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
    radius, angle = (_uniform(2 * cells + np.uint64(which), seed) for which in (0, 1))
    return torch.from_numpy(np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)).float()


def _uniform(cells: np.ndarray, seed: int) -> np.ndarray:
    """Numbers in [0, 1) from counters, by the mixing steps of SplitMix64."""
    start = np.uint64(seed * 0xD1B54A32D192ED03 % 2**64)
    z = ((cells + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)) ^ start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    return mixed.astype(np.float64) * 2.0**-53
