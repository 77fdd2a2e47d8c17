"""Tables in Python: frames of pandas and Polars, tables of Hugging Face, files and folders, and tables by client
-> a pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.options import make, options_of
from .columns import Columns
from .formats.frames import is_frame, join_tables, to_frame
from .kinds import require_known
from .sources.base import Pool, Source, sources
from .sources.huggingface import HuggingFace

FOLDS = "split of the data set"
"""What the splits of a Hugging Face data set are called, where they become those of the clients."""


LISTS = {"Sequence", "List", "LargeList"}
"""What Hugging Face calls columns of lists."""


def is_table(data: Any) -> bool:
    """Whether something is a table, a file or folder by its path, or tables by client."""
    by_client = isinstance(data, Mapping) and bool(data) and all(map(is_frame, data.values()))
    return is_frame(data) or isinstance(data, Path) or by_client


def table(data: Any, **columns: Any) -> Pool:
    """A table as a pool, for `load`.

    Args:
        data: a frame of pandas or Polars, a data set of Hugging Face, a `Path` to a CSV or Parquet file or to a folder
            of them, or a mapping from clients' names to tables.
        columns: what its columns are, as for `csv` and `parquet`: client, target, leave_out, predict, scale, encode,
            gaps, time, session, fold; of a data set of images or texts: x, y, client, length.

    >>> import polars as pl
    >>> visits = pl.DataFrame({"ward": ["a", "a", "b"], "age": [40, 50, 60], "died": ["no", "yes", "no"]})
    >>> pool = table(visits, client="ward", target="died")
    >>> pool.names.features, pool.names.classes, pool.x.flatten().tolist()
    (('age',), ('no', 'yes'), [40.0, 50.0, 60.0])
    """
    if isinstance(data, Path):
        return _source_of(data, columns).load()
    if any("Iterable" in type(part).__name__ for part in (data.values() if isinstance(data, Mapping) else [data])):
        raise DataError(
            "a stream of Hugging Face has no length, so nobody knows what to deal and to split; load it without"
            " streaming=True (it is read from disk as it is needed), or keep a part:"
            " datasets.Dataset.from_list(list(stream.take(10000)))"
        )
    if is_hub(data) and (not isinstance(data, Mapping) or not _are_clients(data, columns)):
        return _read_hub(data, columns)
    if isinstance(data, Mapping):
        column = columns.get("client") or "client"
        frames = {str(name): to_frame(part, f"the table of {str(name)!r}") for name, part in data.items()}
        return make_columns({**columns, "client": column}).pool(join_tables(frames, column), "the tables", "custom")
    return make_columns(columns).pool(to_frame(data, "the table"), "the table", "table")


def make_columns(columns: Mapping[str, Any]) -> Columns:
    """What the columns of a table are, from a user's arguments."""
    require_known(columns, options_of(Columns), "tables")
    made: Columns = make(
        Columns, {n: (v,) if n == "leave_out" and isinstance(v, str) else v for n, v in columns.items()}
    )
    return made


def _source_of(path: Path, columns: Mapping[str, Any]) -> Source:
    """The source of a file or folder by its ending."""
    if not path.exists():
        raise DataError(f"{path} is no file or folder; give the path of a CSV or Parquet file, or of a folder of them")
    endings = {file.suffix for file in path.iterdir()} if path.is_dir() else {path.suffix}
    name = "npz" if endings == {".npz"} else "parquet" if ".parquet" in endings else "csv"
    cls = sources.get(name)
    made: Source = make(cls, {"path": str(path), **columns})
    return made


def is_hub(data: Any) -> bool:
    """Whether something is of the package `datasets`."""
    return type(data).__module__.partition(".")[0] == "datasets"


def _are_clients(data: Mapping[str, Any], columns: Mapping[str, Any]) -> bool:
    """Whether a mapping of tables is one of clients, and not of training and test."""
    return not set(data) <= {"train", "validation", "test"}


def _read_hub(data: Any, columns: Mapping[str, Any]) -> Pool:
    """A data set of Hugging Face: of images, texts or lists by the source `hf`, else as a table."""
    columns = dict(columns)
    if isinstance(data, Mapping):  # its splits stay what they are
        import datasets

        parts = [part.add_column(FOLDS, [name] * len(part)) for name, part in data.items()]
        data, columns = datasets.concatenate_datasets(parts), {"fold": FOLDS, **columns}
    if not {"x", "y", "length"} & columns.keys():
        kinds = {type(feature).__name__ for feature in data.features.values()}
        usual = {"text", *(("x",) if kinds & LISTS else ())} & set(data.column_names)
        if kinds <= {"Value", "ClassLabel", *LISTS} and not usual:
            return make_columns(columns).pool(_name_labels(data, columns.get("target", "target")), "the data set", "hf")
    fold = columns.pop("fold", None)
    if "target" in columns:
        columns["y"] = columns.pop("target")
    require_known(columns, options_of(HuggingFace), "this data set")
    pool = make(HuggingFace, columns).read(data)
    if fold is None:
        return pool  # type: ignore[no-any-return]
    from dataclasses import replace

    from .cutting import Cutting

    return replace(pool, cutting=Cutting("fold", np.array(data[fold][:]), f"the column {fold!r}"))  # type: ignore[no-any-return]


def _name_labels(data: Any, target: str) -> Any:
    """A table in which labels that have names are these names."""
    frame = to_frame(data, "the data set")
    import polars as pl

    for name, feature in data.features.items():
        if names := getattr(feature, "names", None):
            texts = [None if label is None or label < 0 else names[label] for label in frame[name].to_list()]
            frame = frame.with_columns(pl.Series(name, texts, pl.String))
    return frame
