"""What training samples decide of the inputs of a table's clients: means and deviations of columns, and the words that
have a number. Columns beside sequences are the first numbers of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.layout import InputLayout
from .lists import renumber, trained_words
from .preparing import Preparation, Prepared

COLUMNS = "columns"
"""What all columns that are no sequences are called, where they are one input among several."""


class Fitted(NamedTuple):
    """Inputs as networks get them, their layout, the words, and what was done to columns."""

    x: Tensor
    public: Any
    layout: InputLayout | None
    words: tuple[str, ...]
    prepared: Prepared | None


@dataclass(frozen=True)
class Raw:
    """Inputs of which training samples decide something: columns that wait for a preparation, words that wait for
    numbers."""

    x: Tensor
    layout: InputLayout | None
    preparation: Preparation | None
    lexicon: tuple[str, ...]

    def fit(
        self, titles: Sequence[str], splits: Sequence[Sequence[Tensor]], never_train: frozenset[int], public: Any
    ) -> Fitted:
        """The inputs of a pool's clients, and those of public samples that come from the same pool."""
        x, layout, prepared = self.x, self.layout, None
        shown = public[0] if isinstance(public, tuple) else None
        seen = [place for place in range(len(titles)) if place not in never_train]
        if self.preparation is not None:
            rows = x.double().numpy()
            trains = {title: cuts[0].numpy() for title, cuts in zip(titles, splits, strict=True)}
            width = len(self.preparation.inputs)
            prepared = self.preparation.fit(rows[:, :width], trains, [titles[place] for place in seen])
            x = torch.zeros(len(rows), rows.shape[1] + int(prepared.gaps.sum()))
            for title, cuts in zip(titles, splits, strict=True):
                index = torch.cat([*cuts])
                x[index] = prepare_rows(prepared, rows[index.numpy()], title)
            shown = None if shown is None else prepare_rows(prepared, torch.as_tensor(shown).double().numpy())
            layout = widen_columns(layout, len(prepared.inputs))
        words: tuple[str, ...] = ()
        if self.lexicon:
            assert layout is not None
            words = trained_words(x, layout, self.lexicon, torch.cat([splits[place][0] for place in seen]))
            x = renumber(x, layout, self.lexicon, words)
            shown = None if shown is None else renumber(torch.as_tensor(shown), layout, self.lexicon, words)
        return Fitted(x, public if shown is None else (shown, public[1]), layout, words, prepared)


def prepare_rows(prepared: Prepared, rows: np.ndarray, client: str = "") -> Tensor:
    """Rows with their columns prepared; what follows these stays."""
    width = len(prepared.preparation.inputs)
    columns = prepared.apply(rows[:, :width], client)
    return torch.from_numpy(np.concatenate([columns, rows[:, width:].astype(np.float32)], 1))


def widen_columns(layout: InputLayout | None, inputs: int) -> InputLayout | None:
    """The layout with so many columns; of columns alone there is none."""
    if layout is None:
        return None
    structure = dict(layout.structure)
    return InputLayout({**structure, COLUMNS: replace(structure[COLUMNS], shape=(inputs,))})


def name_shape(shape: Iterable[int], layout: InputLayout | None) -> tuple[int, ...]:
    """The shape of what names of features are of: a sample or, among several inputs, its columns."""
    if layout is None or not isinstance(layout.structure, dict) or COLUMNS not in layout.structure:
        return tuple(shape)
    columns = layout.structure[COLUMNS]
    return () if isinstance(columns, dict | tuple) else columns.shape


def change_columns(x: Any, change: Callable[[Any], Any], layout: InputLayout | None) -> Any:
    """A client's inputs with their columns changed."""
    if layout is None:
        return change(x)
    if not isinstance(x, Mapping) or COLUMNS not in x:
        raise DataError(f"the inputs are {layout}; give a mapping with these names, the columns as the table has them")
    return {**x, COLUMNS: change(x[COLUMNS])}
