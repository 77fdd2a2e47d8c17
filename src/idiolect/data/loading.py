"""One way in: a name, a source, a pool, arrays, a dataset or the user's own clients -> a federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from ..core.code import shorten_code
from ..core.errors import DataError
from ..core.options import options_of
from . import arrays
from .columns import Columns
from .federation import Federation
from .formats.frames import ENDINGS
from .kinds import CHOICES, Kinds, read_kinds, require_known
from .naming import Naming, number_clients, number_names
from .partitions.base import Partition
from .several import lay_out
from .sites import is_site_table, join_sites
from .sources.base import OwnSource, Pool, Source, sources
from .sources.huggingface import HuggingFace
from .splits import SHARES, Unseen
from .tables import is_table, table

UNNAMED_DATA = ("custom", "pool", "table")
"""What data are called that nobody named."""
ARGUMENTS = ("partition", "clients", "split", "seed", "unseen", "public")
"""What may be said of any data."""
COLUMNS = tuple(dict.fromkeys((*options_of(Columns), *CHOICES, *options_of(HuggingFace))))
"""What may be said of the columns of a table, or of arrays."""


def load(
    data: Any,
    *,
    partition: str | Partition | None = None,
    clients: int | None = None,
    split: Sequence[float] | None = None,
    seed: int = 0,
    unseen: Unseen = 0.0,
    public: Any = None,
    **columns: Any,
) -> Federation:
    """A federation from whatever describes one.

    Args:
        data: an expression such as `digits` or `mnist(samples=5000)`, a `Source`, a `Pool`, a tuple (x, y) or a
            dataset to be partitioned; or a list or mapping of clients, or a `Federation`, which are taken as they are;
            or a table (a frame of pandas or Polars, a data set of Hugging Face, a `Path` to a file or folder, a mapping
            of tables); or a function that returns one of these, as `file.py:function` or `package.module:function`.
        partition: an expression such as `dirichlet:0.1`, or a `Partition`; by default the data's natural groups, else
            `dirichlet` for labels and `iid` for numbers.
        clients: number of clients; by default as many as there are groups, else 20.
        split: shares of training, validation and test; by default 60/20/20.
        seed: determines partition, splits and held-out clients; a `Federation` has its own.
        unseen: share of clients that never train, or their names.
        public: samples that everybody may see: an expression, a `Source`, a `Pool`, a tuple (x, y), a dataset; or a
            number, the share of a pool's samples that is taken out for it.
        columns: of a table what its columns are, see `table`; of arrays `predict`, which says that targets are
            `numbers` or `classes`, `inputs`, which says that whole numbers are `tokens` or measurements, `numbers`,
            and of clients with arrays `labels`, which says that each has its `own`.

    >>> load("digits", partition="pathological:2", clients=5)
    Federation('digits', 5 clients, 10 classes, pathological(classes_per_client=2))
    """
    shown = _public(public)
    require_known(columns, COLUMNS, "tables and arrays", near=(*ARGUMENTS, *COLUMNS))
    if isinstance(data, Federation | Source | Pool | str) and columns:
        raise DataError(
            f"{next(iter(columns))} cannot be given beside"
            f" {'the name of a source' if isinstance(data, str) else 'a ' + type(data).__name__};"
            " give it where that is"
            f" made{', in brackets: csv(visits.csv, target=died)' if isinstance(data, str) else ''}"
        )
    if isinstance(data, Federation):
        if unseen or any(argument is not None for argument in (partition, clients, split, public)):
            raise DataError("a federation is already dealt and split; leave out partition, clients, split and the like")
        return data
    if isinstance(data, str) and Path(data).suffix in (*ENDINGS, ".npz") and Path(data).exists():
        kind = Path(data).suffix.replace("tsv", "csv").removeprefix(".")
        raise DataError(f"{data!r} is a file: write {kind}:{data}, with options in brackets, or give Path({data!r})")
    if isinstance(data, str) and Path(data).is_file() and Path(data).suffix not in ("", ".py"):
        raise DataError(
            f"{data!r} is a file that no source reads: save it as CSV or Parquet, or return its content from a"
            " function, as in my_data.py:function"
        )
    source, name = sources.build(data) if isinstance(data, str) else data, ""
    if isinstance(source, OwnSource):
        name = shorten_code(source.name)
        source = _call_by_client(source, clients) if source.by_client else source.call()
        if isinstance(source, str | Federation):
            found = load(
                source, partition=partition, clients=clients, split=split, seed=seed, unseen=unseen, public=public
            )
            return replace(found, name=name) if found.name in UNNAMED_DATA and isinstance(source, Federation) else found
    if is_table(source):
        source = table(source, **columns)
    elif isinstance(source, Dataset) or (isinstance(source, tuple) and len(source) == 2):
        source = _pool(source, name or "pool", read_kinds(columns))
    if (
        columns.get("labels") == "own"
        and isinstance(source, Source | Pool)
        and not getattr(source, "own_labels", False)
    ):
        raise DataError("labels=own is for tables and for clients that come with arrays of their own; leave it out")
    if isinstance(source, Pool) and name:
        source = replace(source, name=name)
    if isinstance(source, Source | Pool):
        federation = source.federation(partition, clients=clients, split=split, seed=seed, unseen=unseen, public=shown)
        if isinstance(data, tuple | Dataset):
            read_kinds(columns).say(federation)
        return federation
    if not isinstance(source, Mapping | Iterable):
        raise DataError(
            f"{f'{name}: ' if name else ''}a {type(source).__name__} is no data; give the name of a source"
            f" ({', '.join(sources)}), a tuple (x, y), a PyTorch dataset, or a list or mapping of clients"
        )
    kinds = read_kinds(columns)
    if isinstance(source, Mapping) and any(map(is_site_table, source.values())):
        if kinds != Kinds():
            raise DataError(f"{next(iter(columns))} is said where each client's table is made, as in table(frame, ...)")
        shares = SHARES if split is None else split
        source = join_sites(source, split=shares, seed=seed, unseen=unseen, public=shown, name=name or "custom")
        _refuse_dealing(source, partition, clients)
        return source
    federation = Federation.from_clients(
        kinds.clients(source),
        split=SHARES if split is None else split,
        seed=seed,
        name=name or "custom",
        unseen=unseen,
        public=shown,
        own_labels=kinds.labels == "own",
    )
    kinds.say(federation)
    _refuse_dealing(federation, partition, clients)
    return federation


def _refuse_dealing(data: Federation, partition: Any, clients: int | None) -> None:
    if partition is not None or clients not in (None, len(data)):
        raise DataError(
            f"these are {len(data)} clients that come with their own data, which cannot be dealt anew; leave out"
            " partition and clients"
        )


def _call_by_client(source: OwnSource, clients: int | None) -> dict[str, Any]:
    """What a function gives for each client's number."""
    if clients is None:
        raise DataError(f"{source.name} gives the data of one client; say how many clients there are, as in clients=3")
    return {name: source.call(client=number) for number, name in enumerate(number_names(clients))}


def _pool(data: Any, name: str, kinds: Kinds) -> Pool:
    ((_, data),), classes = number_clients([(name, kinds.change(data, "the pool"))])
    ((_, data),), layout = lay_out([("the pool", data)])
    x, y = arrays.pair(data, "the pool", len(classes) or None)
    number = len(classes) or arrays.classes_of(y, "the pool")
    return Pool(x, y, None, number, name, names=Naming(classes), layout=layout)


def _public(public: Any) -> Any:
    if isinstance(public, str):
        try:
            return float(public)
        except ValueError:
            public = sources.build(public)
    content = public.load() if isinstance(public, Source) else public
    return (content.x, content.y) if isinstance(content, Pool) else content
