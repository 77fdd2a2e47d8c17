"""Tables: any CSV with a column of clients, any NPZ, UCI heart disease and UCI HAR by subject."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from .. import arrays
from ..columns import Columns
from ..cutting import KINDS, Cutting
from ..formats.files import BROKEN, Layout, read_bytes, unreadable
from ..formats.frames import join_tables, read_table, require_columns, tables_in
from ..formats.packed import check_labels, check_rank, read_npz
from ..kinds import CHOICES, Kinds
from ..naming import Naming, is_text, number_labels, sort_names
from ..notes import say_classes, say_tokens
from .base import FileSource, Pool, Source, choose, sources


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


@dataclass(frozen=True)
class TableFile(Columns, OwnFile):
    """Tables in files: one with a column of clients, or a folder with a file per client."""

    own: ClassVar[bool] = True
    licence: ClassVar[str] = "your own"
    size: ClassVar[str] = "as many as there are"
    groups: ClassVar[str] = "the values of the column `client`, or the files of a folder"

    client: str | None = option(
        "client", help="the column that names the client; none is no client; in a folder, the file's name"
    )
    separator: str = option(",", help="what stands between cells")
    samples: int | None = option(None, min=1, help="take a random part of this many rows")
    seed: int = option(0, min=0, help="determines that part")

    def available(self) -> bool:
        """Whether the file or folder is there."""
        return self.path is not None and Path(self.path).exists()

    def load(self) -> Pool:
        """The pool, with the clients as groups."""
        if self.path is None or not self.available():
            raise DataError(f"{self.name}: {self.path or 'no path'} is no file or folder; {self.where()}")
        path, columns = Path(self.path), self
        advice = f" Name the column of clients and the one to predict: {self.name}({self.path}, client=..., target=...)"
        if self.client in ("none", ""):
            columns = replace(self, client=None)
        if path.is_dir():
            column = self.client or "client"
            files = {name: read_table(file, (), self.separator) for name, file in tables_in(path).items()}
            table, columns = join_tables(files, column), replace(self, client=column)
        else:
            table = read_table(path, (), self.separator)
        require_columns(table, [name for name in (columns.client, *columns.targets) if name], str(path), advice)
        return columns.pool(table[choose(self.name, len(table), self.samples, self.seed)], str(path), path.stem)


@sources.register("csv")
@dataclass(frozen=True)
class Csv(TableFile):
    """A CSV file with a header: one column names the client of each row, one is the target, all others are inputs. Or a
    folder with a file per client.

    Targets that are text, yes or no, or whole numbers are classes; other numbers are predicted as they are; `predict`
    says otherwise. `csv(visits.csv, client=hospital, target=outcome)`, `csv(folder, target=outcome, scale=federated,
    gaps=mean, encode=onehot, time=day)`.
    """

    title: ClassVar[str] = "own table with a column of clients, or a folder with a table per client"


@sources.register("parquet")
@dataclass(frozen=True)
class Parquet(TableFile):
    """A Parquet file, or a folder with a file per client, with the options of `csv`:
    `parquet(visits.parquet, client=hospital, target=outcome)`."""

    title: ClassVar[str] = "own Parquet table with a column of clients, or a folder with a table per client"


@sources.register("npz")
@dataclass(frozen=True)
class Npz(OwnFile):
    """An .npz file with the arrays `x` (one row per sample), `y` and, if there are natural clients, `client`. Values
    are taken as they are: bytes and numbers as float32, other whole numbers as tokens, unless `inputs` or `predict` say
    otherwise. An array `time`, `session` or `fold` decides the splits."""

    own: ClassVar[bool] = True
    title: ClassVar[str] = "own arrays x, y and, if you like, client"
    groups: ClassVar[str] = "the values of `client`"

    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    seed: int = option(0, min=0, help="determines that part")
    predict: str | None = option(None, choices=CHOICES["predict"], help="what the targets are; none goes by their type")
    inputs: str | None = option(None, choices=CHOICES["inputs"], help="what whole-number inputs are; none is tokens")

    def load(self) -> Pool:
        """The pool, with the clients as groups where they are given."""
        path = self.file()
        content = read_npz(path, ["x", "y"], ["client", *KINDS])
        classes: tuple[str, ...] = ()
        if is_text(content["y"]):
            classes = sort_names(content["y"])
            content["y"] = number_labels(content["y"], classes, str(path))
        kinds = Kinds(self.predict, self.inputs)
        x, y = arrays.pair(kinds.change((content["x"], content["y"]), str(path)), str(path))
        cuttings = [Cutting(kind, content[kind], f"{path}: {kind}") for kind in KINDS if kind in content]
        if len(cuttings) > 1:
            raise DataError(
                f"{path} has several of {', '.join(KINDS)}, of which one decides the splits; leave out the others"
            )
        if cuttings and len(cuttings[0].values) != len(y):
            raise DataError(
                f"{path}: {len(y)} samples but {len(cuttings[0].values)} of {cuttings[0].kind}; give one each"
            )
        groups = content.get("client")
        if groups is not None and groups.ndim != 1:
            raise DataError(f"{path}: client has the shape {list(groups.shape)}; give one client per sample")
        if groups is not None and len(groups) != len(y):
            raise DataError(f"{path}: {len(y)} samples but {len(groups)} clients; there must be one client per sample")
        index = choose("npz", len(y), self.samples, self.seed)
        number = len(classes) or arrays.classes_of(y, str(path))
        cutting = cuttings[0] if cuttings else None
        pool = Pool(x, y, groups, number, path.stem, names=Naming(classes), cutting=cutting).take(index)
        if self.inputs is None and pool.tokens:
            say_tokens(f"{path}: the inputs", pool.vocabulary - 1)
        if self.predict is None and not classes and number and y.ndim == 1:
            say_classes(f"{path}: the targets", number)
        return pool


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
