"""Clients that come when a run is over: the model that the method gives one that took no part, and its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import Dataset

from ..core.errors import DataError, InputError, RunFolderError
from ..core.files import explain
from ..core.randomness import generator
from ..data import Client, Federation, Pool, Source
from ..data.client import build_client
from ..data.fitting import change_columns
from ..data.naming import number_clients, sort_names
from ..data.several import lay_out
from ..data.sources.base import OwnSource, sources
from ..data.splits import SHARES, check_shares
from ..engines.client_evaluation import Score, evaluate
from .export import Personal, about, find_exported_round, write_weights
from .predictor import make_module
from .result import Result, find_round

if TYPE_CHECKING:
    import polars as pl


NAME = "newcomer"
"""What a new client is called unless it is said."""


@dataclass(frozen=True)
class Newcomer:
    """A client that took no part in a run, with its personal model.

    Attributes:
        name: the client's name.
        personal: its model as it can be exported, with what there is to say about it.
        found: its scores: `personal` as it came, `adapted` after what the method does for such a client.
    """

    name: str
    personal: Personal
    found: Sequence[Score]

    def __repr__(self) -> str:
        return f"Newcomer({self.name!r}, {self.personal.facts['method']})"

    def scores(self, split: str = "test") -> pl.DataFrame:
        """A row per point, `personal` and `adapted`, and a column per metric."""
        import polars as pl  # which takes long to import

        rows = [score for score in self.found if score.split == split]
        points = dict.fromkeys(score.point for score in rows)
        values = [{score.metric: score.value for score in rows if score.point == point} for point in points]
        counts = [next(score.samples for score in rows if score.point == point) for point in points]
        known = zip(points, counts, values, strict=True)
        return pl.DataFrame([{"point": point, "samples": count, **metrics} for point, count, metrics in known])

    def model(self) -> nn.Module:
        """Its model as a module that stands alone, in evaluation mode."""
        plan = self.personal.plan
        ctx = plan.context(self.personal.index, plan.rounds - 1, newcomer=False)
        return make_module(ctx, self.personal.personal)

    def save(self, path: Path | str) -> Path:
        """Write its model as a file that `load_model` opens."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_weights(self.personal, path)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"the model cannot be written to {path}: {explain(error)}") from error
        return path


def onboard(result: Result, client: Client, network: int = 0, round: int | None = None) -> Newcomer:
    """The personal model of a client that took no part in a run, of the selected round unless `round` is -1, the last.
    Nothing of the run is changed."""
    known, index = result.plan, len(result.plan.data)
    if client.name in result.clients():
        raise InputError(f"a client is called {client.name!r} already; give the new one another name")
    if network not in range(len(known.tasks)):
        raise InputError(f"there is no network {network}; there are {len(known.tasks)}, from 0 on")
    client = replace(client, transform=known.data.transform)
    data = replace(known.data, clients=(*known.data.clients, client), unseen=known.data.unseen | {index})
    plan = replace(known, data=data, networks=(*known.networks, network) if known.networks else ())
    grown = Result(plan, result.config, result.store, result.metric, result.point, None)
    kept = find_round(result.store.facts, round)
    at, done, which = find_exported_round(result, last=round is not None and kept is None)
    server = result.store.server(kept)
    message = plan.method.download(plan.server(at), server, (index,)).of(index)
    with torch.random.fork_rng(devices=[]):
        scores = evaluate(plan, index, at, None, message, unseen=True)
    facts = about(plan, result.config.hash, index, at, done, which)
    last = {(s.split, s.metric): (s.split, s.metric, s.value, s.samples) for s in scores if s.split in ("val", "test")}
    return Newcomer(
        client.name, Personal(plan, index, grown.personal_slots(index, round), facts, list(last.values())), scores
    )


def read_clients(data: Federation, name: str, split: Sequence[float] | None, seed: int) -> list[Client]:
    """The new clients that the name of a source, or `file.py:function`, stands for; data without natural groups are one
    client, called newcomer."""
    source: Any = sources.build(name)
    content = source.call() if isinstance(source, OwnSource) else source
    if isinstance(content, str):
        return read_clients(data, content, split, seed)
    if isinstance(content, Source | Pool):
        content = _federation_of(content, split, seed)
    if isinstance(content, Federation):
        return [adopt_client(data, content, client) for client in content.clients]
    if isinstance(content, Mapping):
        return [make_client(data, str(key), given, split, seed) for key, given in content.items()]
    if isinstance(content, list):
        return [make_client(data, f"newcomer-{at}", given, split, seed) for at, given in enumerate(content)]
    return [make_client(data, NAME, content, split, seed)]


