"""From the columns of a table to a pool: which one names the client, which one is predicted, and what becomes of the
others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.errors import DataError
from ..core.layout import InputLayout, find_layout
from ..core.options import Options, option
from .cutting import KINDS, Cutting
from .fitting import COLUMNS
from .formats.frames import require_columns
from .lists import is_list, pad, read_lists, read_words
from .naming import Naming, number_labels, sort_names
from .notes import MANY, say_classes, say_tokens
from .preparing import GAPS, SCALES, Column, Preparation

if TYPE_CHECKING:
    import polars as pl

    from .sources.base import Pool

MOST_VALUES = 1000
"""How many inputs a column of text may become."""
MISSING = "missing"
"""The value of empty cells of text, where gaps are filled."""


@dataclass(frozen=True)
class Columns(Options):
    """What the columns of a table are."""

    client: str | None = option(None, help="the column that names the client")
    target: str | tuple[str, ...] = option(
        "target", help="the column to predict, or several with numbers: [height, weight]"
    )
    leave_out: tuple[str, ...] = option((), help="columns to ignore")
    predict: str | None = option(
        None,
        choices=("classes", "numbers"),
        help="what the target is; none takes text, yes or no and whole numbers as classes, other numbers as numbers",
    )
    labels: str = option(
        "shared", choices=("shared", "own"), help="whether all clients share the classes, or each has its own"
    )
    scale: str = option(
        "none", choices=SCALES, help="minus the mean, over the standard deviation of training samples, its own or all's"
    )
    encode: str = option(
        "refuse",
        choices=("refuse", "onehot", "words"),
        help="what becomes of text: an input per value that any client has, or a sequence of words",
    )
    gaps: str = option(
        "refuse",
        choices=GAPS,
        help="what becomes of empty cells: the mean of training samples, and an input that says so",
    )
    time: str | None = option(None, help="column by which to split: the latest samples of a client are for test")
    session: str | None = option(None, help="column by which to split: rows with one value stay together")
    fold: str | None = option(None, help="column that says train, val or test")

    def pool(self, table: pl.DataFrame, owner: str, name: str) -> Pool:
        """A table as a pool; `owner` is how messages call it."""
        from .sources.base import Pool

        named = [column for column in (self.client, self.time, self.session, self.fold) if column]
        require_columns(table, (*self.targets, *named, *self.leave_out), owner)
        if doubled := [column for column in self.targets if column in named or self.targets.count(column) > 1]:
            raise DataError(
                f"{owner}: the column {doubled[0]!r} is the target, so it cannot be anything else; name another"
            )
        features = [known for known in table.columns if known not in (*named, *self.targets, *self.leave_out)]
        if not features or not len(table):
            used = " and ".join(dict.fromkeys((*named, *self.targets)))
            raise DataError(f"{owner} has no {'rows' if features else 'columns'} besides {used}")
        for column in (*named, *self.targets):
            refuse_gaps(table[column], owner)
        y, classes = read_targets([table[column] for column in self.targets], self.predict, owner)
        if self.labels == "own" and not classes:
            raise DataError(f"{owner}: labels=own is for classes, but {self.target!r} holds numbers; leave it out")
        texts = [table[name] for name in features if self.encode == "words" and is_text_column(table[name])]
        sequences, lexicon = self._sequences(table, features, texts, owner)
        groups = None if self.client is None else client_names(table[self.client])
        number = len(classes) or (None if y.is_floating_point() else int(y.max()) + 1)
        targets = self.targets if len(self.targets) > 1 else ()
        features = [known for known in features if known not in sequences]
        columns, values = self._inputs(table, features, owner)
        preparation = Preparation(tuple(columns), self.scale, self.gaps)
        plain = self.scale == "none" and self.gaps == "refuse" and not any(column.values for column in columns)
        x, layout = torch.from_numpy(np.concatenate(values, 1)) if values else None, None
        if sequences:
            x, layout = _lay_out(x, sequences, owner)
        if x is None or not (columns or plain):
            raise DataError(
                f"{owner} has no columns to scale or fill beside the sequences ({', '.join(sequences)}); leave out"
                " scale and gaps"
            )
        return Pool(
            x.float() if plain and x.is_floating_point() else x,
            y,
            groups,
            number,
            name,
            names=Naming(classes, preparation.inputs, targets=targets),
            cutting=self._cutting(table, owner),
            preparation=None if plain else preparation,
            layout=layout,
            lexicon=lexicon,
            own_labels=self.labels == "own",
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else self.target

    def _sequences(
        self, table: pl.DataFrame, features: Sequence[str], texts: Sequence[pl.Series], owner: str
    ) -> tuple[dict[str, list[torch.Tensor]], tuple[str, ...]]:
        """The columns that are sequences, by name, and the words of those that are text."""
        lists = {name: read_lists(table[name], owner) for name in features if is_list(table[name])}
        found = {name: values for name, values in lists.items() if isinstance(values, list)}
        for name, values in found.items():
            if values[0].dtype == torch.int64:
                if texts:
                    raise DataError(
                        f"{owner}: the column {name!r} holds tokens already, and encode=words would number words in the"
                        " same way; bring one of them to numbers"
                    )
                say_tokens(f"{owner}: the lists of {name!r}", max(int(row.max()) for row in values))
        words, lexicon = read_words(texts, owner)
        return found | {column.name: rows for column, rows in zip(texts, words, strict=True)}, lexicon

    def _inputs(self, table: pl.DataFrame, features: list[str], owner: str) -> tuple[list[Column], list[np.ndarray]]:
        columns, values = [], []
        for name in features:
            column, numbers = self._read_column(table[name], owner)
            if self.gaps == "refuse" and (gaps := int(np.isnan(numbers).any(1).sum())):
                raise DataError(
                    f"{owner}: the column {name!r} has {gaps} empty cells; fill them with the mean of training"
                    " samples by"
                    " gaps=mean, drop those rows, or leave the column out"
                )
            columns.append(column)
            values.append(numbers)
        return columns, values

    def _read_column(self, column: pl.Series, owner: str) -> tuple[Column, np.ndarray]:
        """A column, and its numbers, NaN where it has a gap."""
        import polars as pl

        name, kind = column.name, column.dtype
        if kind.is_numeric() or kind == pl.Boolean or kind == pl.Null:
            numbers = column.cast(pl.Float64).to_numpy().astype(float)
            return Column(name, scaled=kind != pl.Boolean), numbers[:, None]
        if kind.is_temporal():
            raise DataError(
                f"{owner}: the column {name!r} holds dates or times, such as {_example(column)}; split by it with"
                f" time={name}, turn it into a number, or leave it out: leave_out=[{name}]"
            )
        if is_list(column):
            lists = read_lists(column, owner)
            if isinstance(lists, list):
                raise DataError(
                    f"{owner}: the lists of {name!r} differ in length, but did not before; bring them to one"
                )
            return Column(name, size=lists.shape[1]), lists
        if not is_text_column(column):
            raise DataError(
                f"{owner}: the column {name!r} holds {kind}, not a number or text per row; leave it out:"
                f" leave_out=[{name}]"
            )
        if self.encode == "refuse":
            raise DataError(
                f"{owner}: the column {name!r} holds text such as {_example(column)}; {_advise_text(column)} or leave"
                f" it out: leave_out=[{name}]"
            )
        texts = column.cast(pl.String)
        if self.gaps == "mean":
            texts = texts.fill_null(MISSING)
        values = sort_names(texts.drop_nulls().to_list())
        if len(values) > MOST_VALUES:
            raise DataError(
                f"{owner}: the column {name!r} has {len(values):,} different texts, and at most {MOST_VALUES:,} can"
                " become"
                f" inputs; group them, or leave it out: leave_out=[{name}]"
            )
        return Column(name, values, scaled=False), one_hot(texts, values)

    def _cutting(self, table: pl.DataFrame, owner: str) -> Cutting | None:
        import polars as pl

        given = {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind) is not None}
        if len(given) > 1:
            raise DataError(
                f"{' and '.join(given)} are both given, but one of them decides the splits; leave out the other"
            )
        for kind, name in given.items():
            column = table[name]
            if kind == "time" and is_text_column(column):
                column = parse_dates(column, owner)
            ordered = kind == "time" and not is_text_column(column)
            values = column.to_numpy() if ordered else np.array(column.cast(pl.String).to_list())
            return Cutting(kind, values, f"{owner}: the column {name!r}")
        return None

    def rows(self, table: pl.DataFrame, columns: tuple[Column, ...], owner: str) -> np.ndarray:
        """The numbers of columns that are known already, of another table; an unknown text has no input."""
        import polars as pl

        require_columns(table, [column.name for column in columns], owner)
        parts = []
        for column in columns:
            values = table[column.name]
            if column.values:
                parts.append(one_hot(values.cast(pl.String).fill_null(MISSING), column.values))
            else:
                parts.append(self._read_column(values, owner)[1])
        return np.concatenate(parts, 1)


def _lay_out(
    columns: torch.Tensor | None, sequences: Mapping[str, Any], owner: str
) -> tuple[torch.Tensor, InputLayout]:
    """Sequences, and all other columns as one input beside them, in front, as exact as they were."""
    several: dict[str, Any] = {name: pad(rows) for name, rows in sequences.items()}
    if columns is None:
        nested = several if len(several) > 1 else next(iter(several.values()))
        layout = find_layout(nested)
        return layout.pack(nested, owner), layout
    if COLUMNS in several:
        raise DataError(f"{owner}: the column {COLUMNS!r} is a sequence; rename it, as that is what all others are")
    several = {COLUMNS: columns.float(), **several}
    layout = find_layout(several)
    rows = layout.pack(several, owner).double()
    rows[:, : columns.shape[1]] = columns
    return rows, layout


def one_hot(column: pl.Series, values: tuple[str, ...]) -> np.ndarray:
    """A column of yes or no for each value; a gap is NaN in all of them."""
    texts = column.to_list()
    number = {value: place for place, value in enumerate(values)}
    rows = np.zeros((len(texts), len(values)))
    for row, text in enumerate(texts):
        if text is None:
            rows[row] = np.nan
        elif text in number:
            rows[row, number[text]] = 1.0
    return rows


def client_names(column: pl.Series) -> np.ndarray:
    """The clients' names as text; whole numbers that pandas made floating-point, because of a gap, are whole again."""
    import polars as pl

    if column.dtype.is_float() and bool((column == column.round()).all()):
        column = column.cast(pl.Int64)
    return np.array([str(value) for value in column.cast(pl.String).to_list()], object)


