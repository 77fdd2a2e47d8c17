"""Runs while they go on: read from their stores beside the writer, which waits for nobody, and never written to."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..comparison.folder import SPEC, read_spec
from ..core.errors import IdiolectError, InputError, RunFolderError
from ..core.files import is_part
from ..core.names import slug, visible
from ..runs.folder import CONFIG, STATE
from ..runs.identity import read_identity
from ..runs.settings import OWN, Config, read_config
from ..task.metrics import name_metrics

Curve = Mapping[int, float]
"""A value by round, counted from 1."""
_NEW = """SELECT round, point, split, metric, SUM(value * samples) / SUM(samples) FROM metrics
    WHERE rowid > ? AND rowid <= ? AND cohort = 'seen' AND split IN ('train', 'val')
    AND value BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308 AND samples > 0
    GROUP BY round, point, split, metric"""

_FACTS = "SELECT key, value FROM facts WHERE key IN ('next_round', 'seconds', 'refusals')"
_TRAINED = "SELECT COUNT(DISTINCT client) FROM metrics WHERE round = ? AND cohort = 'seen' AND point = 'train'"
_CLIENTS = """SELECT client, value FROM (SELECT client, value, round, MAX(round * 2 + (point = 'adapted')) FROM metrics
    WHERE cohort = 'seen' AND split = 'val' AND metric = ? AND point IN ('personal', 'adapted') GROUP BY client)"""


@dataclass
class Watched:
    """One run, as far as it has come when it was last looked at."""

    method: str
    folder: Path
    rounds: int
    metrics: str | None = None
    seed: Any = 0
    done: int = 0
    seconds: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)
    _seen: int = 0
    _curves: dict[tuple[str, str, str], dict[int, float]] = field(default_factory=dict)

    def look(self) -> None:
        """Read what has been added since the last look; a run that has not begun has nothing."""
        path = self.folder / STATE
        if not path.is_file():
            return
        try:
            with closing(self._open()) as db:
                db.execute("BEGIN")
                facts = dict(db.execute(_FACTS))
                newest = db.execute("SELECT MAX(rowid) FROM metrics").fetchone()[0] or 0
                rows = db.execute(_NEW, (self._seen, newest)).fetchall()
        except sqlite3.Error as error:
            if self._seen == 0 and "locked" not in str(error) and "busy" not in str(error):
                raise RunFolderError(f"the store {path} cannot be read: {error}") from error
            return  # the writer was in the way: the next look sees it
        self.done = max(0, json.loads(facts.get("next_round", "0")))
        self.seconds = json.loads(facts.get("seconds", "0"))
        self.refusals = json.loads(facts.get("refusals", "{}"))
        self._seen = newest
        for round, *where, value in rows:
            self._curves.setdefault((where[0], where[1], where[2]), {})[round + 1] = value

    def _open(self) -> sqlite3.Connection:
        """The store, for reading. Without a log there is no writer, and an immutable file is read without leaving
        anything beside it."""
        path = self.folder / STATE
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
        return sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=2.0)

    def look_at_clients(self, metric: str) -> tuple[dict[int, float], int]:
        """The newest validation score of every client, and how many trained in the newest round; nothing while the
        writer is in the way."""
        if not (self.folder / STATE).is_file():
            return {}, 0
        try:
            with closing(self._open()) as db:
                trained = db.execute(_TRAINED, (self.done - 1,)).fetchone()[0]
                scores = db.execute(_CLIENTS, (metric,)).fetchall()
        except sqlite3.Error:
            return {}, 0
        return {client: math.nan if value is None else value for client, value, *_ in scores}, trained

    @property
    def clients(self) -> list[str]:
        """The clients' names, in order; empty as long as they are not recorded."""
        try:
            return [visible(str(name)) for name in read_identity(self.folder / STATE).get("clients", ())]
        except IdiolectError:
            return []

    @property
    def silent(self) -> float:
        """The seconds since the store last changed; NaN if there is none."""
        try:
            times = [path.stat().st_mtime for path in self.folder.glob(f"{STATE}*")]
        except OSError:
            return math.nan
        return max(0.0, time.time() - max(times)) if times else math.nan

    @property
    def complete(self) -> bool:
        """Whether all rounds are done."""
        return self.done >= self.rounds

    def metric(self, wanted: str | None = None) -> str:
        """The metric that is shown: the wanted one, else the headline, else whatever there is."""
        known = list(dict.fromkeys(metric for _, part, metric in self._curves if part == "val"))
        named = [name for name, _ in name_metrics(self.metrics)] if self.metrics and self.metrics != OWN else []
        if wanted is not None and known and wanted not in (*known, *named):
            raise InputError(f"there is no metric {wanted!r} in {self.folder}; choose one of {', '.join(known)}")
        usual = (name for name in known if name in ("accuracy", "mse"))
        return wanted or next(iter((*named, *usual)), (known or ["loss"])[-1])

    def score(self, metric: str) -> Curve:
        """The sample-weighted validation score by round, after adaptation where the method adapts."""
        return self._curves.get(("adapted", "val", metric)) or self._curves.get(("personal", "val", metric), {})

    @property
    def loss(self) -> Curve:
        """The sample-weighted training loss of the participants by round."""
        return self._curves.get(("train", "train", "loss"), {})

    @property
    def left(self) -> float:
        """The seconds that the remaining rounds will take at the pace so far."""
        return self.seconds / self.done * (self.rounds - self.done) if self.done else math.nan


