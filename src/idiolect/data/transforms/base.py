"""What a transform is, how a list of them is written, and when each of them applies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.code import load_code, may_name_code, user_code
from ...core.errors import DataError, InputError
from ...core.expressions import parse, split, value
from ...core.functions import bind, name_of
from ...core.options import Options
from ...core.randomness import torch_seed, uniforms
from ...core.registry import Registry, describe
from ..lazy.datasets import generator_states, own_randomness, sample_seed, seed_all
from ..samples import Draw


@dataclass(frozen=True)
class Transform(Options):
    """A change of a batch of inputs, sample by sample. One of your own is derived from this class, as a frozen
    dataclass whose fields are its options, and named as `file.py:Name`.

    Attributes:
        draws: how many random numbers a sample takes. What draws none applies to all samples, else to training alone.
        moves: whether it moves what is in an image, so that targets with positions would have to move as well.
    """

    name: ClassVar[str] = "transform"
    draws: ClassVar[int] = 0
    moves: ClassVar[bool] = False

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Inputs [samples, ...], with `u` [samples, draws] from [0, 1), transformed; in place of none."""
        raise NotImplementedError

    def plain(self, x: Tensor) -> Tensor:
        """Inputs that are no training samples, whose shape must be the same after it."""
        return x

    def check(self, x: Tensor) -> None:
        """Raise an error unless it is for such inputs, of which `x` has an example."""


def transform_error(transform: Transform, problem: str) -> DataError:
    """An error that names the transform."""
    return DataError(f"the transform {describe(transform)} {problem}")


class OwnTransform:
    """A user's function of one sample. It is called for each; the generators of torch, numpy and random are seeded
    before. Whether it draws from them decides if it is for training samples alone."""

    moves = False

    def __init__(self, function: Callable[[Any], Any], name: str = "") -> None:
        self.function, self.name = function, name or name_of(function)
        self.draws = 0

    def __str__(self) -> str:
        return self.name

    def look(self, x: Tensor) -> None:
        """See on examples whether it draws, and that it always gives the same from the same seed."""
        with own_randomness():
            for number, sample in enumerate(x):
                before = _seeded(number)
                first = self._one(sample, "an example")
                self.draws = int(self.draws or before != generator_states())
                _seeded(number)
                if not torch.equal(first, self._one(sample, "an example")) and not bool(first.isnan().any()):
                    raise DataError(
                        f"the transform {self} gives two results for one sample, though torch, numpy and random were"
                        " seeded alike; let it draw from their global generators and not from one of its own"
                    )

    def apply(self, x: Tensor, numbers: Tensor, owner: str, draw: Draw | None, place: int) -> Tensor:
        """All samples of a batch, one by one."""
        done = []
        with own_randomness():
            for sample, number in zip(x, numbers.tolist(), strict=True):
                seed_all(sample_seed(draw, f"transform {place}", number))
                before = None if self.draws else generator_states()
                done.append(self._one(sample, f"{owner}, sample {number}"))
                if before is not None and before != generator_states():
                    raise DataError(
                        f"{owner}, sample {number}: the transform {self} draws random numbers, which it did not for the"
                        " first samples; let it draw some for every sample, such as torch.rand(()), or none"
                    )
                if done[-1].shape != done[0].shape:
                    raise DataError(
                        f"{owner}, sample {number}: the transform {self} gives the shape {list(done[-1].shape)}, and"
                        f" {list(done[0].shape)} for another sample; it must give one shape"
                    )
        return torch.stack(done) if done else x

    def _one(self, sample: Tensor, owner: str) -> Tensor:
        with user_code(f"{owner}: the transform {self} failed", DataError):
            given = self.function(sample.clone())
        if not isinstance(given, Tensor):
            raise DataError(
                f"{owner}: the transform {self} gives a {type(given).__name__}; it gets one sample as a tensor, and"
                " must give a tensor"
            )
        if given.dtype != sample.dtype:
            raise DataError(
                f"{owner}: the transform {self} gives {given.dtype}, not {sample.dtype}; keep the type, as by"
                " .to(x.dtype)"
            )
        return given.detach()


def _seeded(number: int) -> tuple[bytes, Any, Any]:
    seed_all(sample_seed(None, "transform", number))
    return generator_states()


