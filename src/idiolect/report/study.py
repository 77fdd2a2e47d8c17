"""A study: runs which may stand in one table, with the protocol they share, and what each of them holds. Nothing is
run, and nothing on disk changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from ..comparison.leaderboard import Comparison
from ..core.checksums import checksum
from ..core.errors import DataError, IdiolectError, RunFolderError
from ..core.tables import scale
from ..core.trust import named_by
from ..data import Federation
from ..data.naming import SHOWN, list_names, sort_names
from ..runs.api import load
from ..runs.facts import Cost
from ..runs.folder import STATE
from ..runs.identity import read_identity
from ..runs.result import Result
from ..runs.settings import OWN, Config, read_values
from ..runs.setup import resolve_data
from ..runs.store import Store
from ..runs.summary import SCHEMA


class Curve(NamedTuple):
    """A score over the evaluated rounds."""

    rounds: list[int]
    values: list[float]


@dataclass(frozen=True)
class Run:
    """A run that is complete, as its folder holds it."""

    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The method's expression."""
        return str(self.summary["method"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.summary["seed"])

    @property
    def selected(self) -> int:
        """The selected round."""
        return int(self.summary[self.summary["metric"]]["selected"]["round"])

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric, among them those of the selected round."""
        path = self.folder / "metrics.parquet"
        try:
            if checksum(path.read_bytes()) != self.summary["files"][path.name]:
                raise OSError("its checksum is wrong")
            metrics = pl.read_parquet(path, columns=list(SCHEMA)).match_to_schema(pl.Schema(SCHEMA))
        except (OSError, KeyError, TypeError, pl.exceptions.PolarsError):
            metrics = pl.DataFrame(schema=SCHEMA)
        if metrics.filter(round=self.selected, split="test").is_empty():
            raise RunFolderError(f"{path} is missing or damaged; write it again with: idiolect resume {self.folder}")
        return metrics

    @cached_property
    def curve(self) -> Curve:
        """The headline's test score over rounds, NaN where it is undefined for all clients."""
        value, samples = pl.col("value"), pl.col("samples")
        is_counted = value.is_finite() & (samples > 0)
        weight = samples if self.summary["headline"] == "weighted" else pl.lit(1)
        rows = self._headline().select("round", value=pl.when(is_counted).then(value), weight=weight * is_counted)
        mean = (pl.col("value") * pl.col("weight")).sum() / pl.col("weight").sum()
        means = rows.group_by("round").agg(value=mean).sort("round")
        return Curve(means["round"].to_list(), means["value"].to_list())

    @cached_property
    def scores(self) -> dict[int, float]:
        """The headline's test score of every seen client at the selected round; NaN where it is undefined."""
        rows = self._headline().filter(round=self.selected).sort("client")
        return dict(zip(rows["client"].to_list(), rows["value"].to_list(), strict=True))

    def _headline(self) -> pl.DataFrame:
        point, metric = self.summary["point"], self.summary["metric"]
        return self.metrics.filter(cohort="seen", point=point, split="test", metric=metric)

    @cached_property
    def records(self) -> pl.DataFrame:
        """What the method recorded about itself: round, client (-1 is the server), metric, value."""
        return self.metrics.filter(point="state").select("round", "client", "metric", "value")

    @cached_property
    def costs(self) -> dict[int, Cost]:
        """What was spent up to each evaluated round; spread evenly over rounds where it is not noted, or the notes are
        gone with the run's state."""
        total = Cost(*(float(self.summary[name]) for name in Cost._fields))
        path = self.folder / "state.sqlite"
        costs = {}
        store = Store(path, write=False) if path.is_file() else Store(None)
        for round in self.curve.rounds:
            known = store.cost(round)
            share = round / self.summary["rounds"]
            costs[round] = Cost(*(share * amount for amount in total)) if known is None else known
        store.close()
        return costs


@dataclass(frozen=True)
class Study:
    """Runs of one or several methods under one protocol, by method and seed, methods best first.

    Attributes:
        comparison: the leaderboard, as `idiolect compare` writes it.
        notes: what was left out, and why.
        is_trusted: whether code that the folders name may run, though no run on this machine has used it.
    """

    comparison: Comparison
    runs: Mapping[str, Mapping[int, Run]]
    notes: list[str] = field(default_factory=list)
    is_trusted: bool = False

    @property
    def methods(self) -> list[str]:
        """The methods, best first."""
        return [row.method for row in self.comparison.rows]

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return list(self.comparison.protocol["seeds"])

    @property
    def metric(self) -> str:
        """The headline's metric."""
        return str(self.comparison.protocol["metric"])

    @property
    def higher(self) -> bool:
        """Whether higher scores are better."""
        return bool(self.comparison.protocol["direction"] == "higher")

    @property
    def scale(self) -> float:
        """By what scores are multiplied to be drawn: accuracies are drawn in percent."""
        return scale(self.metric)

    @property
    def baseline(self) -> str:
        """The method that the others are tested against."""
        return str(self.comparison.protocol["baseline"])

    def first(self, method: str) -> Run:
        """A method's run under the first seed."""
        return self.runs[method][self.seeds[0]]

    @cached_property
    def federation(self) -> Federation | None:
        """The data of the first seed; None, with a note, where they cannot be had."""
        run = self.first(self.methods[0])
        try:
            if run.config["data"] == OWN:
                raise DataError("they were given in Python")
            with named_by(run.folder, self.is_trusted):
                data = resolve_data(settings_of(run.config), {})
            if data.fingerprint != run.summary["data_hash"]:
                raise DataError(f"those on this machine are not those of {run.folder}")
        except IdiolectError as error:
            self.notes.append(f"What depends on the clients' data and models is left out: {error}.")
            return None
        return data

    def name_client(self, position: int) -> str:
        """A client's name, as the run of the first seed recorded it; its position where there is no record."""
        return self._names[position] if position < len(self._names) else f"position {position}"

    @property
    def class_names(self) -> list[str]:
        """What the data call their classes; empty where these have numbers only."""
        summary = self.first(self.methods[0]).summary
        own = sort_names(name for names in summary.get("labels", {}).values() for name in names)
        return [str(name) for name in summary.get("names", {}).get("classes", own)]

    @property
    def names(self) -> list[str]:
        """What the data call classes, inputs and targets, in sentences."""
        summary = self.first(self.methods[0]).summary
        known = summary.get("names", {})
        titles = {"features": "Inputs", "targets": "Targets"}
        classes = [f"Classes: {list_names(self.class_names)}."] if self.class_names else []
        own = ["Each client has its own classes and numbers them by itself."] if "labels" in summary else []
        more = [f"{title}: {', '.join(known[kind][:SHOWN])}." for kind, title in titles.items() if known.get(kind)]
        return classes + own + more

    @cached_property
    def _names(self) -> list[str]:
        return [str(name) for name in read_identity(self.first(self.methods[0]).folder / STATE).get("clients", ())]

    @contextmanager
    def result(self, method: str) -> Iterator[Result | None]:
        """A method's result under the first seed, with its models; None, with a note, where it cannot be opened."""
        result = None
        if self.federation is not None:
            try:
                result = load(self.first(method).folder, trust=self.is_trusted, data=self.federation)
            except IdiolectError as error:
                self.notes.append(f"What depends on the models of {method} is left out: {error}.")
        try:
            yield result
        finally:
            if result is not None:
                result.store.close()


def settings_of(values: Mapping[str, Any]) -> Config:
    """The settings of a run but for its method; what was given in Python stays marked. Nothing of what they name is
    built."""
    marked = {name: value for name, value in values.items() if value == OWN and name != "method"}
    config = read_values({name: value for name, value in values.items() if value != OWN and name != "method"})
    return replace(config, **marked)
