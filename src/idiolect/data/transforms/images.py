"""Transforms of images [samples, channels, height, width], a whole batch at once. A sample's result depends on the
sample and its random numbers alone, to the bit: only operations on single numbers, and sums within a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.options import option
from ..formats.images import NORMALISATIONS
from .base import Transform, transform_error, transforms


@dataclass(frozen=True)
class ImageTransform(Transform):
    """A transform of images."""

    def check(self, x: Tensor) -> None:
        """Raise an error unless these are images."""
        if x.ndim != 4 or not x.is_floating_point():
            raise transform_error(
                self,
                f"is for images [samples, channels, height, width], but a batch has the shape {list(x.shape)} and type"
                f" {x.dtype}; leave it out",
            )


@transforms.register("crop")
@dataclass(frozen=True)
class Crop(ImageTransform):
    """Zeros around the image, and a random piece of it; what is no training sample gets the middle."""

    draws: ClassVar[int] = 2
    moves: ClassVar[bool] = True

    pad: int = option(4, min=0, help="pixels of zeros on each side")
    size: int | None = option(None, min=1, help="height and width of the piece; none is the image's own")

    def check(self, x: Tensor) -> None:
        """The piece must be in the image."""
        super().check(x)
        high, wide = (length + 2 * self.pad for length in x.shape[2:])
        if self.size is not None and self.size > min(high, wide):
            raise transform_error(
                self,
                f"cannot take {self.size} x {self.size} pixels out of {wide} x {high} (images of {x.shape[3]} x"
                f" {x.shape[2]} with the pad); choose a smaller size, or resize first",
            )

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """A piece at a random place."""
        padded, (high, wide) = F.pad(x, [self.pad] * 4), self._lengths(x)
        spare = torch.tensor([padded.shape[2] - high + 1, padded.shape[3] - wide + 1])
        tops, lefts = (u * spare).long().T.tolist()
        pieces = [p[:, t : t + high, s : s + wide] for p, t, s in zip(padded, tops, lefts, strict=True)]
        return torch.stack(pieces) if pieces else padded[:, :, :high, :wide]

    def plain(self, x: Tensor) -> Tensor:
        """The middle."""
        if self.size is None:
            return x
        padded, (high, wide) = F.pad(x, [self.pad] * 4), self._lengths(x)
        top, left = (padded.shape[2] - high) // 2, (padded.shape[3] - wide) // 2
        return padded[:, :, top : top + high, left : left + wide].contiguous()

    def _lengths(self, x: Tensor) -> tuple[int, int]:
        return (x.shape[2], x.shape[3]) if self.size is None else (self.size, self.size)


@transforms.register("flip")
@dataclass(frozen=True)
class Flip(ImageTransform):
    """Left becomes right, in some of the images."""

    draws: ClassVar[int] = 1
    moves: ClassVar[bool] = True

    p: float = option(0.5, min=0.0, max=1.0, help="share of the images")
    vertical: bool = option(False, help="up becomes down instead")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Some images turned over."""
        return torch.where((u[:, 0] < self.p).view(-1, 1, 1, 1), x.flip(2 if self.vertical else 3), x)


@transforms.register("jitter")
@dataclass(frozen=True)
class Jitter(ImageTransform):
    """Other brightness, contrast and saturation: each a factor drawn evenly from 1 - a to 1 + a."""

    draws: ClassVar[int] = 3

    brightness: float = option(0.2, min=0.0, max=1.0, help="a of the factor on all values")
    contrast: float = option(0.2, min=0.0, max=1.0, help="a of the factor on the distance from the image's mean")
    saturation: float = option(0.2, min=0.0, max=1.0, help="a of the factor on the distance from grey, of colours")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Each image by factors of its own."""
        amounts = torch.tensor([self.brightness, self.contrast, self.saturation], dtype=u.dtype)
        bright, contrast, colour = ((2 * u - 1) * amounts + 1).to(x.dtype).T.reshape(3, -1, 1, 1, 1)
        x = x * bright
        mean = torch.stack([image.sum() for image in x]).view(-1, 1, 1, 1) / x[:1].numel() if len(x) else 0.0
        x = mean + contrast * (x - mean)
        if x.shape[1] == 1:
            return x
        grey = x[:, :1]
        for channel in range(1, x.shape[1]):
            grey = grey + x[:, channel : channel + 1]
        grey = grey / x.shape[1]
        coloured: Tensor = grey + colour * (x - grey)
        return coloured


@transforms.register("rotate")
@dataclass(frozen=True)
class Rotate(ImageTransform):
    """Turned about the middle by an angle drawn evenly from both directions; zeros come in at the corners."""

    draws: ClassVar[int] = 1
    moves: ClassVar[bool] = True

    degrees: float = option(15.0, min=0.0, max=180.0, help="the largest angle")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Each image by an angle of its own."""
        high, wide = x.shape[2:]
        angles = [math.radians((2 * part - 1) * self.degrees) for part in u[:, 0].tolist()]
        cos, sin = (torch.tensor([f(a) for a in angles], dtype=x.dtype).view(-1, 1, 1) for f in (math.cos, math.sin))
        rows = (torch.arange(high, dtype=x.dtype) - (high - 1) / 2).view(1, -1, 1)
        columns = (torch.arange(wide, dtype=x.dtype) - (wide - 1) / 2).view(1, 1, -1)
        across, down = cos * columns - sin * rows, sin * columns + cos * rows
        grid = torch.stack([across * (2 / wide), down * (2 / high)], -1)
        return F.grid_sample(x, grid, align_corners=False)


