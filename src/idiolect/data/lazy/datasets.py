"""PyTorch data sets: read once where they are small and always the same, else sample by sample when a batch is made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from ...core.code import user_code
from ...core.errors import DataError
from ...core.fingerprint import fingerprint
from ...core.randomness import torch_seed
from ...core.reading import track
from .. import samples
from ..samples import Draw, Samples

PROBED = 3
"""How many samples are read to see what a data set gives."""
NAMES = ("targets", "labels")
"""Attributes in which a data set says its labels."""


@contextmanager
def own_randomness() -> Iterator[None]:
    """What is drawn in here from the global generators of torch, numpy and random does not move them for others."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and random."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def generator_states() -> tuple[bytes, Any, Any]:
    """Where the global generators are: the same before and after what draws nothing."""
    _, words, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), (np.asarray(words).tobytes(), *rest[:1]), random.getstate()


def sample_seed(draw: Draw | None, stream: str, number: int) -> int:
    """The seed for one sample: of a training pass, or the same each time."""
    return torch_seed(0, stream, number) if draw is None else torch_seed(draw.seed, stream, *draw[1:], number)


class DatasetSamples(Samples):
    """A data set of pairs (x, y) that is read when a batch is made."""

    def __init__(self, dataset: Dataset[Any], example: tuple[Tensor, Tensor], count: int, is_random: bool) -> None:
        self.dataset, self.is_random = dataset, is_random
        x, self.target = example
        self.row = x
        self.shape = torch.Size((count, *x.shape))
        self.dtype = _batch_type(x)
        self.finite = not x.is_floating_point()
        self.raw = None if is_random else (tuple(x.shape), x.numpy().dtype)

    def read(self, positions: Tensor, y: Tensor, owner: str, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """The samples, each with random numbers of its own; targets as they come with them, as far as they are read."""
        numbers, y = positions.tolist(), y.clone()
        rows = np.empty((len(numbers), *self.shape[1:]), self.row.numpy().dtype)
        missing = self.store.fill(numbers, rows) if self.store else list(range(len(numbers)))
        with own_randomness():
            for place in missing:
                number = numbers[place]
                seed_all(sample_seed(draw, "dataset", number))
                before = None if self.is_random else generator_states()
                x, target = read_pair(self.dataset, number, owner)
                if before is not None and before != generator_states():
                    raise DataError(
                        f"{owner}, sample {number}: reading it draws random numbers, which the first samples did not;"
                        " let reading every sample draw some, such as torch.rand(()), or none"
                    )
                self._check(x, target, y[place], number, owner)
                rows[place], y[place] = x.numpy(), target
                if self.store:
                    self.store.put(number, rows[place])
        return torch.from_numpy(rows).to(self.dtype), y

    def _check(self, x: Tensor, target: Tensor, known: Tensor, number: int, owner: str) -> None:
        if x.shape != self.row.shape or x.dtype != self.row.dtype:
            raise DataError(
                f"{owner}, sample {number}: its inputs have the shape {list(x.shape)} and type {x.dtype}, those of the"
                f" first {list(self.row.shape)} and {self.row.dtype}; give the data set a transform to tensors of one"
                " shape"
            )
        if target.shape != self.target.shape:
            raise DataError(
                f"{owner}, sample {number}: its target has the shape {list(target.shape)}, that of the first"
                f" {list(self.target.shape)}; all must agree"
            )
        if not self.is_random and bool((target.to(known.dtype) != known).any()):
            raise DataError(
                f"{owner}, sample {number}: reading it gives the target {target.tolist()}, but it was"
                f" {known.tolist()}; its attribute targets (or labels) must hold what reading gives, or be left out"
            )

    def draws_at(self, positions: Tensor) -> bool:
        """Whether any is read, and the data set draws."""
        return self.is_random and len(positions) > 0

    def largest(self) -> int:
        """The largest token."""
        with own_randomness():
            return max(int(x.max()) for x, _ in _all_pairs(self.dataset, len(self), "the tokens"))

    def digest(self, positions: Tensor) -> Iterator[bytes]:
        """The data set's code and attributes, and which samples of it."""
        yield fingerprint([_describe(self.dataset), self.row, self.target]).encode()
        yield positions.numpy().tobytes()


def open_dataset(dataset: Any, owner: str) -> tuple[Tensor | Samples, Tensor]:
    """Inputs and targets of a data set with a length: tensors where it is small and draws nothing."""
    count = len(dataset)
    if not count:
        raise DataError(f"{owner} is empty; leave it out or give it samples")
    with own_randomness():
        x, y = _read_seeded(dataset, 0, owner)
        again = _read_seeded(dataset, 0, owner)
        if not (torch.equal(x, again[0]) and torch.equal(y, again[1])) and not x.isnan().any():
            raise DataError(
                f"{owner}: reading sample 0 twice gives two results, though torch, numpy and random were seeded alike;"
                " let the data set draw from their global generators and not from one of its own"
            )
        is_random = any(_draws(dataset, number, owner) for number in range(min(PROBED, count)))
        size = count * x.numel() * _batch_type(x).itemsize
        if not is_random and size <= samples.LARGE:
            if whole := _read_all(dataset, count, owner):
                return whole
            is_random = True
        known = _known_targets(dataset, count)
        if known is None:
            known = _stack([y for _, y in _all_pairs(dataset, count, owner)], owner)
    return DatasetSamples(dataset, (x, y), count, is_random), known


def read_pair(dataset: Any, number: int, owner: str) -> tuple[Tensor, Tensor]:
    """One sample, as tensors."""
    with user_code(f"{owner}, sample {number} cannot be read", DataError):
        item = dataset[number]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{owner}: the dataset must yield pairs (x, y), but yields {type(item).__name__}")
    try:
        x, y = (torch.as_tensor(part).detach().cpu() for part in item)
        x = x.float() if x.dtype == torch.bfloat16 else x
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{owner}: the dataset's samples cannot be stacked ({error}); give it a transform to tensors of one shape"
        ) from error
    return x, y