def read_target(column: pl.Series, predict: str | None, owner: str) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Targets, and the names of classes where they are classes."""
    import polars as pl

    name, kind = column.name, column.dtype
    number = kind.is_numeric() or kind == pl.Boolean
    if not number and not is_text_column(column):
        raise DataError(f"{owner}: the target {name!r} holds {kind}, but must be a number or a text per row")
    if predict == "numbers" and not number:
        raise DataError(
            f"{owner}: the target {name!r} holds text such as {_example(column)}, so it is no number to predict"
        )
    if predict == "numbers" or (predict is None and (kind.is_float() or kind.is_decimal())):
        return torch.from_numpy(column.cast(pl.Float64).to_numpy().astype(np.float32)), ()
    if is_text_column(column):
        texts = column.cast(pl.String).to_list()
        classes = sort_names(texts)
        return torch.from_numpy(number_labels(texts, classes, owner)), classes
    if kind.is_float():
        if not bool((column == column.round()).all()):
            raise DataError(f"{owner}: the target {name!r} has values such as {_example(column)}, which are no classes")
        column = column.cast(pl.Int64)
    try:
        values = column.to_numpy()
    except pl.exceptions.PolarsError:  # numbers that are too large for an array
        values = np.array(column.to_list(), object)
    known, numbered = np.unique(values, return_inverse=True)
    if predict is None and len(known) > max(MANY, len(values) / 2):
        raise DataError(
            f"{owner}: the target {name!r} holds {len(known)} different whole numbers in {len(values)} rows, which"
            " may be"
            " classes or numbers; say predict=numbers or predict=classes"
        )
    if predict is None and kind != pl.Boolean:
        say_classes(f"{owner}: the target {name!r}", len(known))
    return torch.from_numpy(numbered.astype(np.int64)), tuple(map(str, known))


def read_targets(columns: Sequence[pl.Series], predict: str | None, owner: str) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The targets of one column, or numbers of several, which all must hold."""
    if len(columns) == 1:
        return read_target(columns[0], predict, owner)
    if not columns:
        raise DataError(f"{owner}: no target is named; name a column, as in target=died, or several numbers")
    for column in columns:
        if not column.dtype.is_numeric() or predict == "classes":
            raise DataError(
                f"{owner}: several targets are predicted as numbers, but {column.name!r} holds classes; predict one"
                " column of classes, or leave it out"
            )
    return torch.stack([read_target(column, "numbers", owner)[0] for column in columns], 1), ()


