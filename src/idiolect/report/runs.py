"""Reading: from folders to a study, that is runs which may stand in one table, with the protocol they share.
Nothing is run, and nothing on disk changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from ..data import Federation
from ..errors import DataError, IdiolectError, RunFolderError
from ..run.api import OWN, load, resolve_data
from ..run.compare import protocol
from ..run.compare_folder import SPEC, Ground, differences, read_spec
from ..run.config import Config, configure, read_config
from ..run.leaderboard import Comparison, rank
from ..run.lineup import resolve_baseline
from ..run.result import SCHEMA_VERSION, Result
from ..store import Store

NEEDED = ("schema", "method", "seed", "rounds", "rounds_done", "metric", "direction", "point", "partition", "data_hash")


class Cost(NamedTuple):
    """What a run had spent after a round."""

    bytes_up: float
    bytes_down: float
    seconds: float


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

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric."""
        path = self.folder / "metrics.parquet"
        try:
            return pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise RunFolderError(
                f"{path} is missing or damaged; write it again with: idiolect resume {self.folder}"
            ) from error

    @cached_property
    def curve(self) -> Curve:
        """The headline's sample-weighted test score over rounds."""
        held = self._headline().with_columns(part=pl.col("value") * pl.col("samples"))
        means = held.group_by("round").agg(value=pl.col("part").sum() / pl.col("samples").sum()).sort("round")
        return Curve(means["round"].to_list(), means["value"].to_list())

    @cached_property
    def scores(self) -> dict[int, float]:
        """The headline's test score of every seen client at the selected round."""
        selected = self.summary[self.summary["metric"]]["selected"]["round"]
        held = self._headline().filter(round=selected).sort("client")
        return dict(zip(held["client"].to_list(), held["value"].to_list(), strict=True))

    def _headline(self) -> pl.DataFrame:
        point, metric = self.summary["point"], self.summary["metric"]
        return self.metrics.filter(cohort="seen", point=point, split="test", metric=metric)

    @cached_property
    def records(self) -> pl.DataFrame:
        """What the method recorded about itself: round, client (-1 is the server), metric, value."""
        return self.metrics.filter(point="state").select("round", "client", "metric", "value")

    @cached_property
    def costs(self) -> dict[int, Cost]:
        """What was spent up to each evaluated round; spread evenly over rounds where the run did not note it."""
        total = Cost(*(float(self.summary[name]) for name in Cost._fields))
        path = self.folder / "state.sqlite"
        found = {}
        store = Store(path, create=False)
        for round in self.curve.rounds:
            noted = store.fact(f"cost {round}")
            share = round / self.summary["rounds"]
            found[round] = Cost(*(share * each for each in total)) if noted is None else Cost(**noted)
        store.close()
        return found


@dataclass(frozen=True)
class Study:
    """Runs of one or several methods under one protocol, by method and seed, methods best first.

    Attributes:
        comparison: the leaderboard, as `idiolect compare` writes it.
        notes: what was left out, and why.
    """

    comparison: Comparison
    runs: Mapping[str, Mapping[int, Run]]
    notes: list[str] = field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """The methods, best first."""
        return [each.method for each in self.comparison.standings]

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
            data = resolve_data(_config(run.config), {})
            if data.fingerprint != run.summary["data_hash"]:
                raise DataError(f"those on this machine are not those of {run.folder}")
        except IdiolectError as error:
            self.notes.append(f"What depends on the clients' data and models is left out: {error}.")
            return None
        return data

    @contextmanager
    def result(self, method: str) -> Iterator[Result | None]:
        """A method's result under the first seed, with its models; None, with a note, where it cannot be opened."""
        found = None
        if self.federation is not None:
            try:
                found = load(self.first(method).folder, data=self.federation)
            except IdiolectError as error:
                self.notes.append(f"What depends on the models of {method} is left out: {error}.")
        try:
            yield found
        finally:
            if found is not None:
                found.store.close()


# -- reading ------------------------------------------------------------------------------------------


