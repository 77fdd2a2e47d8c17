"""One way in: a name, a source, a pool, arrays, a dataset or the user's own clients -> a federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from ..core.code import shorten_code
from ..core.errors import DataError
from . import arrays
from .federation import Federation
from .naming import Naming, number_clients
from .partitions.base import Partition
from .sources.base import OwnSource, Pool, Source, sources
from .splits import SHARES


def load(
    data: Any,
    *,
    partition: str | Partition | None = None,
    clients: int | None = None,
    split: Sequence[float] | None = None,
    seed: int = 0,
    unseen: float = 0.0,
    public: Any = None,
) -> Federation:
    """A federation from whatever describes one.

    Args:
        data: an expression such as `digits` or `mnist(samples=5000)`, a `Source`, a `Pool`, a tuple (x, y) or a
            dataset to be partitioned; or a list or mapping of clients, or a `Federation`, which are taken as they are;
            or a function that returns one of these, named as `file.py:function` or `package.module:function`.
        partition: an expression such as `dirichlet:0.1`, or a `Partition`; by default the data's natural groups, else
            `dirichlet` for labels and `iid` for numbers.
        clients: number of clients; by default as many as there are groups, else 20.
        split: shares of training, validation and test; by default 60/20/20.
        seed: determines partition, splits and held-out clients; a `Federation` has its own.
        unseen: share of clients that never train.
        public: samples that everybody may see: an expression, a `Source`, a `Pool`, a tuple (x, y), a dataset; or a
            number, the share of a pool's samples that is taken out for it.

    >>> load("digits", partition="pathological:2", clients=5)
    Federation('digits', 5 clients, 10 classes, pathological(classes_per_client=2))
    """
    shown = _public(public)
    if isinstance(data, Federation):
        if unseen or any(argument is not None for argument in (partition, clients, split, public)):
            raise DataError("a federation is already dealt and split; leave out partition, clients, split and the like")
        return data
    source, name = sources.build(data) if isinstance(data, str) else data, ""
    if isinstance(source, OwnSource):
        source, name = source.call(), shorten_code(source.name)
        if isinstance(source, str | Federation):
            return load(
                source, partition=partition, clients=clients, split=split, seed=seed, unseen=unseen, public=public
            )
    if isinstance(source, Dataset) or (isinstance(source, tuple) and len(source) == 2):
        source = _pool(source, name or "pool")
    if isinstance(source, Source | Pool):
        return source.federation(partition, clients=clients, split=split, seed=seed, unseen=unseen, public=shown)
    if not isinstance(source, Mapping | Iterable):
        raise DataError(
            f"{f'{name}: ' if name else ''}a {type(source).__name__} is no data; give the name of a source"
            f" ({', '.join(sources)}), a tuple (x, y), a PyTorch dataset, or a list or mapping of clients"
        )
    federation = Federation.from_clients(
        source,
        split=SHARES if split is None else split,
        seed=seed,
        name=name or "custom",
        unseen=unseen,
        public=shown,
    )
    if partition is not None or clients not in (None, len(federation)):
        raise DataError(
            f"these are {len(federation)} clients that come with their own data, which cannot be dealt anew; leave out"
            " partition and clients"
        )
    return federation


def _pool(data: Any, name: str) -> Pool:
    ((_, data),), classes = number_clients([(name, data)])
    x, y = arrays.pair(data, "the pool", len(classes) or None)
    return Pool(x, y, None, len(classes) or arrays.classes_of(y, "the pool"), name, names=Naming(classes))


def _public(public: Any) -> Any:
    if isinstance(public, str):
        try:
            return float(public)
        except ValueError:
            public = sources.build(public)
    content = public.load() if isinstance(public, Source) else public
    return (content.x, content.y) if isinstance(content, Pool) else content