def find(folder: Path) -> list[Watched]:
    """The run in a folder, or all runs of a comparison, whether they have begun or not."""
    if (folder / SPEC).is_file():
        spec = read_spec(folder / SPEC)
        common, own, metrics = _rounds(spec, folder), spec.get("rounds_of", {}), spec.get("metrics")
        return [
            Watched(
                visible(str(method)),
                folder / slug(str(method)) / f"seed-{seed}",
                own.get(method, common),
                metrics,
                seed,
            )
            for method in spec["methods"]
            for seed in spec["seeds"]
        ]
    if not (folder / CONFIG).is_file():
        inside = sorted(path.parent for path in folder.rglob("*.yaml") if path.name in (SPEC, CONFIG))
        way = f"watch one of those inside: {inside[0]}" if inside else f"start one with: idiolect run --out {folder}"
        raise RunFolderError(f"{folder} holds no run and no comparison; {way}")
    config = read_config(folder / CONFIG)
    method, seed = visible(str(config.get("method", Config.method))), config.get("seed", Config.seed)
    return [Watched(method, folder, _rounds(config, folder), config.get("metrics"), seed)]


def find_all(folder: Path) -> list[Watched]:
    """The runs of a folder that holds a run or a comparison, or of all such that lie in it."""
    if (folder / SPEC).is_file() or (folder / CONFIG).is_file():
        return find(folder)
    comparisons = [path.parent for path in folder.rglob(SPEC)]
    alone = [path.parent for path in folder.rglob(CONFIG) if not any(c in path.parents for c in comparisons)]
    places = sorted(place for place in (*comparisons, *alone) if not is_part(place))
    if len(places) < 2:
        return find(places[0] if places else folder)
    runs = [(place, run) for place in places for run in find(place)]
    return [replace(run, method=f"{visible(str(place.relative_to(folder)))}: {run.method}") for place, run in runs]


def _rounds(settings: Mapping[str, Any], folder: Path) -> int:
    rounds = settings.get("rounds", Config.rounds)
    if not isinstance(rounds, int):
        raise RunFolderError(f"{folder} is damaged: rounds={rounds!r} is no whole number; repair its settings")
    return rounds


def mean_curve(curves: Sequence[Curve]) -> dict[int, float]:
    """The mean of several curves, at every round that at least one has.

    >>> mean_curve([{1: 0.5, 2: 0.75}, {1: 1.0}])
    {1: 0.75, 2: 0.75}
    """
    by_round = {round: [curve[round] for curve in curves if round in curve] for round in sorted(set().union(*curves))}
    return {round: sum(values) / len(values) for round, values in by_round.items()}