def is_text_column(column: pl.Series) -> bool:
    """Whether a column holds text or categories."""
    import polars as pl

    return column.dtype in (pl.String, pl.Categorical, pl.Enum)


def refuse_gaps(column: pl.Series, owner: str) -> None:
    """Raise `DataError` where a column that cannot have gaps has some."""
    gaps = column.null_count() + (int(column.is_nan().sum()) if column.dtype.is_float() else 0)
    if gaps:
        raise DataError(f"{owner}: the column {column.name!r} has {gaps} empty cells; fill them or drop those rows")


def parse_dates(column: pl.Series, owner: str) -> pl.Series:
    """Dates and times in ISO 8601, which sort as text does where all are written alike."""
    import polars as pl

    texts = column.cast(pl.String).to_list()
    form = re.sub(r"\d", "0", texts[0])
    wrong = next((text for text in texts if re.sub(r"\d", "0", text) != form or not is_date(text)), None)
    if wrong is not None:
        raise DataError(
            f"{owner}: the column {column.name!r} holds texts such as {wrong!r}, whose order in time is not known;"
            " write all as 2024-05-31, with or without 23:59:59, or as numbers"
        )
    return column.cast(pl.String)


def is_date(text: str) -> bool:
    """Whether a text begins with a date, or a time of day, that there is.

    >>> is_date("2024-05-31 23:59"), is_date("23:59:59"), is_date("2001-13-45"), is_date("May")
    (True, True, False, False)
    """
    try:
        if text[2:3] == ":":
            time.fromisoformat(text[:5])
        else:
            date.fromisoformat(text[:10])
    except ValueError:
        return False
    return text[4:5] == "-" or text[2:3] == ":"


def _example(column: pl.Series) -> str:
    """A value; of text one that is no number, if there is one."""
    values: list[Any] = column.drop_nulls().to_list()
    found = next((value for value in values if isinstance(value, str) and not _NUMBER.fullmatch(value)), values[0])
    return repr(found) if isinstance(found, str) else str(found)


def _advise_text(column: pl.Series) -> str:
    """What helps where a column is not of numbers."""
    texts: list[str] = column.drop_nulls().cast(str).to_list()
    wrong = sum(not _NUMBER.fullmatch(text) for text in texts)
    if wrong and all(_COMMA.fullmatch(text.strip()) for text in texts):
        return "write numbers with a point, as in 1.5,"
    if not wrong:
        return "its numbers are text, so turn it into numbers,"
    if 0 < wrong < len(texts) / 2:
        return f"{wrong} of {len(texts)} cells are no numbers, so correct or empty them,"
    return "encode it as numbers, an input per value, by encode=onehot,"


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_COMMA = re.compile(r"[+-]?[\d.]*\d(,\d+)?")