@dataclass(frozen=True)
class Transforms:
    """Transforms in order, as all clients apply them."""

    steps: tuple[Transform | OwnTransform, ...]

    def __str__(self) -> str:
        return ", ".join(str(step) if isinstance(step, OwnTransform) else describe(step) for step in self.steps)

    @property
    def code(self) -> list[Any]:
        """What they compute, for a fingerprint."""
        return [step.function if isinstance(step, OwnTransform) else step for step in self.steps]

    def __call__(self, x: Tensor, numbers: Tensor, owner: str, draw: Draw | None) -> Tensor:
        """The inputs of a client's samples with these numbers; `draw` is given in a pass over training samples."""
        for place, step in enumerate(self.steps):
            if step.draws and draw is None:
                x = step.plain(x) if isinstance(step, Transform) else x
            elif isinstance(step, OwnTransform):
                x = step.apply(x, numbers, owner, draw, place)
            else:
                x = self._checked(step, x, numbers, draw, place)
        return x

    def _checked(self, step: Transform, x: Tensor, numbers: Tensor, draw: Draw | None, place: int) -> Tensor:
        with user_code(f"the transform {describe(step)} failed", DataError):
            after = step(x, self._draw(step.draws, numbers, draw, place))
        if getattr(after, "dtype", None) != x.dtype or len(after) != len(x):
            what = f"{list(getattr(after, 'shape', []))} {getattr(after, 'dtype', type(after).__name__)}"
            raise transform_error(
                step, f"makes {what} of {list(x.shape)} {x.dtype}; it must keep the number of samples and the type"
            )
        return after

    @staticmethod
    def _draw(count: int, numbers: Tensor, draw: Draw | None, place: int) -> Tensor:
        if not count or draw is None:
            return torch.zeros(len(numbers), 0)
        key = torch_seed(draw.seed, f"transform {place}", *draw[1:])
        drawn: NDArray[np.float64] = uniforms(key, numbers.numpy(), count)
        return torch.from_numpy(drawn)

    def fit(self, x: Tensor, y: Tensor) -> None:
        """Look at a few samples, and raise an error where the transforms are not for them."""
        numbers, draw = torch.arange(len(x)), Draw(0, 0, 0, 0)
        for step in self.steps:
            if step.moves and x.ndim == 4 and y.ndim > 2 and y.shape[-2:] == x.shape[-2:]:
                raise DataError(
                    f"the transform {Transforms((step,))} moves what is in an image, but each pixel has a target, which"
                    " would stay; give data sets of your own that change both"
                )
            if isinstance(step, Transform):
                step.check(x)
            else:
                step.look(x)
            before, alone = x, Transforms((step,))
            x = alone(x, numbers, "an example", None)
            trained = alone(before, numbers, "an example", draw)
            if trained.shape != x.shape:
                raise DataError(
                    f"the transform {alone} gives training samples the shape {list(trained.shape[1:])} and others"
                    f" {list(x.shape[1:])}, to which it does not apply since it is random; keep the shape"
                )


transforms: Registry[Transform] = Registry("transform", Transform, group="idiolect.transforms")


def build_transforms(given: Any) -> Transforms | None:
    """Transforms from an expression, an object, a function, or a list of these; none from nothing.

    >>> str(build_transforms("crop(2), flip, normalize"))
    'crop(pad=2), flip, normalize'
    """
    if given is None or isinstance(given, Transforms):
        return given
    listed = given if isinstance(given, list | tuple) else [given]
    steps = [step for each in listed for step in (map(_build, split(each)) if isinstance(each, str) else [_take(each)])]
    return Transforms(tuple(steps)) if steps else None


def _build(text: str) -> Transform | OwnTransform:
    expression = parse(text)
    name = text if may_name_code(text) else expression.name
    if not may_name_code(name) or name in transforms:
        return transforms.build(text)
    thing = load_code(name, transforms.kind)
    if isinstance(thing, type) and issubclass(thing, Transform):
        return transforms.build(text)
    if expression.positional and name != text:
        raise InputError(f"{text!r}: name the options of {name}, as in {name}(option=1)")
    options = {key: value(written) for key, written in expression.named.items()}
    return OwnTransform(bind(thing, options, name, transforms.kind), text)


def _take(thing: Any) -> Transform | OwnTransform:
    if isinstance(thing, Transform):
        return thing
    if not callable(thing) or isinstance(thing, type):
        what = f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
        raise InputError(
            f"a transform cannot be {what}; give a name such as flip, a function of one sample, or a list of these"
        )
    return OwnTransform(thing)
