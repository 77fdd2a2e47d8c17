"""Any data set of the Hugging Face hub, through the package `datasets`; from its cache or from a folder, never from the
network while a run loads its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ...core.errors import DataError, MissingExtraError
from ...core.layout import InputLayout, find_layout
from ...core.options import did_you_mean, option
from .. import samples as sizes
from ..formats.images import to_inputs
from ..lazy.hub import HubImages
from ..naming import Naming
from ..samples import Inputs
from ..words import tokenise
from .agnews import encode, make_vocabulary
from .base import Pool, Source, choose, sources


def library() -> Any:
    """The package `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("data sets of the hub need the package datasets: pip install idiolect[hub]") from error
    return datasets


@contextmanager
def offline(datasets: Any) -> Iterator[None]:
    """Keep the package and the hub's own from the network. Both read these settings at every use; which of the two of
    `datasets` counts depends on its version."""
    from huggingface_hub import constants

    settings = [
        (place, name)
        for place in (datasets.config, constants)
        for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE")
        if hasattr(place, name)
    ]
    before = [getattr(place, name) for place, name in settings]
    for place, name in settings:
        setattr(place, name, True)
    try:
        yield
    finally:
        for (place, name), value in zip(settings, before, strict=True):
            setattr(place, name, value)


@sources.register("hf", "huggingface")
@dataclass(frozen=True)
class HuggingFace(Source):
    """A data set of the hub: `hf(mnist, x=image, y=label)`, with `client=` for a column of natural clients. Images
    become numbers in [0, 1], texts tokens, lists of numbers stay numbers.

    It is read from the cache (`idiolect data fetch 'hf(NAME)'` fills it), or from a folder that `save_to_disk` wrote.
    """

    own: ClassVar[bool] = True
    title: ClassVar[str] = "a data set of the Hugging Face hub"
    licence: ClassVar[str] = "as its page says"
    size: ClassVar[str] = "as many as there are"
    groups: ClassVar[str] = "the values of the column `client`, if one is named"

    path: str | None = option(None, help="name on the hub, or a folder that save_to_disk wrote")
    x: str | None = option(None, help="column of the inputs; none is image, text or x")
    y: str | None = option(None, help="column of the targets; none is label or y")
    client: str | None = option(None, help="column that names the client")
    part: str = option("train", help="which split, as the hub writes it, such as train+test")
    config: str | None = option(None, help="configuration of the data set")
    length: int = option(200, min=1, help="words per text; longer ones are cut, shorter ones padded")
    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    seed: int = option(0, min=0, help="determines that part")

    def where(self) -> str:
        """What to do."""
        return "install idiolect[hub], then: idiolect data fetch 'hf(NAME)'; or give a folder that save_to_disk wrote"

    def available(self) -> bool:
        """Whether the named data set can be loaded now."""
        if self.path is None:
            return False
        try:
            self.open()
        except (DataError, MissingExtraError):
            return False
        return True

    def open(self, online: bool = False) -> Any:
        """The table, from a folder or the cache; with `online`, from the hub into the cache."""
        datasets = library()
        if self.path is None:
            raise DataError(f"hf: no name; {self.where()}")
        if self.path.endswith(".py"):
            raise DataError(f"hf: {self.path} is a script, which would be run; {self.where()}")
        try:
            if online:
                return datasets.load_dataset(self.path, self.config, split=self.part)
            with offline(datasets):
                if Path(self.path).is_dir():
                    dataset = datasets.load_from_disk(self.path)
                    if not hasattr(dataset, "keys"):
                        return dataset
                    return datasets.concatenate_datasets([dataset[part.strip()] for part in self.part.split("+")])
                return datasets.load_dataset(self.path, self.config, split=self.part)
        except Exception as error:
            raise DataError(f"hf: {self.path} cannot be loaded ({error}); {self.where()}") from error

    def load(self) -> Pool:
        """The pool."""
        return self.read(self.open())

    def read(self, table: Any) -> Pool:
        """A table of the package as a pool."""
        table = table.select(choose("hf", len(table), self.samples, self.seed))
        column = self._column(table, self.x, ("image", "img", "text", "x"))
        if (
            type(table.features.get(column)).__name__ == "Image"
            and len(table)
            and is_large(table[0][column], len(table))
        ):
            return self._pool(table, HubImages(table, column), None, None)
        values = table[column][:]
        if isinstance(values[0], list) and len({len(value) for value in values}) > 1:
            rows = [torch.tensor(value) for value in values]
            layout = find_layout(rows)
            x, words = layout.pack(rows, "hf: the inputs"), None
        else:
            (x, words), layout = _inputs(values, self.length), None
        return self._pool(table, x, words, layout)

    def _pool(self, table: Any, x: Inputs, words: int | None, layout: InputLayout | None) -> Pool:
        """Inputs with their targets and clients."""
        target = self._column(table, self.y, ("label", "y", "fine_label"))
        y, classes = _targets(table[target][:], getattr(table.features[target], "num_classes", None))
        groups = np.array(table[self._column(table, self.client, ())][:]).astype(str) if self.client else None
        names = Naming(tuple(map(str, getattr(table.features[target], "names", None) or ())))
        return Pool(x, y, groups, classes, Path(str(self.path or "hf")).name, words, names, layout=layout)

    def _column(self, table: Any, named: str | None, usual: Sequence[str]) -> str:
        there = list(table.column_names)
        for name in [named] if named else usual:
            if name in there:
                return name
        wanted = named or " or ".join(usual)
        raise DataError(
            f"hf: {self.path or 'the data set'} has no column {wanted!r}.{did_you_mean(wanted, there)} It has"
            f" {', '.join(there)}."
        )


def is_large(value: Any, count: int) -> bool:
    """Whether images are too large to be held as numbers, by the size of the first."""
    channels = 1 if value.mode in ("1", "L") else 3
    return bool(count * value.height * value.width * channels * 4 > sizes.LARGE)


def _inputs(values: list[Any], length: int) -> tuple[torch.Tensor, int | None]:
    if isinstance(values[0], str):
        words = [tokenise(text) for text in values]
        known = make_vocabulary(words)
        return encode(words, known, length), len(known) + 2
    pictures = hasattr(values[0], "convert")
    mode = "L" if pictures and all(value.mode in ("1", "L") for value in values) else "RGB"
    try:
        array = np.stack([np.asarray(value.convert(mode) if pictures else value) for value in values])
    except ValueError as error:
        raise DataError("hf: the inputs differ in size; bring them to one shape first") from error
    if pictures:
        return to_inputs(array[:, None] if mode == "L" else array.transpose(0, 3, 1, 2).copy()), None
    return torch.from_numpy(array.astype(np.float32)), None


def _targets(values: list[Any], classes: int | None) -> tuple[torch.Tensor, int | None]:
    """Targets and the number of classes: as the data set says, else as many as there are."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return torch.from_numpy(array.astype(np.float32)), None
    if array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64)), classes or int(array.max()) + 1
    known, numbered = np.unique(array, return_inverse=True)
    return torch.from_numpy(numbered.astype(np.int64)), len(known)
