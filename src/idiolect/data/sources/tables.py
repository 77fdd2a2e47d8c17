"""Tables: any CSV with a column of clients, any NPZ, UCI heart disease and UCI HAR by subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import did_you_mean, option
from .. import arrays
from ..formats.files import BROKEN, Layout, read_bytes, unreadable
from ..formats.packed import check_labels, check_rank, read_npz
from ..naming import Naming, number_labels, sort_names
from .base import FileSource, Pool, Source, choose, sources

if TYPE_CHECKING:
    import polars as pl


def read_table(path: Path, needed: Sequence[str], separator: str = ",", advice: str = "") -> pl.DataFrame:
    """A CSV file with a header, plain or compressed, that must have certain columns; `advice` is for where it lacks
    one."""
    import polars as pl  # which takes long to import

    try:
        table = pl.read_csv(read_bytes(path), separator=separator, infer_schema_length=None, try_parse_dates=False)
    except (pl.exceptions.PolarsError, *BROKEN) as error:
        raise unreadable(path, str(error).splitlines()[0]) from error
    for name in needed:
        if name not in table.columns:
            hint = did_you_mean(name, table.columns)
            raise DataError(f"{path} has no column {name!r}.{hint} Its columns: {', '.join(table.columns)}.{advice}")
    return table


@dataclass(frozen=True)
class OwnFile(Source):
    """What sources of the user's own files share."""

    licence: ClassVar[str] = "your own"
    size: ClassVar[str] = "as many as there are"
    ending: ClassVar[str] = ""

    path: str | None = option(None, help="the file")

    def where(self) -> str:
        """What to put where."""
        return f"write {self.name}:PATH, with the path of your file"

    def available(self) -> bool:
        """Whether the file is there."""
        return self.path is not None and Path(self.path).is_file()

    def file(self) -> Path:
        """The file, or a `DataError`."""
        if self.path is None or not self.available():
            raise DataError(f"{self.name}: {self.path or 'no path'} is no file; {self.where()}")
        return Path(self.path)


@sources.register("csv")
@dataclass(frozen=True)
class Csv(OwnFile):
    """A CSV file with a header: one column names the client of each row, one is the target, all others are numbers.

    Targets that are text or whole numbers are classes, numbered in order; other numbers are predicted as they are.
    `csv(visits.csv, client=hospital, target=outcome)`.
    """

    own: ClassVar[bool] = True
    title: ClassVar[str] = "own table with a column of clients"
    groups: ClassVar[str] = "the values of the column `client`"

    client: str = option("client", help="the column that names the client")
    target: str = option("target", help="the column to predict")
    leave_out: tuple[str, ...] = option((), help="columns to ignore")
    separator: str = option(",", help="what stands between cells")
    samples: int | None = option(None, min=1, help="take a random part of this many rows")
    seed: int = option(0, min=0, help="determines that part")

    def load(self) -> Pool:
        """The pool, with the clients as groups."""
        import polars as pl  # which takes long to import

        path = self.file()
        advice = f" Name the column of clients and the one to predict: csv({self.path}, client=..., target=...)"
        table = read_table(path, (self.client, self.target, *self.leave_out), self.separator, advice)
        features = [name for name in table.columns if name not in (self.client, self.target, *self.leave_out)]
        if not features or not len(table):
            raise DataError(
                f"{path} has no {'rows' if features else 'columns'} besides {self.client} and {self.target}"
            )
        table = table[choose("csv", len(table), self.samples, self.seed)]
        for name in (self.client, self.target, *features):
            if gaps := table[name].null_count():
                raise DataError(f"{path}: the column {name!r} has {gaps} empty cells; fill them or drop those rows")
        for name in features:
            if not table[name].dtype.is_numeric() and table[name].dtype != pl.Boolean:
                raise DataError(
                    f"{path}: the column {name!r} holds text such as {table[name][0]!r}; encode it as numbers, or leave"
                    f" it out: leave_out=[{name}]"
                )
        x = torch.from_numpy(
            np.ascontiguousarray(table.select(pl.col(features).cast(pl.Float64)).to_numpy().astype(np.float32))
        )
        y, classes = _targets(table[self.target])
        names = Naming(classes, tuple(features))
        groups = table[self.client].cast(pl.String).to_numpy()
        return Pool(x, y, groups, len(classes) or None, path.stem, names=names)