def read_study(folders: Sequence[str | Path], baseline: str | None = None) -> Study:
    """The runs of some folders, which may be folders of runs, of comparisons, or folders of such.

    Runs that are not complete are left out with a note, and so are seeds that not every method has. Runs that may not
    stand in one table, since their settings, data or partitions differ, are an error.
    """
    places = [place for folder in folders for place in find_runs(Path(folder))]
    notes: list[str] = []
    runs = []
    for place in dict.fromkeys(places):
        if (found := read_run(place)) is not None:
            runs.append(found)
        else:
            notes.append(f"{place} is left out: the run is not complete. Continue it with: idiolect resume {place}.")
    if not runs:
        raise RunFolderError(f"none of the runs is complete, so there is nothing to report. {notes[0]}")
    check_together(runs)
    by_method: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_method.setdefault(run.method, {})[run.seed] = run
    common = sorted(set.intersection(*(set(held) for held in by_method.values())))
    if not common:
        raise RunFolderError(
            "there is no seed that all methods have, so they cannot be compared: "
            + "; ".join(f"{method} has {_listing(held)}" for method, held in by_method.items())
        )
    for method, held in by_method.items():
        if extra := [seed for seed in held if seed not in common]:
            notes.append(f"{method}: {_listing(extra)} left out, since not every method has it.")
    kept = {method: {seed: held[seed] for seed in common} for method, held in by_method.items()}
    specs = [read_spec(Path(folder) / SPEC) for folder in folders if (Path(folder) / SPEC).is_file()]
    against = baseline or next((each["baseline"] for each in specs if each.get("baseline") in kept), None)
    against = against if against in kept else resolve_baseline(against, list(kept))
    skipped = {name: why for each in specs for name, why in each.get("skipped", {}).items()}
    return Study(standings(kept, against, skipped, folders), kept, notes)


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder, or the folder itself."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give the folders of runs or of comparisons")
    found = sorted(path.parent for path in folder.rglob("config.yaml"))
    if not found:
        raise RunFolderError(f"{folder} holds no runs: there is no config.yaml in it; start one with: idiolect run")
    return found


def read_run(folder: Path) -> Run | None:
    """A run, or None if it is not complete."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    config = read_config(folder / "config.yaml")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if missing := [name for name in NEEDED if name not in summary]:
            raise ValueError(f"it lacks {', '.join(missing)}")
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); write it again with: idiolect resume {folder}") from error
    if summary["schema"] != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} is of version {summary['schema']}, but this is for version {SCHEMA_VERSION}; run it again"
        )
    return Run(folder, config, summary) if summary["rounds_done"] >= summary["rounds"] else None


def check_together(runs: Sequence[Run]) -> None:
    """Refuse runs that do not belong into one table."""
    first, seen = runs[0], dict[tuple[str, int], Run]()
    grounds: dict[int, Run] = {}
    for run in runs:
        if (before := seen.setdefault((run.method, run.seed), run)) is not run:
            raise RunFolderError(
                f"{before.folder} and {run.folder} are both {run.method} with seed {run.seed}; give one of them"
            )
        differ = differences(run.config, _config(first.config), ignore=("method", "seed", "engine"))
        if run.summary["metric"] != first.summary["metric"]:
            differ.append(f"metric: {run.summary['metric']} there, {first.summary['metric']} now")
        same = grounds.setdefault(run.seed, run)
        for what, here, there in (
            ("data", run.summary["data_hash"], same.summary["data_hash"]),
            ("partition", run.summary["partition"]["hash"], same.summary["partition"]["hash"]),
        ):
            differ += [f"{what}: {here} there, {there} now"] if here != there else []
        if differ:
            text = "; ".join(differ).replace(" there,", f" in {run.folder},").replace(" now", f" in {first.folder}")
            raise RunFolderError(f"these runs do not belong into one table ({text}); report them apart")


def standings(
    runs: Mapping[str, Mapping[int, Run]], baseline: str, skipped: Mapping[str, str], folders: Sequence[str | Path]
) -> Comparison:
    """The leaderboard of complete runs."""
    seeds = list(runs[baseline])
    first = runs[baseline][seeds[0]]
    written = _written(folders[0]) if len(folders) == 1 else {}
    model = written.get("model") or first.config.get("model") or "chosen by the data"
    grounds = {}
    for seed in seeds:
        held = runs[baseline][seed].summary
        grounds[seed] = Ground(
            data_hash=held["data_hash"],
            partition_hash=held["partition"]["hash"],
            partition=held["partition"]["name"],
            data=held["data"],
            clients=held["partition"]["clients"],
            model=model,
            budget=runs["fedavg"][seed].summary["steps"] if "fedavg" in runs else written.get("fedavg_steps", 0),
        )
    summaries = {method: {seed: run.summary for seed, run in held.items()} for method, held in runs.items()}
    return Comparison(
        protocol(_config(first.config), seeds, baseline, grounds, first.summary),
        rank(summaries, baseline, {seed: ground.budget for seed, ground in grounds.items()}),
        tuple(
            {"method": run.method, "seed": run.seed, "folder": str(run.folder), "summary": dict(run.summary)}
            for held in runs.values()
            for run in held.values()
        ),
        skipped,
    )


def _written(folder: str | Path) -> dict[str, Any]:
    """The protocol of a comparison that is complete, for what single runs do not know."""
    try:
        found: dict[str, Any] = json.loads((Path(folder) / "comparison.json").read_text(encoding="utf-8"))["protocol"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def _config(values: Mapping[str, Any]) -> Config:
    """The settings of a run but for its method; what was given in Python stays marked."""
    marked = {name: each for name, each in values.items() if each == OWN and name != "method"}
    config = configure({name: each for name, each in values.items() if each != OWN and name != "method"})
    return replace(config, **marked)


def _listing(seeds: Sequence[int] | Mapping[int, Any]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
