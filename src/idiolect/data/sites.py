"""Clients that each read their own data, as in a deployment: one of them by itself, or all, by the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.layout import InputLayout
from ..core.randomness import generator
from . import arrays
from .client import Client
from .description import Description, describe, fill_in, widening
from .federation import GIVEN, Federation
from .fitting import prepare_rows, widen_columns
from .lists import renumber, trained_words
from .naming import number_clients, number_labels
from .partitions.base import content_hash
from .preparing import ColumnSums, Prepared, column_sums
from .samples import Inputs
from .sources.base import Pool, Source, sources
from .splits import SPLITS, Unseen, check_seed, check_shares, cut, hold_out
from .tables import is_table, table


def load_site(
    content: Any,
    name: str,
    position: int = 0,
    *,
    known: Description | None = None,
    split: Sequence[float],
    seed: int,
    classes: int | None = None,
    public: Any = None,
    trains: bool = True,
) -> Federation:
    """A federation of one client, whose data are all that `content` has.

    Args:
        content: (x, y), a data set or a mapping of splits; or a table, a `Path` to one, a `Pool`, or a source by name.
        name: the client's name.
        position: its number among all clients, by which its splits are drawn.
        known: what the descriptions of all clients make, by which its classes, sequences and columns are brought to
            one form; without it they are its own.
        split, seed, public: as for `Federation.from_clients`.
        classes: how many classes all clients have together, where labels have no names.
        trains: whether it takes part in training, so that its sums count.
    """
    content = sources.build(content) if isinstance(content, str) else content
    content = content.load() if isinstance(content, Source) else content
    content = table(content) if is_table(content) else content
    own_labels = isinstance(content, Federation) and bool(content.own_labels)
    content = take_apart(content, name) if isinstance(content, Federation) else content
    if isinstance(content, Pool):
        federation = _load_pool(content, name, position, known, split, seed, classes, public, trains)
    else:
        names = known.names.classes if known else ()
        if isinstance(content, tuple | list | Mapping) and number_clients([(name, content)])[1]:
            classes = None  # labels that are text say how many there are
        federation = Federation.from_clients(
            {name: content},
            split=split,
            seed=seed,
            classes=None if own_labels else known.classes if known and not names else classes,
            public=public,
            class_names=names or None,
            first=position,
            layout=known.layout if known else None,
            own_labels=own_labels,
        )
    return federation if known is None else replace(federation, words=known.words, classes=known.classes)


def take_apart(federation: Federation, owner: str) -> Any:
    """What a federation of one client was made of, in its splits, so that it can be brought to the form of others."""
    if len(federation) != 1 or federation.prepared or federation.names.words:
        raise DataError(
            f"client {owner!r} gives a federation of {len(federation)} clients"
            f"{', of a table' if len(federation) == 1 else ''}; give the data of one client as they are, a table as"
            " idiolect.data.table(...)"
        )
    client, classes = federation.clients[0], federation.names.classes

    def restore(split: str) -> tuple[Any, Any]:
        x, y = client.split(split)
        names = np.array(client.labels or classes, object)
        return federation.layout.unpack(x) if federation.layout else x, names[y.numpy()].tolist() if len(names) else y

    return {split: restore(split) for split in SPLITS if len(getattr(client, split))}


def join_sites(
    contents: Mapping[str, Any],
    *,
    split: Sequence[float],
    seed: int,
    unseen: Unseen = 0.0,
    public: Any = None,
    name: str = "custom",
) -> Federation:
    """A federation of clients each of which gives all that `load_site` takes, brought to one form."""
    silent = hold_out([str(key) for key in contents], unseen, seed)
    items = list(contents.items())

    def read(known: Description | None) -> list[Federation]:
        return [
            load_site(content, str(key), at, known=known, split=split, seed=seed, trains=at not in silent)
            for at, (key, content) in enumerate(items)
        ]

    known: Description | None = None
    for at, ((key, _), site) in enumerate(zip(items, read(None), strict=True)):
        try:
            told = describe(site, at)
            known = told if known is None else known.join(told)
        except DataError as error:
            raise DataError(f"client {str(key)!r}: {error}") from error
    sites = read(known)
    clients = [site.clients[0] for site in sites]
    ends = np.cumsum([0, *(len(client.x) for client in clients)])
    ranges = [np.arange(start, end) for start, end in pairwise(ends)]
    first = sites[0]
    federation = Federation.check_and_build(
        clients, name, first.classes, GIVEN, content_hash(ranges), public, unseen, seed, first.words, first.names,
        first.layout,
    )  # fmt: skip
    prepared = first.prepared
    if prepared is not None:
        scalings = {key: value for site in sites if site.prepared for key, value in site.prepared.scalings.items()}
        prepared = replace(prepared, scalings=scalings, sums=None)
    return replace(federation, prepared=prepared)


def is_site_table(content: Any) -> bool:
    """Whether one client's content is a table or a pool, which `load_site` alone reads."""
    return isinstance(content, Pool | Source | Federation | str | Path) or is_table(content)


