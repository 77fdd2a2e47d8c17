"""Clients that each read their own data, as in a deployment: one of them by itself, or all, by the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import DataError
from ..core.randomness import generator
from . import arrays
from .client import Client
from .description import Description, describe, fill_in, widening
from .federation import GIVEN, Federation
from .naming import number_clients, number_labels
from .partitions.base import content_hash
from .preparing import ColumnSums, Prepared, column_sums
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
    if isinstance(content, Federation):
        raise DataError(f"client {name!r} gives a federation of {len(content)} clients; give the data of one client")
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
            classes=known.classes if known and not names else classes,
            public=public,
            class_names=names or None,
            first=position,
            layout=known.layout if known else None,
        )
    return federation if known is None else replace(federation, words=known.words)


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
    for (key, _), site in zip(items, read(None), strict=True):
        try:
            known = describe(site, 0) if known is None else known.join(describe(site, 0))
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
    return isinstance(content, Pool | Source | str | Path) or is_table(content)


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
    if pool.lexicon:
        raise DataError(
            f"client {name!r}: encode=words numbers the words of all clients' training samples, which no client has;"
            " number them yourself, by one list for all"
        )
    owner, rng = f"client {name!r}", generator(check_seed(seed), "split", position)
    shares, index = check_shares(split), np.arange(len(pool.x))
    parts = cut(len(index), shares, rng) if pool.cutting is None else pool.cutting.cut(index, shares, rng)
    y, names, x, prepared = pool.y, pool.names, pool.x, None
    if known is not None and names.classes:
        texts = np.array(names.classes, object)[y.numpy()]
        y, names = torch.from_numpy(number_labels(texts, known.names.classes, owner)), known.names
    if pool.preparation is not None:
        x, prepared = _prepare(pool, name, parts["train"], known, trains)
        names = replace(names, features=prepared.inputs)
    if public is not None:
        public = arrays.pair(public, "the public data")
    train, val, test = (torch.from_numpy(parts[which]) for which in SPLITS)
    client = Client(name, x, y, train, val, test)
    number = known.classes if known else pool.classes if pool.names.classes else classes or pool.classes
    federation = Federation.check_and_build(
        [client], pool.name, number, GIVEN, content_hash([index]), public, 0.0, seed, pool.words, names, pool.layout
    )
    return replace(federation, prepared=prepared)


def _prepare(
    pool: Pool, name: str, train: np.ndarray, known: Description | None, trains: bool
) -> tuple[torch.Tensor, Prepared]:
    """A client's inputs, brought to the columns of all, and filled and scaled by the sums of all."""
    assert pool.preparation is not None
    assert isinstance(pool.x, torch.Tensor)
    preparation, rows, agreed = pool.preparation, pool.x.double().numpy(), known.table if known else None
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
    return torch.from_numpy(prepared.apply(rows, name)), prepared