def _federation_of(source: Source | Pool, split: Sequence[float] | None, seed: int) -> Federation:
    try:
        pool = source.load() if isinstance(source, Source) else source
    except DataError:
        return source.federation(split=split, seed=seed)  # it comes as clients, or says what is missing
    if pool.groups is not None:
        return pool.federation(split=split, seed=seed)
    alone = pool.federation("iid", clients=1, split=split, seed=seed)
    return replace(alone, clients=(replace(alone.clients[0], name=NAME),))


def make_client(data: Federation, name: str, given: Any, split: Sequence[float] | None, seed: int) -> Client:
    """A client with data of its own: (x, y), a dataset or a mapping of splits, as the clients of a run have them. Text
    labels, several inputs and the columns of a table become what they are in the run."""
    owner, index = f"client {name!r}", len(data)
    shares = check_shares(SHARES if split is None else split)
    pair = given if not isinstance(given, Mapping) else next(iter(given.values()), None)
    if not isinstance(pair, Dataset) and not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise DataError(f"{owner}: a {type(pair).__name__} is no data of a client; give (x, y), a dataset or splits")
    if data.prepared is not None:
        prepared, width = data.prepared, len(data.prepared.preparation.inputs)

        def prepare(x: Any) -> np.ndarray:
            rows = np.asarray(x, dtype=np.float64)
            if rows.ndim != 2 or rows.shape[1] != width:
                raise DataError(
                    f"{owner}: a row of the run's table has {width} numbers"
                    f" ({', '.join(prepared.preparation.inputs)}), but the inputs have the shape {list(rows.shape)}"
                )
            return prepared.apply(rows, name)

        given = _change_inputs(given, lambda x: change_columns(x, prepare, data.layout))
    ((_, given),), names = number_clients([(name, given)], data.names.classes)
    if names and not data.names.classes:
        raise DataError(f"{owner} has labels that are text, but the run's are numbers; give numbers")
    ((_, given),), layout = lay_out([(name, given)], data.layout)
    if layout != data.layout:
        raise DataError(f"{owner} has the inputs {layout}, but the run's clients have {data.layout or 'a single one'}")
    client = build_client(name, given, shares, generator(seed, "split", index), data.classes)
    return check_client(data, client)


def adopt_client(data: Federation, other: Federation, client: Client) -> Client:
    """A client of another federation as one of this, with the same numbers for the same names of classes."""
    wanted, known = data.names.classes, other.names.classes
    if wanted and known and wanted != known:
        if new := [name for name in known if name not in wanted]:
            raise DataError(
                f"{other.name} has the class {new[0]!r}, which the run does not have; its classes are"
                f" {', '.join(sort_names(wanted))}"
            )
        numbers = torch.tensor([wanted.index(name) for name in known])
        client = replace(client, y=numbers[client.y])
    if other.prepared is not None or data.prepared is not None:
        raise DataError(
            "the columns of the run's table were prepared by its own training samples, and those of"
            f" {other.name} would be by theirs; give the rows in Python: result.onboard(x, y)"
        )
    if other.layout != data.layout:
        raise DataError(f"{other.name} has the inputs {other.layout or 'of one kind'}, not {data.layout or 'one'}")
    return check_client(data, client)


def check_client(data: Federation, client: Client) -> Client:
    """The client, or a `DataError` where its samples are not of the kind that the run's are."""
    first, owner = data.clients[0], f"client {client.name!r}"
    if data.own_labels:
        raise DataError(f"{owner} cannot join: each client of the run has its own labels, and so its own network")
    for what, mine, its in (("sample", client.x, first.x), ("target", client.y, first.y)):
        if mine.shape[1:] != its.shape[1:] or mine.dtype != its.dtype:
            raise DataError(
                f"{owner}: a {what} has the shape {list(mine.shape[1:])} and the type {mine.dtype}, but in the run"
                f" {list(its.shape[1:])} and {its.dtype}; bring it to that"
            )
    if not len(client.train):
        raise DataError(f"{owner} has no training samples; give some, of which its model learns")
    if data.classes is not None and int(client.y.max()) >= data.classes:
        raise DataError(
            f"{owner} has the label {int(client.y.max())}, but the run has {data.classes} classes, 0 to"
            f" {data.classes - 1}"
        )
    return client


def _change_inputs(data: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(data, Mapping):
        return {which: _change_inputs(part, change) for which, part in data.items()}
    if isinstance(data, tuple | list) and len(data) == 2:
        return change(data[0]), data[1]
    raise DataError("the run's inputs are columns of a table; give the new client's as (x, y), or a mapping of such")