def _load_pool(
    pool: Pool,
    name: str,
    position: int,
    known: Description | None,
    split: Sequence[float],
    seed: int,
    classes: int | None,
    public: Any,
    trains: bool,
) -> Federation:
    """A client of all samples of a pool."""
    owner, rng = f"client {name!r}", generator(check_seed(seed), "split", position)
    shares, index = check_shares(split), np.arange(len(pool.x))
    parts = cut(len(index), shares, rng) if pool.cutting is None else pool.cutting.cut(index, shares, rng)
    y, names, own = pool.y, pool.names, pool.names.classes if pool.own_labels else ()
    if own:
        names = replace(names, classes=())
    elif known is not None and names.classes:
        texts = np.array(names.classes, object)[y.numpy()]
        y, names = torch.from_numpy(number_labels(texts, known.names.classes, owner)), known.names
    site = _fit(pool, name, parts["train"], known, trains)
    names = replace(names, features=site.features or names.features, words=site.words)
    if public is not None:
        public = arrays.pair(public, "the public data")
    train, val, test = (torch.from_numpy(parts[which]) for which in SPLITS)
    client = Client(name, site.x, y, train, val, test, labels=own)
    number = known.classes if known else pool.classes if pool.names.classes else classes or pool.classes
    words = len(site.words) or pool.words
    federation = Federation.check_and_build(
        [client], pool.name, number, GIVEN, content_hash([index]), public, 0.0, seed, words, names, site.layout
    )
    return replace(federation, prepared=site.prepared)


class Site(NamedTuple):
    """A client's inputs in the form of all clients, once that is known."""

    x: Inputs
    layout: InputLayout | None
    words: tuple[str, ...] = ()
    prepared: Prepared | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of columns that were prepared."""
        return self.prepared.inputs if self.prepared else ()


def _fit(pool: Pool, name: str, train: np.ndarray, known: Description | None, trains: bool) -> Site:
    """A client's columns, words and sequences, brought to what all clients have."""
    x, layout, prepared = pool.x, pool.layout, None
    words: tuple[str, ...] = ()
    if pool.preparation is not None:
        x, prepared = _prepare(pool, name, train, known, trains)
        layout = widen_columns(layout, len(prepared.inputs))
    if pool.lexicon:
        assert isinstance(x, Tensor)
        assert layout is not None
        told = trained_words(x, layout, pool.lexicon, torch.from_numpy(train if trains else train[:0]))
        words = known.names.words if known is not None else told
        x = renumber(x, layout, pool.lexicon, words)
    if isinstance(x, Tensor) and layout is not None and known is not None and known.layout not in (None, layout):
        assert known.layout is not None
        x, layout = known.layout.pack(layout.unpack(x), f"client {name!r}"), known.layout
    return Site(x, layout, words, prepared)


def _prepare(
    pool: Pool, name: str, train: np.ndarray, known: Description | None, trains: bool
) -> tuple[Tensor, Prepared]:
    """A client's inputs, brought to the columns of all, and filled and scaled by the sums of all."""
    assert pool.preparation is not None
    assert isinstance(pool.x, Tensor)
    preparation, agreed = pool.preparation, known.table if known else None
    rows, beside = np.split(pool.x.double().numpy(), [len(preparation.inputs)], 1)
    if agreed is not None:
        rows = fill_in(rows, widening(preparation.columns, agreed.preparation.columns))
        preparation = agreed.preparation
    own, gaps = column_sums(rows[train]), np.isnan(rows).any(0)
    told = own if trains else ColumnSums(*map(np.zeros_like, own))
    told = told if preparation.needs_all else ColumnSums(*(np.zeros(0) for _ in own))
    if agreed is None:  # what all have is not known yet
        filler = ColumnSums(np.maximum(own.known, 1), own.total, own.squares)
        prepared = preparation.finish({name: own}, filler, gaps)
    else:
        told = agreed.sums
        prepared = preparation.finish({name: own}, told if len(told.known) else own, np.array(agreed.gaps))
    prepared = replace(prepared, sums=told)
    return prepare_rows(prepared, np.concatenate([rows, beside], 1), name), prepared
