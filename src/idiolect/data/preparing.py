"""What is done to columns of numbers before training: gaps are filled and columns brought to one scale. Whatever that
needs is computed on training samples only, as sums that clients could send: for each column how many values there are,
their sum, and the sum of their squares, of all clients that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.errors import DataError

if TYPE_CHECKING:
    pass

SCALES = ("none", "client", "federated")
GAPS = ("refuse", "mean")


class ColumnSums(NamedTuple):
    """What one client tells of its training samples: per column the number of values, their sum and sum of squares."""

    known: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    def plus(self, other: ColumnSums) -> ColumnSums:
        """The sums of two groups of samples."""
        return ColumnSums(*(mine + its for mine, its in zip(self, other, strict=True)))

    def mean(self) -> np.ndarray:
        """The mean of each column; NaN where there is no value."""
        return np.where(self.known > 0, self.total / np.maximum(self.known, 1), np.nan)

    def deviation(self) -> np.ndarray:
        """The standard deviation of each column; 1 where all values are the same, or there is none."""
        mean = np.nan_to_num(self.mean())
        variance = self.squares / np.maximum(self.known, 1) - mean**2
        return np.sqrt(np.where(variance > 1e-12 * np.maximum(mean**2, 1e-300), variance, 1.0))


def column_sums(rows: np.ndarray) -> ColumnSums:
    """The sums of some rows, of which NaN is a gap.

    >>> column_sums(np.array([[1.0, 2.0], [3.0, np.nan]]))
    ColumnSums(known=array([2., 1.]), total=array([4., 2.]), squares=array([10.,  4.]))
    """
    there = ~np.isnan(rows)
    filled = np.where(there, rows, 0.0)
    return ColumnSums(there.sum(0).astype(float), filled.sum(0), (filled**2).sum(0))


@dataclass(frozen=True)
class Column:
    """One column of a table, and the inputs that come of it.

    Attributes:
        name: the column.
        values: where it holds text, the values that become an input each, 1 where a sample has it; else empty.
        scaled: whether it is brought to scale: numbers are, yes or no is not.
        size: where it holds lists, how many numbers each has.
    """

    name: str
    values: tuple[str, ...] = ()
    scaled: bool = True
    size: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        if self.size:
            return tuple(f"{self.name}[{place}]" for place in range(self.size))
        return tuple(f"{self.name}={value}" for value in self.values) or (self.name,)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Per input: what fills a gap, what is taken away, and what the rest is divided by."""

    fill: np.ndarray
    minus: np.ndarray
    over: np.ndarray


@dataclass(frozen=True)
class Preparation:
    """How the columns of a table become inputs.

    Attributes:
        columns: the columns, in order.
        scale: `none`, or minus the mean, over the standard deviation: the `client`'s own, or `federated`.
        gaps: `refuse` them, or fill them with the `mean`, and add an input that is 1 where there was one.
    """

    columns: tuple[Column, ...]
    scale: str = "none"
    gaps: str = "refuse"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, without those that say where gaps were."""
        return tuple(name for column in self.columns for name in column.inputs)

    def fit(self, rows: np.ndarray, trains: Mapping[str, np.ndarray], seen: Sequence[str]) -> Prepared:
        """What training samples say: `trains` has each client's, by position, of which those `seen` count for all."""
        own = {name: column_sums(rows[index]) for name, index in trains.items()}
        everybody = own[seen[0]]
        for name in seen[1:]:
            everybody = everybody.plus(own[name])
        return self.finish(own, everybody, np.isnan(rows).any(0))

    @property
    def needs_all(self) -> bool:
        """Whether what is done to one client's columns depends on the sums of all."""
        return self.scale != "client" or self.gaps != "refuse"

    def finish(self, own: Mapping[str, ColumnSums], everybody: ColumnSums, gaps: np.ndarray) -> Prepared:
        """What each client's sums and those of everybody say; `gaps` are the inputs that have one."""
        if empty := [name for name, count in zip(self.inputs, everybody.known, strict=True) if not count]:
            raise DataError(f"the column {empty[0]!r} has no value in any training sample; leave it out")
        per_client = self.scale == "client"
        scaled = np.array([column.scaled for column in self.columns for _ in column.inputs])
        facts = {}
        for name, sums in {"": everybody, **(own if per_client else {})}.items():
            known = sums.known > 0
            mean = np.where(known, sums.mean(), everybody.mean())
            deviation = np.where(known, sums.deviation(), everybody.deviation())
            move = scaled & (self.scale != "none")
            facts[name] = Scaling(mean, np.where(move, mean, 0.0), np.where(move, deviation, 1.0))
        return Prepared(self, gaps, facts)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A preparation with what training samples said; `gaps` are the inputs that have one, `scalings` by client, and
    under "" what holds for all others. `sums` are those that the clients told each other, where each has its own
    table."""

    preparation: Preparation
    gaps: np.ndarray
    scalings: Mapping[str, Scaling]
    sums: ColumnSums | None = None

    def __str__(self) -> str:
        return f"scale={self.preparation.scale}, gaps={self.preparation.gaps}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        names = self.preparation.inputs
        return names + tuple(f"{names[at]} missing" for at in np.flatnonzero(self.gaps))

    def apply(self, rows: np.ndarray, client: str = "") -> np.ndarray:
        """Inputs for a model, of rows in which NaN is a gap."""
        known, there = self.scalings.get(client, self.scalings[""]), ~np.isnan(rows)
        values = (np.where(there, rows, known.fill) - known.minus) / known.over
        return np.concatenate([values, ~there[:, self.gaps]], 1).astype(np.float32)

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain values, of which `read_prepared` makes the same again."""
        scalings = {name: [each.tolist() for each in vars(known).values()] for name, known in self.scalings.items()}
        return {"preparation": asdict(self.preparation), "gaps": self.gaps.tolist(), "scalings": scalings}

    def as_dict(self, client: str) -> dict[str, Any]:
        """What a program needs to make a client's inputs itself, as plain values."""
        known, names = self.scalings.get(client, self.scalings[""]), self.preparation.inputs
        return {
            "inputs": list(self.inputs),
            "columns": {column.name: list(column.values) for column in self.preparation.columns if column.values},
            "fill": {names[at]: float(known.fill[at]) for at in np.flatnonzero(self.gaps)},
            "minus": {name: float(value) for name, value in zip(names, known.minus, strict=True) if value != 0},
            "over": {name: float(value) for name, value in zip(names, known.over, strict=True) if value != 1},
        }


def read_prepared(plain: Mapping[str, Any]) -> Prepared:
    """What `Prepared.as_plain` wrote.

    >>> rows = np.array([[1.0, np.nan], [3.0, 2.0]])
    >>> prepared = Preparation((Column("a"), Column("b")), "federated", "mean").fit(rows, {"c": np.arange(2)}, ["c"])
    >>> np.array_equal(read_prepared(prepared.as_plain()).apply(rows), prepared.apply(rows))
    True
    """
    known = plain["preparation"]
    columns = tuple(Column(**{**column, "values": tuple(column["values"])}) for column in known["columns"])
    scalings = {name: Scaling(*map(np.asarray, parts)) for name, parts in plain["scalings"].items()}
    return Prepared(Preparation(columns, known["scale"], known["gaps"]), np.asarray(plain["gaps"], bool), scalings)
