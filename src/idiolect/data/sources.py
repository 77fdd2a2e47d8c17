"""Data sources by name: where data come from, under which terms, and how they become a federation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import DataError
from ..options import Options
from ..registry import Registry
from .federation import Federation
from .partition import Partition, partitions
from .split import SHARES

CLIENTS = 20


@dataclass(frozen=True, eq=False)
class Pool:
    """One body of data before it is dealt to clients; `groups` are the natural clients, if there are any."""

    x: Tensor
    y: Tensor
    groups: np.ndarray | None
    classes: int | None
    name: str

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

    def federation(
        self,
        partition: str | Partition | None = None,
        *,
        clients: int | None = None,
        split: Sequence[float] | None = None,
        seed: int = 0,
        unseen: float = 0.0,
        public: Any = None,
    ) -> Federation:
        """Deal the pool to clients; without a partition, by its groups, else by label with alpha 0.1."""
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

    def where(self) -> str:
        """What to put where; nothing for data that need no files."""
        return "needs no files"

    def available(self) -> bool:
        """Whether the data can be loaded now."""
        return True

    def load(self) -> Pool:
        """The data as one pool."""
        raise DataError(f"{self.name} comes as clients, not as one pool of data; take its federation")

    def federation(
        self,
        partition: str | Partition | None = None,
        *,
        clients: int | None = None,
        split: Sequence[float] | None = None,
        seed: int = 0,
        unseen: float = 0.0,
        public: Any = None,
    ) -> Federation:
        """The data as clients; what is not given is the source's own choice."""
        return self.load().federation(partition, clients=clients, split=split, seed=seed, unseen=unseen, public=public)


sources: Registry[Source] = Registry("data source", Source)


def data_root() -> Path | None:
    """The folder of data sets that the environment variable IDIOLECT_DATA names, if it is set.

    >>> getfixture("monkeypatch").setenv("IDIOLECT_DATA", "sets")
    >>> data_root().name
    'sets'
    """
    named = os.environ.get("IDIOLECT_DATA")
    return Path(named) if named else None


@dataclass(frozen=True)
class Folder:
    """Files of one source: in a folder that an option names, else in its own folder under IDIOLECT_DATA.

    >>> Folder("digits", ("a.npz",), str(getfixture("tmp_path"))).missing()
    ['a.npz']
    """

    name: str
    files: tuple[str, ...]
    path: str | None = None

    @property
    def folder(self) -> Path | None:
        """Where the files are looked for; None if nothing says it."""
        root = data_root()
        return Path(self.path) if self.path else root / self.name if root else None

    def find(self, file: str) -> Path | None:
        """The file, plain or compressed by gzip, or None."""
        folder = self.folder
        options = [folder / file, folder / f"{file}.gz"] if folder else []
        return next((each for each in options if each.is_file()), None)

    def missing(self) -> list[str]:
        """The files that are not there."""
        return [file for file in self.files if self.find(file) is None]

    def where(self) -> str:
        """What to put where."""
        place = f"the folder {self.path}" if self.path else f"$IDIOLECT_DATA/{self.name}"
        return f"put {', '.join(self.files)} (plain or .gz) into {place}"

    def require(self) -> list[Path]:
        """All files in order, or a `DataError` that says what to put where."""
        found = [path for path in map(self.find, self.files) if path is not None]
        if len(found) < len(self.files):
            unset = "" if self.folder else " IDIOLECT_DATA is not set."
            raise DataError(f"{self.name}: {', '.join(self.missing())} not found.{unset} To use it, {self.where()}.")
        return found
