"""Tables, whatever holds them: pandas and Polars frames, Hugging Face tables, CSV and Parquet files and folders of them
-> one Polars frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError
from ...core.names import natural_key
from ...core.options import did_you_mean
from .files import BROKEN, COMPRESSIONS, read_bytes

if TYPE_CHECKING:
    import polars as pl

ENDINGS = (".csv", ".tsv", ".parquet")
"""Files of a folder that are tables, the first two plain or compressed."""


def is_frame(data: Any) -> bool:
    """Whether something is a table with columns: of pandas, of Polars (also a lazy one) or of Hugging Face."""
    kind = type(data)
    package = kind.__module__.partition(".")[0]
    return package in ("pandas", "polars", "datasets") and (hasattr(kind, "columns") or hasattr(kind, "column_names"))


def to_frame(data: Any, owner: str) -> pl.DataFrame:
    """A table as a Polars frame."""
    import polars as pl  # which takes long to import

    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    names, column = _columns_of(data)
    if doubled := sorted({str(name) for name in names if names.count(name) > 1}):
        raise DataError(f"{owner} has several columns called {doubled[0]!r}; give each its own name")
    return pl.DataFrame([_series(str(name), column(name), owner) for name in names])


def _columns_of(data: Any) -> tuple[list[Any], Any]:
    """The names of columns, and a function that gives a column's values."""
    if hasattr(data, "column_names"):  # Hugging Face
        return list(data.column_names), lambda name: list(data[name])
    return list(data.columns), data.__getitem__


def _series(name: str, values: Any, owner: str) -> pl.Series:
    """A column of pandas, or a list; what is missing becomes null."""
    import polars as pl

    kind = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind in "biufM":
        return pl.Series(name, np.ascontiguousarray(values.to_numpy()))
    if hasattr(values, "isna"):  # pandas: text, categories, nullable and mixed columns
        values = [None if gap else value for value, gap in zip(values.tolist(), values.isna().tolist(), strict=True)]
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise DataError(
            f"{owner}: the column {name!r} mixes values of type {', '.join(kinds[:4])}; bring it to one type, or leave"
            f" it out: leave_out=[{name}]"
        ) from error


def read_table(path: Path, needed: Sequence[str], separator: str = ",", advice: str = "") -> pl.DataFrame:
    """A CSV file with a header, plain or compressed, or a Parquet file, that must have certain columns; `advice` is for
    where it lacks one."""
    import polars as pl  # which takes long to import

    try:
        if path.suffix == ".parquet":
            table = pl.read_parquet(path)
        else:
            mark = "\t" if separator == "," and ".tsv" in path.suffixes else separator
            content = read_bytes(path)
            table = pl.read_csv(content, separator=mark, infer_schema_length=None, try_parse_dates=False)
    except (pl.exceptions.PolarsError, *BROKEN) as error:
        raise _no_table(path, separator, str(error).splitlines()[0]) from error
    if any(not name.isprintable() for name in table.columns):
        raise _no_table(path, separator, "its first line is no text")
    require_columns(table, needed, str(path), advice)
    return table


def _no_table(path: Path, separator: str, problem: str) -> DataError:
    """The error of a file that should be a table and is not."""
    if path.suffix == ".parquet":
        return DataError(f"{path} cannot be read ({problem}); write it as Parquet again, or as CSV")
    known = {";": ";", "\t": "a tab", "|": "|"}
    try:
        first = read_bytes(path).splitlines()[0].decode("utf-8")
    except (*BROKEN, IndexError, UnicodeDecodeError, DataError):
        first = ""
    found = next((mark for mark in known if mark in first and mark != separator), None)
    help = (
        f"its cells seem to be separated by {known[found]}: separator='{found}'".replace("\t", "\\t")
        if found
        else "a table is a text file in UTF-8, with a header and a separator (separator=;), or a Parquet file"
    )
    return DataError(f"{path} cannot be read ({problem}); {help}")


def require_columns(table: pl.DataFrame, needed: Sequence[str], owner: str, advice: str = "") -> None:
    """Raise `DataError` unless a table has some columns."""
    for name in needed:
        if name not in table.columns:
            hint = did_you_mean(name, table.columns)
            raise DataError(f"{owner} has no column {name!r}.{hint} Its columns: {', '.join(table.columns)}.{advice}")


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables in a folder by the names of their files without ending, as people sort them."""
    endings = [
        f"{ending}{packed}" for ending in ENDINGS for packed in (COMPRESSIONS if ending != ".parquet" else ("",))
    ]
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        ending = next((known for known in sorted(endings, key=len, reverse=True) if path.name.endswith(known)), None)
        if ending is None or path.name.startswith(".") or not path.is_file():
            continue
        name = path.name.removesuffix(ending)
        if name in found:
            raise DataError(f"{folder} holds two tables called {name}: {found[name].name} and {path.name}; keep one")
        found[name] = path
    if not found:
        raise DataError(f"{folder} holds no tables; put a file per client there, such as north.csv or north.parquet")
    return dict(sorted(found.items(), key=lambda item: natural_key(item[0])))


def join_tables(tables: Mapping[str, pl.DataFrame], column: str) -> pl.DataFrame:
    """Tables of several clients as one, with their names in a column; all must have the same columns."""
    import polars as pl

    (first, known), *_ = tables.items()
    for name, table in tables.items():
        if column in table.columns:
            raise DataError(
                f"the table of {name!r} has a column {column!r}, but the tables come by client; name another one for"
                " the clients' names with client=..., or join the tables"
            )
        if different := sorted(set(table.columns) ^ set(known.columns)):
            owner = name if different[0] in known.columns else first
            raise DataError(
                f"the table of {owner!r} has no column {different[0]!r}, which others have; bring all to one"
            )
    named = [table.select(known.columns).with_columns(pl.lit(name).alias(column)) for name, table in tables.items()]
    try:
        return pl.concat(named, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"the clients' tables differ in the types of their columns: {_different(tables)}") from error


def _different(tables: Mapping[str, pl.DataFrame]) -> str:
    """Which column has which types where."""
    (first, known), *rest = tables.items()
    for name, table in rest:
        for column, kind in table.schema.items():
            if kind != known.schema[column] and not (kind.is_numeric() and known.schema[column].is_numeric()):
                return f"{column!r} is {known.schema[column]} in {first!r} and {kind} in {name!r}; bring it to one type"
    return "bring them to one type"