@transforms.register("erase")
@dataclass(frozen=True)
class Erase(ImageTransform):
    """A random rectangle becomes zero, in some of the images."""

    draws: ClassVar[int] = 5

    p: float = option(0.5, min=0.0, max=1.0, help="share of the images")
    least: float = option(0.02, above=0.0, max=1.0, help="smallest share of an image's pixels")
    most: float = option(0.2, above=0.0, max=1.0, help="largest share of an image's pixels")

    def check(self, x: Tensor) -> None:
        """The smallest must not be larger than the largest."""
        super().check(x)
        if self.least > self.most:
            raise transform_error(self, "has a least share above its most; exchange them")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Rectangles of half to twice the image's own ratio of height to width."""
        high, wide = x.shape[2:]
        masks = torch.ones(len(x), 1, high, wide, dtype=torch.bool)
        for mask, (chance, share, form, top, left) in zip(masks, u.tolist(), strict=True):
            if chance < self.p:
                side, ratio = math.sqrt(self.least + share * (self.most - self.least)), 2 ** (form - 0.5)
                tall = max(1, min(high, round(high * side * ratio)))
                broad = max(1, min(wide, round(wide * side / ratio)))
                start, begin = int(top * (high - tall + 1)), int(left * (wide - broad + 1))
                mask[:, start : start + tall, begin : begin + broad] = False
        return x * masks


@transforms.register("resize")
@dataclass(frozen=True)
class Resize(ImageTransform):
    """All images brought to squares of one side, bilinear with anti-aliasing."""

    moves: ClassVar[bool] = True

    side: int = option(32, min=1, help="height and width")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """The images in their new size."""
        if x.shape[2:] == (self.side, self.side):
            return x
        return F.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)


@transforms.register("normalize", "normalise")
@dataclass(frozen=True)
class Normalize(Transform):
    """Minus a mean, divided by a deviation, for each channel: of known sets of images, or given."""

    by: str = option("half", choices=tuple(NORMALISATIONS), help="constants for values in [0, 1]")
    mean: tuple[float, ...] | None = option(None, help="given means instead, one or as many as channels")
    std: tuple[float, ...] | None = option(None, help="given deviations instead, one or as many as channels")

    def _constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        mean, std = NORMALISATIONS[self.by]
        return (mean if self.mean is None else self.mean), (std if self.std is None else self.std)

    def check(self, x: Tensor) -> None:
        """The constants must fit the channels and the values."""
        mean, std = self._constants()
        if not x.is_floating_point():
            raise transform_error(self, f"is for numbers, but the inputs are tokens of type {x.dtype}; leave it out")
        if {len(mean), len(std)} - {1, x.shape[1]}:
            raise transform_error(
                self,
                f"has constants for {max(len(mean), len(std))} channels, but the inputs have {x.shape[1]}; use half, or"
                " give mean and std",
            )
        if min(std) <= 0:
            raise transform_error(self, f"has the deviations {list(std)}, which must be above 0")
        if self.mean is None and bool(x.abs().max() > 10):
            raise transform_error(
                self,
                f"is for values in [0, 1], but a sample reaches {float(x.abs().max()):g}; give mean and std, such as"
                " normalize(mean=[127.5], std=[127.5])",
            )

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Each channel by its constants."""
        mean, std = (torch.tensor(c, dtype=x.dtype).view(1, -1, *[1] * (x.ndim - 2)) for c in self._constants())
        return (x - mean) / std