def _read_seeded(dataset: Any, number: int, owner: str) -> tuple[Tensor, Tensor]:
    seed_all(sample_seed(None, "dataset", number))
    x, y = read_pair(dataset, number, owner)
    return x.clone(), y.clone()


def _draws(dataset: Any, number: int, owner: str) -> bool:
    before = generator_states()
    read_pair(dataset, number, owner)
    return before != generator_states()


def _all_pairs(dataset: Any, count: int, owner: str) -> Iterator[tuple[Tensor, Tensor]]:
    for number in track(range(count), count, f"reading {owner}"):
        yield _read_seeded(dataset, number, owner)


def _read_all(dataset: Any, count: int, owner: str) -> tuple[Tensor, Tensor] | None:
    """All samples, stacked; none if reading them draws random numbers."""
    before = generator_states()
    pairs = [read_pair(dataset, number, owner) for number in track(range(count), count, f"reading {owner}")]
    if before != generator_states():
        return None
    xs, ys = zip(*pairs, strict=True)
    return _stack(xs, owner), _stack(ys, owner)


def _known_targets(dataset: Any, count: int) -> Tensor | None:
    """The targets that a data set says it has; none where they are changed before they are given."""
    if isinstance(dataset, Subset):
        whole = _known_targets(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None else whole[torch.as_tensor(np.asarray(dataset.indices))]
    both = getattr(dataset, "transforms", None)  # torchvision's name for what changes inputs and targets together
    if getattr(dataset, "target_transform", None) is not None or (not hasattr(both, "target_transform") and both):
        return None
    for name in NAMES:
        values = getattr(dataset, name, None)
        if isinstance(values, Sequence | np.ndarray | Tensor) and len(values) == count:
            with suppress(TypeError, ValueError):
                return torch.as_tensor(np.asarray(values))
    return None


def _describe(dataset: Any) -> Any:
    """A data set as its fingerprint sees it: what PyTorch's own hold inside."""
    if isinstance(dataset, Subset):
        return [_describe(dataset.dataset), np.asarray(dataset.indices)]
    return list(map(_describe, dataset.datasets)) if isinstance(dataset, ConcatDataset) else dataset


def _stack(tensors: Sequence[Tensor], owner: str) -> Tensor:
    try:
        return torch.stack(list(tensors))
    except RuntimeError as error:
        raise DataError(
            f"{owner}: the dataset's samples cannot be stacked ({error}); give it a transform to tensors of one shape"
        ) from error


def _batch_type(x: Tensor) -> torch.dtype:
    return torch.float32 if x.is_floating_point() or x.dtype in (torch.uint8, torch.bool) else torch.int64