def _targets(column: pl.Series) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Classes numbered in order, with their names, or numbers."""
    import polars as pl

    if column.dtype.is_float():
        return torch.from_numpy(column.to_numpy().astype(np.float32)), ()
    if column.dtype == pl.String:
        classes = sort_names(column.to_list())
        return torch.from_numpy(number_labels(column.to_list(), classes, "the table")), classes
    try:
        values = column.to_numpy()
    except pl.exceptions.PolarsError:  # numbers that are too large for an array
        values = np.array(column.to_list(), object)
    known, numbered = np.unique(values, return_inverse=True)
    return torch.from_numpy(numbered.astype(np.int64)), tuple(map(str, known))


@sources.register("npz")
@dataclass(frozen=True)
class Npz(OwnFile):
    """An .npz file with the arrays `x` (one row per sample), `y` and, if there are natural clients, `client`. Values
    are taken as they are: bytes and numbers as float32, other whole numbers as tokens."""

    own: ClassVar[bool] = True
    title: ClassVar[str] = "own arrays x, y and, if you like, client"
    groups: ClassVar[str] = "the values of `client`"

    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    seed: int = option(0, min=0, help="determines that part")

    def load(self) -> Pool:
        """The pool, with the clients as groups where they are given."""
        path = self.file()
        content = read_npz(path, ["x", "y"], ["client"])
        x, y = arrays.pair((content["x"], content["y"]), str(path))
        groups = content.get("client")
        if groups is not None and groups.ndim != 1:
            raise DataError(f"{path}: client has the shape {list(groups.shape)}; give one client per sample")
        if groups is not None and len(groups) != len(y):
            raise DataError(f"{path}: {len(y)} samples but {len(groups)} clients; there must be one client per sample")
        index = choose("npz", len(y), self.samples, self.seed)
        classes = arrays.classes_of(y, str(path))
        return Pool(x[index], y[index], None if groups is None else groups[index], classes, path.stem)


_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# Column, and the round mean and deviation by which it is scaled.
_MEASURES = {0: (54, 9), 1: (0, 1), 3: (132, 19), 4: (220, 90), 5: (0, 1), 7: (138, 26), 8: (0, 1), 9: (0.9, 1.1)}
_KINDS = {2: (2, 3, 4), 6: (1, 2)}
_FEATURES = (*_MEASURES, *_KINDS)
_TARGET = 13


@sources.register("heart", "heart-disease")
@dataclass(frozen=True)
class Heart(FileSource):
    """Heart disease at four hospitals: is there any narrowing of the vessels?

    As in FLamby, the columns slope, ca and thal, which some hospitals lack, are left out, and then rows with gaps. The
    13 inputs: age, sex, blood pressure, cholesterol, sugar, heart rate, angina and ST depression, scaled by fixed round
    means and deviations, and the kinds of chest pain (2 to 4) and of ECG (1, 2) as yes or no.
    """

    title: ClassVar[str] = "UCI heart disease"
    licence: ClassVar[str] = "CC BY 4.0 (UCI)"
    size: ClassVar[str] = "740 samples, 13 numbers, 2 classes"
    groups: ClassVar[str] = "4 hospitals: 303, 261, 46 and 130 samples"
    layouts: ClassVar[dict[str, Layout]] = {
        "uci": Layout("heart", tuple(f"processed.{site}.data" for site in _HOSPITALS)),
        "own": Layout("tabular/uci_heart_disease", tuple(f"processed.{site}.data" for site in _HOSPITALS)),
    }

    def load(self) -> Pool:
        """The pool, with the hospitals as groups."""
        _, paths = self.find()
        tables = [_read_hospital(path) for path in paths.values()]
        rows = np.concatenate(tables)
        columns = [(rows[:, at] - mean) / deviation for at, (mean, deviation) in _MEASURES.items()]
        columns += [rows[:, at] == kind for at, kinds in _KINDS.items() for kind in kinds]
        index = self.choose_samples(len(rows))
        x = torch.from_numpy(np.stack(columns, 1).astype(np.float32)[index])
        y = torch.from_numpy((rows[:, _TARGET] > 0).astype(np.int64)[index])
        groups = np.repeat(np.array(_HOSPITALS), [len(table) for table in tables])
        return Pool(x, y, groups[index], 2, self.name)


def _read_hospital(path: Path) -> np.ndarray:
    try:
        lines = read_bytes(path).decode("ascii").split()
        rows = np.array([[np.nan if cell == "?" else float(cell) for cell in line.split(",")] for line in lines])
    except ValueError as error:
        raise unreadable(path, error) from error
    if rows.ndim != 2 or rows.shape[1] != 14:
        raise DataError(f"{path} must have 14 columns, as the processed files of UCI have; fetch it again")
    complete: np.ndarray = rows[~np.isnan(rows[:, [*_FEATURES, _TARGET]]).any(1)]
    return complete


_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_ROOT = "UCI HAR Dataset"
_PARTS = ("train", "test")


@sources.register("har", "uci-har")
@dataclass(frozen=True)
class Har(FileSource):
    """Six activities of 30 people from the sensors of a phone: windows of 128 time steps of 9 signals, or the 561
    published features. The compact file holds the second half of each window, and results on it the name har-blocks."""

    title: ClassVar[str] = "UCI HAR: activities from a phone's sensors"
    licence: ClassVar[str] = "CC BY 4.0 (UCI)"
    size: ClassVar[str] = "10,299 samples, 9 x 128 (9 x 64 in the compact file) or 561 numbers, 6 classes"
    groups: ClassVar[str] = "30 subjects with 281 to 409 samples each"
    layouts: ClassVar[dict[str, Layout]] = {
        "uci": Layout("har", tuple(f"{_ROOT}/{part}/" for part in _PARTS)),
        "blocks": Layout(".", ("uci_har_raw_blocks.npz",)),
    }

    features: str = option("signals", choices=("signals", "engineered"), help="raw signals, or 561 published features")

    def load(self) -> Pool:
        """The pool, with the subjects as groups."""
        kind, paths = self.find()
        if kind == "blocks":
            if self.features == "engineered":
                raise DataError("har: the compact file has no engineered features; put the original files beside it")
            path = paths["uci_har_raw_blocks.npz"]
            arrays = read_npz(path, ["X", "activity", "subject"])
            for key, rank in (("X", 3), ("activity", 1), ("subject", 1)):
                check_rank(path, key, arrays[key], rank)
            x, subjects = arrays["X"].transpose(0, 2, 1), arrays["subject"]
            labels = check_labels(path, arrays["activity"], 6)
        else:
            parts = [self._part(folder) for folder in paths.values()]
            x, labels, subjects = (np.concatenate([part[place] for part in parts]) for place in range(3))
            labels = check_labels("har", labels, 6, start=1)
        if not len(x) == len(labels) == len(subjects):
            raise DataError(f"har: {len(x)} windows, {len(labels)} labels and {len(subjects)} subjects; fetch it again")
        index = self.choose_samples(len(labels))
        inputs = torch.from_numpy(np.ascontiguousarray(x[index].astype(np.float32)))
        name = "har-blocks" if kind == "blocks" else self.name
        return Pool(inputs, torch.from_numpy(labels[index].astype(np.int64)), subjects[index], 6, name)

    def _part(self, folder: Path) -> tuple[np.ndarray, ...]:
        which = folder.name
        labels, subjects = (_numbers(folder / f"{name}_{which}.txt")[:, 0] for name in ("y", "subject"))
        if self.features == "engineered":
            return _numbers(folder / f"X_{which}.txt"), labels, subjects
        files = [folder / "Inertial Signals" / f"{name}_{which}.txt" for name in _SIGNALS]
        return np.stack([_numbers(file) for file in files], 1), labels, subjects


def _numbers(path: Path) -> np.ndarray:
    """A file of numbers between blanks."""
    try:
        return np.loadtxt(path, dtype=np.float32, ndmin=2)
    except BROKEN as error:
        raise unreadable(path, error) from error
