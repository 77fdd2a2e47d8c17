"""Data sources by name: where data come from, under which terms, and how they become a federation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from ...core.adopted import Adopted
from ...core.errors import DataError
from ...core.layout import InputLayout
from ...core.options import Options, option
from ...core.randomness import generator
from ...core.registry import Registry
from .. import samples as sizes
from ..arrays import classes_of, pair, vocabulary_of
from ..cutting import Cutting
from ..federation import Federation
from ..formats.files import Layout, check_sum, data_root
from ..formats.images import NONE, Images, Listed, to_inputs
from ..lazy.files import ImageSamples, read_header
from ..naming import UNNAMED, Naming
from ..partitions.base import Partition, partitions
from ..preparing import Preparation
from ..samples import Inputs
from ..splits import SHARES, Unseen
from .remotes import REMOTES

CLIENTS = 20


class Dealing(TypedDict, total=False):
    """How data become clients, beside the partition; the arguments are those of `idiolect.data.load`."""

    clients: int | None
    split: Sequence[float] | None
    seed: int
    unseen: Unseen
    public: Any


@dataclass(frozen=True, eq=False)
class Pool:
    """One body of data before it is dealt to clients; `groups` are the natural clients, if there are any; `words` is
    the number of different tokens where the inputs are tokens; `names` is what classes, features and words are called;
    `cutting` decides the splits where they are not random, and `preparation` what is done to columns once the samples
    of every client are known; `layout` is how several inputs lie side by side in the rows of `x`, and `lexicon` the
    words that their tokens stand for, from token 2 on, of which those of training samples are kept; with `own_labels`
    each client numbers the classes that it has by itself."""

    x: Inputs
    y: Tensor
    groups: np.ndarray | None
    classes: int | None
    name: str
    words: int | None = None
    names: Naming = UNNAMED
    cutting: Cutting | None = None
    preparation: Preparation | None = None
    layout: InputLayout | None = None
    lexicon: tuple[str, ...] = ()
    own_labels: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a model must give."""
        return self.classes if self.classes is not None else self.y.shape[1:].numel()

    @property
    def tokens(self) -> bool:
        """Whether the inputs are tokens rather than numbers."""
        return not self.x.is_floating_point()

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return tuple(self.y.shape[1:])

    @property
    def vocabulary(self) -> int:
        """How many different tokens there may be."""
        return self.words if self.words is not None else vocabulary_of([self.x])

    def apart(self, share: float, seed: int) -> tuple[Pool, Pool]:
        """The pool without a random share of its samples, and that share."""
        if not 0 < share < 1:
            raise DataError(f"the share of public samples is {share:g}; it must lie between 0 and 1, as in 0.1")
        order = generator(seed, "public").permutation(len(self.x))
        cut = max(1, round(share * len(order)))
        parts = (np.sort(order[cut:]), np.sort(order[:cut]))
        rest, shown = (self.take(index) for index in parts)
        return rest, shown

    def take(self, index: np.ndarray) -> Pool:
        """Some samples of the pool, by position."""
        groups = None if self.groups is None else self.groups[index]
        cutting = None if self.cutting is None else self.cutting.take(index)
        return replace(self, x=self.x[index], y=self.y[index], groups=groups, cutting=cutting)

    def federation(
        self,
        partition: str | Partition | None = None,
        *,
        clients: int | None = None,
        split: Sequence[float] | None = None,
        seed: int = 0,
        unseen: Unseen = 0.0,
        public: Any = None,
    ) -> Federation:
        """Deal the pool to clients; without a partition, by its groups, else by label with alpha 0.1. A number for
        `public` is the share of the samples that everybody sees and no client holds."""
        if isinstance(public, float):
            rest, shown = self.apart(public, seed)
            shared = (shown.x, shown.y)
            return rest.federation(partition, clients=clients, split=split, seed=seed, unseen=unseen, public=shared)
        usual = "group" if self.groups is not None else "iid" if self.classes is None else "dirichlet"
        rule = partitions.build(usual if partition is None else partition)
        return Federation.from_pool(
            self.x,
            self.y,
            rule,
            clients=(rule.how_many(self.groups) or CLIENTS) if clients is None else clients,
            groups=self.groups,
            split=SHARES if split is None else split,
            seed=seed,
            name=self.name,
            unseen=unseen,
            classes=self.classes,
            public=public,
            words=self.words,
            names=self.names,
            cutting=self.cutting,
            preparation=self.preparation,
            layout=self.layout,
            lexicon=self.lexicon,
            own_labels=self.own_labels,
        )


@dataclass(frozen=True)
class Source(Options):
    """A data source. Most give one pool (`load`); one that comes as clients gives `federation` instead."""

    name: ClassVar[str] = "source"
    title: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    size: ClassVar[str] = ""
    groups: ClassVar[str] = ""
    papers: ClassVar[str] = ""
    own: ClassVar[bool] = False  # the user's data, in files of a known form

    def where(self) -> str:
        """What to put where; nothing for data that need no files."""
        return "needs no files"

    def available(self) -> bool:
        """Whether the data can be loaded now."""
        return True

    def load(self) -> Pool:
        """The data as one pool."""
        raise DataError(f"{self.name} comes as clients, not as one pool of data; take its federation")

    def federation(self, partition: str | Partition | None = None, **dealing: Unpack[Dealing]) -> Federation:
        """The data as clients; what is left out is the source's own choice."""
        return self.load().federation(partition, **dealing)


