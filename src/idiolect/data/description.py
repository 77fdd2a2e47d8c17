"""What one client says of its data to those that must not see them: shapes, types, names and, of a table, what its
columns are and their sums. The descriptions of all clients make one, by which each brings its data to the same form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..core.errors import DataError, InputError
from ..core.layout import InputLayout, Leaf, join_layouts, read_layout
from .checks import MOST_CLASSES
from .federation import Federation
from .fitting import name_shape, widen_columns
from .lists import FILLERS
from .naming import UNNAMED, Naming, sort_names
from .preparing import GAPS, SCALES, Column, ColumnSums, Preparation

MAX_SAMPLE_SIZE = 10**8
"""How many numbers a sample may have."""
LONGEST = 10**6
"""How many characters a description may have."""


@dataclass(frozen=True, eq=False)
class TableFacts:
    """What a client says of its table.

    Attributes:
        preparation: the columns, and what is done to them.
        gaps: which of the inputs have one.
        sums: of its training samples; empty where what is done to the columns does not depend on other clients'.
    """

    preparation: Preparation
    gaps: tuple[bool, ...]
    sums: ColumnSums

    def widen(self, columns: tuple[Column, ...]) -> TableFacts:
        """The same in terms of columns that may have more values."""
        if columns == self.preparation.columns:
            return self
        order = widening(self.preparation.columns, columns)
        gaps = tuple(at is not None and self.gaps[at] for at in order)
        sums = self.sums
        if len(sums.known):
            rows = sums.known.max()
            known = np.array([rows if at is None else sums.known[at] for at in order])
            sums = ColumnSums(known, *(fill_in(part[None], order)[0] for part in sums[1:]))
        return TableFacts(replace(self.preparation, columns=columns), gaps, sums)

    def as_plain(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        preparation = self.preparation
        columns = [[column.name, list(column.values), column.scaled, column.size] for column in preparation.columns]
        return {
            "columns": columns,
            "scale": preparation.scale,
            "rule": preparation.gaps,
            "gaps": list(self.gaps),
            "sums": [part.tolist() for part in self.sums],
        }


@dataclass(frozen=True, eq=False)
class Description:
    """What a client's data look like, or what those of all clients do.

    Attributes:
        x: shape and type of a sample's inputs.
        y: shape and type of its target.
        classes: how many there are; None where numbers are predicted.
        words: how many different tokens there may be; None where inputs are numbers.
        names: of classes and features.
        layout: how several inputs lie side by side.
        table: what columns they come from, where something is done to these.
        own: the names of the classes of each client, by its number, where each has its own.
    """

    x: tuple[tuple[int, ...], str]
    y: tuple[tuple[int, ...], str]
    classes: int | None
    words: int | None
    names: Naming = UNNAMED
    layout: InputLayout | None = None
    table: TableFacts | None = None
    own: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        """As JSON."""
        facts = {name: getattr(self, name) for name in ("x", "y", "classes", "words")}
        if self.names:
            facts["names"] = self.names.as_dict()
        facts |= {name: part.as_plain() for name in ("layout", "table") if (part := getattr(self, name)) is not None}
        if self.own:
            facts["own"] = sorted(self.own.items())
        return json.dumps(facts, sort_keys=True)

    def join(self, other: Description) -> Description:
        """What holds for the data of both; a `DataError` where they are not of one kind."""
        if str(self) == str(other) and self.table is None:
            return self
        if self.y != other.y or (self.classes is None) != (other.classes is None):
            raise DataError(f"its targets are {_show(other.y)}, those of the others {_show(self.y)}; all must agree")
        table = None if self.table is None and other.table is None else _join_tables(self.table, other.table)
        layout, x = None, self.x
        if self.layout is not None or other.layout is not None:
            parts = [_layout_of(self), _layout_of(other)]
            if table is not None:
                width = len(table.preparation.inputs) + sum(table.gaps)
                parts = [widen_columns(part, width) or part for part in parts]
            layout = join_layouts(parts[0], parts[1], ("the others", "it"))
            x = ((sum(leaf.size for leaf in layout.leaves),), str(layout.dtype).removeprefix("torch."))
        elif table is not None:
            x = ((len(table.preparation.inputs) + sum(table.gaps),), self.x[1])
        elif self.x != other.x:
            raise DataError(f"its inputs are {_show(other.x)}, those of the others {_show(self.x)}; all must agree")
        if bool(self.own) != bool(other.own):
            raise DataError("some clients have labels of their own, others share theirs; give all alike")
        names = self._join_names(other, table)
        classes = len(names.classes) or (None if self.classes is None else max(self.classes, other.classes or 0))
        words = None if self.words is None and other.words is None else max(self.words or 0, other.words or 0)
        words = len(names.words) or words
        return Description(x, self.y, classes, words, names, layout, table, {**self.own, **other.own})

    def _join_names(self, other: Description, table: TableFacts | None) -> Naming:
        mine, its = self.names, other.names
        if bool(mine.classes) != bool(its.classes):
            raise DataError("some clients have labels that are text, others numbers; give all as text or as numbers")
        classes = mine.classes if mine.classes == its.classes else sort_names([*mine.classes, *its.classes])
        if mine.targets != its.targets or bool(mine.words) != bool(its.words):
            raise DataError(
                f"its targets are {_list(its.targets)}, those of the others {_list(mine.targets)}, or only some have"
                " texts as words; all must agree"
            )
        words = FILLERS + tuple(sorted({*mine.words, *its.words} - {*FILLERS})) if mine.words else ()
        if table is not None:
            features = table.preparation.inputs + _say_missing(table.preparation, table.gaps)
        elif mine.features == its.features:
            features = mine.features
        else:
            raise DataError(
                f"its features are {_list(its.features)}, those of the others {_list(mine.features)}; all must agree"
            )
        return Naming(classes, features, words, mine.targets)


def describe(data: Federation, index: int) -> Description:
    """What one client of a federation says of its data; of a federation that has this client alone, too."""
    client, prepared = data.clients[index if len(data) > 1 else 0], data.prepared
    table = None
    if prepared is not None and prepared.sums is not None:
        table = TableFacts(prepared.preparation, tuple(prepared.gaps.tolist()), prepared.sums)
    return Description(
        (tuple(client.x.shape[1:]), str(client.x.dtype).removeprefix("torch.")),
        (tuple(client.y.shape[1:]), str(client.y.dtype).removeprefix("torch.")),
        data.classes,
        data.vocabulary or None,
        replace(data.names, words=data.names.words if data.layout else ()),
        data.layout,
        table,
        {place if len(data) > 1 else index: one.labels for place, one in enumerate(data.clients) if one.labels},
    )


def read_description(text: str) -> Description:
    """Read what a client says about its data; nothing is made of it before it is known to be possible.

    >>> read_description('{"x": [[4], "float32"], "y": [[], "int64"], "classes": 3, "words": null}').classes
    3
    """
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        facts = json.loads(text)
        x, y = (_read_kind(facts[name]) for name in ("x", "y"))
        for number in (facts["classes"], facts["words"]):
            if number is not None and (type(number) is not int or not 0 < number <= MOST_CLASSES):
                raise ValueError("a number of classes or words is impossible")
        layout = read_layout(facts["layout"]) if "layout" in facts else None
        if layout is not None and [sum(leaf.size for leaf in layout.leaves)] != [*x[0]]:
            raise ValueError("the inputs do not fill a row")
        table = _read_table(facts["table"]) if "table" in facts else None
        if table is not None and name_shape(x[0], layout) != (len(table.preparation.inputs) + sum(table.gaps),):
            raise ValueError("the columns do not fill a row")
        named = facts.get("names", {})
        names = Naming(**{kind: tuple(map(_text, named[kind])) for kind in named})
        names.check(facts["classes"], name_shape(x[0], layout))
        if any(len(set(each)) < len(each) for each in (names.classes, names.words)):
            raise ValueError("two classes or words have one name")
        if names.words and (names.words[: len(FILLERS)] != FILLERS or len(names.words) != facts["words"]):
            raise ValueError("the words are not those of a text")
        own = {_size(place): tuple(map(_text, labels)) for place, labels in facts.get("own", ())}
        if own and max(map(len, own.values())) != facts["classes"]:
            raise ValueError("the clients' own labels are not so many")
        return Description(x, y, facts["classes"], facts["words"], names, layout, table, own)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
        raise InputError(f"a client's description of its data cannot be used: {text!r:.200}") from error


def widening(own: Sequence[Column], joined: Sequence[Column]) -> list[int | None]:
    """For each input of `joined` columns the place of the same input of its `own` ones, if it has it."""
    places = {(column.name, name): 0 for column in own for name in column.inputs}
    places = {key: place for place, key in enumerate(places)}
    return [places.get((column.name, name)) for column in joined for name in column.inputs]


def fill_in(rows: np.ndarray, order: Sequence[int | None]) -> np.ndarray:
    """Columns in another order, zeros where there is none.

    >>> fill_in(np.array([[1.0, 2.0]]), [1, None])
    array([[2., 0.]])
    """
    return np.stack([np.zeros(len(rows)) if at is None else rows[:, at] for at in order], 1)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "without names"


def _show(kind: tuple[tuple[int, ...], str]) -> str:
    return f"of shape {list(kind[0])} and type {kind[1]}"


def _layout_of(description: Description) -> InputLayout:
    """The layout; of one array, which sequences of one length are, the one that it would have."""
    return description.layout or InputLayout(Leaf(*description.x))


def _join_tables(mine: TableFacts | None, its: TableFacts | None) -> TableFacts:
    if mine is None or its is None:
        raise DataError("some clients' tables are encoded, filled or scaled, others' are not; give all alike")
    first, other = mine.preparation, its.preparation
    if [_kind(column) for column in first.columns] != [_kind(column) for column in other.columns]:
        names = [", ".join(map(" ".join, map(_kind, part.columns))) for part in (other, first)]
        raise DataError(f"its columns are {names[0]}, those of the others {names[1]}; all must agree, in this order")
    if (first.scale, first.gaps) != (other.scale, other.gaps):
        raise DataError(
            f"it says scale={other.scale} and gaps={other.gaps}, the others {first.scale} and {first.gaps}; all must"
            " agree"
        )
    columns = tuple(
        column if column.values == more.values else replace(column, values=sort_names([*column.values, *more.values]))
        for column, more in zip(first.columns, other.columns, strict=True)
    )
    mine, its = mine.widen(columns), its.widen(columns)
    gaps = tuple(one or two for one, two in zip(mine.gaps, its.gaps, strict=True))
    return TableFacts(mine.preparation, gaps, mine.sums.plus(its.sums))


def _kind(column: Column) -> tuple[str, str]:
    kind = f"({column.size} numbers)" if column.size else "(numbers)" if column.scaled else "(yes or no)"
    return column.name, "(text)" if column.values else kind


def _say_missing(preparation: Preparation, gaps: Sequence[bool]) -> tuple[str, ...]:
    return tuple(f"{name} missing" for name, gap in zip(preparation.inputs, gaps, strict=True) if gap)


def _read_kind(plain: Any) -> tuple[tuple[int, ...], str]:
    shape, dtype = plain
    if not all(type(size) is int and size > 0 for size in shape) or math.prod(shape) > MAX_SAMPLE_SIZE:
        raise ValueError("a sample has an impossible shape")
    if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype), torch.dtype):
        raise ValueError("a sample has an impossible type")
    return tuple(shape), dtype


def _read_table(plain: Mapping[str, Any]) -> TableFacts:
    columns = tuple(
        Column(_text(name), tuple(map(_text, values)), bool(scaled), _size(size))
        for name, values, scaled, size in plain["columns"]
    )
    if plain["scale"] not in SCALES or plain["rule"] not in GAPS or len({c.name for c in columns}) < len(columns):
        raise ValueError("there is no such preparation")
    preparation, gaps = Preparation(columns, plain["scale"], plain["rule"]), tuple(plain["gaps"])
    if len(gaps) != sum(column.size or len(column.values) or 1 for column in columns) or not all(
        type(gap) is bool for gap in gaps
    ):
        raise ValueError("the gaps do not fit the columns")
    sums = ColumnSums(*(np.array(part, float) for part in plain["sums"]))
    wanted = len(gaps) if preparation.needs_all else 0
    if any(part.shape != (wanted,) or not np.isfinite(part).all() or (part < 0).any() for part in sums[::2]):
        raise ValueError("the sums are impossible")
    if sums.total.shape != (wanted,) or not np.isfinite(sums.total).all():
        raise ValueError("the sums do not fit the columns")
    return TableFacts(preparation, gaps, sums)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a size is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no text")
    return value