@dataclass(frozen=True)
class OwnSource(Adopted, Source):
    """Data that a user's function returns: whatever `idiolect.data.load` takes. One with a parameter `client` returns
    the data of one client, whose number it is given."""

    error = DataError
    given = ("client",)
    title: ClassVar[str] = "what a function of yours returns"
    size: ClassVar[str] = "as many as it gives"

    @property
    def by_client(self) -> bool:
        """Whether the function gives one client's data."""
        return "client" in inspect.signature(type(self).function).parameters

    def load(self) -> Pool:
        """The data as one pool, where the function returns one."""
        if self.by_client:
            raise DataError(f"{self.name} gives the data of one client, not one pool of data")
        content = self.call()
        if isinstance(content, Source | Pool):
            return content.load() if isinstance(content, Source) else content
        x, y = pair(content, self.name)
        return Pool(x, y, None, classes_of(y, self.name), self.name)


sources: Registry[Source] = Registry("data source", Source, group="idiolect.sources", adopted=OwnSource)


@dataclass(frozen=True)
class FileSource(Source):
    """A source whose files lie in a folder, in one of several layouts; the first that is complete is read."""

    layouts: ClassVar[dict[str, Layout]] = {}
    checksums: ClassVar[dict[str, str]] = {}
    note: ClassVar[str] = ""

    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    seed: int = option(0, min=0, help="determines that part")
    path: str | None = option(None, help="the folder of the files; by default a folder under $IDIOLECT_DATA")

    def where(self) -> str:
        """Which files to put where."""
        return "; or ".join([*self.fetching(), *(layout.where(self.path) for layout in self.layouts.values())]) + (
            f". {self.note}" if self.note else ""
        )

    def fetching(self) -> list[str]:
        """The command that fetches the files, if there is one and it would put them where they are looked for."""
        return [f"run: idiolect data fetch {self.name}"] if self.name in REMOTES and not self.path else []

    def available(self) -> bool:
        """Whether all files of one layout are there."""
        return any(not layout.missing(self.path) for layout in self.layouts.values())

    def find(self, verify: bool = True) -> tuple[str, dict[str, Path]]:
        """The first complete layout and its files, compared with the publisher's checksums where there are some; else
        a `DataError` that says what to put where."""
        for kind, layout in self.layouts.items():
            if not layout.missing(self.path):
                paths = layout.paths(self.path)
                for file, expected in self.checksums.items():
                    if verify and file in paths:
                        check_sum(paths[file], expected, content=True)
                return kind, paths
        lacking = min((layout.missing(self.path) for layout in self.layouts.values()), key=len)
        unset = "" if self.path or data_root() else " IDIOLECT_DATA is not set."
        raise DataError(f"{self.name}: {', '.join(lacking)} not found.{unset} To use it, {self.where()}.")

    def choose_samples(self, there: int) -> np.ndarray:
        """The numbers of the samples to take, in order."""
        return choose(self.name, there, self.samples, self.seed)


@dataclass(frozen=True)
class ImageSource(FileSource):
    """A source of images, held once as numbers in [0, 1]; nothing is augmented."""

    normalise: str = option(
        NONE,
        choices=(NONE, "half", "imagenet", "mnist", "cifar10", "cifar100"),
        help="subtract and divide by constants",
    )

    def image_pool(
        self, images: Images, labels: np.ndarray, classes: int, groups: np.ndarray | None = None, name: str = ""
    ) -> Pool:
        """A pool of the chosen images and their labels."""
        index = self.choose_samples(len(labels))
        x = image_inputs(images, index, self.normalise)
        y = torch.from_numpy(labels[index].astype(np.int64))
        return Pool(x, y, None if groups is None else groups[index], classes, name or self.name)


def image_inputs(images: Images, index: np.ndarray, normalise: str, lazy: bool | None = None) -> Inputs:
    """Some images as inputs; files that would take much memory are decoded when they are needed, or as `lazy` says."""
    if isinstance(images, Listed) and len(index):
        chosen = Listed([images.paths[at] for at in index.tolist()], images.size, images.mode)
        if is_large(chosen) if lazy is None else lazy:
            return ImageSamples(chosen, normalise)
    return to_inputs(images.take(index), normalise)


def is_large(images: Listed) -> bool:
    """Whether images are too large to be held as numbers, by the size of the first."""
    height, width, _ = read_header(images.paths[0])
    pixels = images.size**2 if images.size else height * width
    return len(images) * pixels * (1 if images.mode == "L" else 3) * 4 > sizes.LARGE


def choose(name: str, there: int, samples: int | None, seed: int) -> np.ndarray:
    """A random part of so many numbers below `there`, in order; all without `samples`.

    >>> choose("mnist", 5, 2, seed=0).shape
    (2,)
    """
    if samples is None:
        return np.arange(there)
    if samples > there:
        raise DataError(f"{name}: samples={samples} is more than the {there} there are; ask for fewer")
    return np.sort(generator(seed, "subset").choice(there, samples, replace=False))
