"""The tables of a study, with numbers and how they are shown, and the same tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..analysis import effective_classes, target_score, win_tie_loss
from ..comparison.leaderboard import LeaderboardRow
from ..comparison.statistics import Interval
from ..core.tables import Cell, Column, Show, Table, number, probability, shower
from .curves import best_of, common_target, paired_scores, reached
from .runs import Study

SHARES = (0.8, 0.9)


# -- the tables of a study --------------------------------------------------------------------------------


def tables(study: Study) -> list[Table]:
    """Everything there is."""
    found = [leaderboard(study), *([versus(study)] if len(study.methods) > 1 else []), targets(study)]
    return [*found, clients(study), runs(study)]


def leaderboard(study: Study) -> Table:
    """Scores, their spread over clients, and costs."""
    show, unit = shower(study.metric), " (%)" if study.metric == "accuracy" else ""
    good: Literal["high", "low"] = "high" if study.higher else "low"
    unseen = any(each.unseen is not None for each in study.comparison.rows)
    columns: dict[Column, Callable[[LeaderboardRow], Cell]] = {
        Column("method"): lambda s: Cell(s.method + _marks(s), s.method),
        Column(f"selected{unit}", good): lambda s: _interval(s.selected, show),
        Column("last", good): lambda s: _interval(s.last, show),
        Column("best (by test)", good): lambda s: _interval(s.best, show),
        Column("mean of clients", good): lambda s: Cell(show(s.mean), s.mean),
        Column("bottom decile", good): lambda s: Cell(show(s.bottom_decile), s.bottom_decile),
        Column("worst client", good): lambda s: Cell(show(s.worst), s.worst),
        Column("std of clients"): lambda s: Cell(show(s.std), s.std),
        **({Column("unseen clients", good): lambda s: _interval(s.unseen, show)} if unseen else {}),
        Column("MB up"): lambda s: number(s.mb_up),
        Column("MB down"): lambda s: number(s.mb_down),
        Column("steps"): lambda s: Cell(
            "–" if math.isnan(s.relative_steps) else f"{s.relative_steps:.2f}×", s.relative_steps
        ),
        Column("seconds"): lambda s: number(s.seconds),
        Column("memory (MB)"): lambda s: number(s.peak_memory_mb, 0),
    }
    rows = tuple(tuple(cell(each) for cell in columns.values()) for each in study.comparison.rows)
    lower = "" if study.higher else " Lower is better."
    means = "Means over seeds, ± half of the 95 % interval. " if len(study.seeds) > 1 else ""
    note = f"{means}The best by test is optimistic. Costs are per run.{lower}"
    return Table("leaderboard", "Leaderboard", note, tuple(columns), rows)


def versus(study: Study) -> Table:
    """Paired tests against the baseline, and on how many clients each method wins."""
    show, baseline = shower(study.metric), study.baseline
    points = " (points)" if study.metric == "accuracy" else ""
    heads = ("method", f"difference{points}", "low", "high", "p", "p (Holm)", "clients won", "tied", "lost")
    rows = []
    for each in study.comparison.rows:
        if (held := each.versus) is None:
            continue
        record = win_tie_loss(*paired_scores(study, each.method, baseline), study.higher)
        rows.append(
            (
                Cell(each.method, each.method),
                Cell(show(held.difference, sign=True), held.difference),
                Cell(show(held.low, sign=True), held.low),
                Cell(show(held.high, sign=True), held.high),
                Cell(probability(held.p), held.p),
                Cell(probability(each.p_holm), each.p_holm),
                *(Cell(str(count), float(count)) for count in record),
            )
        )
    note = (
        f"Selected test score minus that of {baseline}, paired by seed, with the 95 % Student interval; p of the paired"
        " t-test, and corrected by Holm's rule. Won, tied and lost count clients over all seeds."
    )
    if len(study.seeds) == 1:
        note = f"Selected test score minus that of {baseline}; one seed gives neither intervals nor tests."
    return Table("versus", f"Against {baseline}", note, tuple(Column(head) for head in heads), tuple(rows))


def targets(study: Study) -> Table:
    """Rounds, bytes and seconds until a share of the best score is reached."""
    columns = [Column("method")]
    for share in SHARES:
        columns += [Column(f"{100 * share:g} %: {head}", "low") for head in ("rounds", "MB", "s")]
    columns += [Column(f"{100 * share:g} % of own best: rounds", "low") for share in SHARES]
    rows = []
    for method in study.methods:
        cells = [Cell(method, method)]
        for share in SHARES:
            found = reached(study, method, common_target(study, share))
            cells += [number(each) for each in found]
        for share in SHARES:
            own = reached(study, method, target_score(best_of(study, method), share, study.higher))
            cells.append(number(own.rounds))
        rows.append(tuple(cells))
    show = shower(study.metric)
    goals = ", ".join(f"{100 * share:g} % is {show(common_target(study, share))}" for share in SHARES)
    unit = " %" if study.metric == "accuracy" else ""
    note = (
        f"Spent until the test {study.metric} first reaches a share of the best of any method ({goals}{unit}), or of"
        " the method's own best, on average over seeds; – where it is not reached under every seed."
    )
    return Table("targets", "Time to target", note, tuple(columns), tuple(rows))


def clients(study: Study) -> Table:
    """Every client of the first seed: what it holds, and its score under every method."""
    show, data = shower(study.metric), study.federation
    known = sorted(study.first(study.methods[0]).scores)
    columns = [Column("client")]
    if data is not None:
        columns += [Column("training samples"), *([Column("effective classes")] if data.classes else [])]
    columns += [Column(method) for method in study.methods]
    rows = []
    for client in known:
        cells = [Cell(str(client), float(client))]
        if data is not None:
            held = data.clients[client]
            cells = [Cell(held.name, held.name), Cell(f"{len(held):,}", float(len(held)))]
            if data.classes:
                effective = effective_classes(data.label_counts()[client])
                cells.append(Cell(f"{effective:.1f}", effective))
        scores = [study.first(method).scores.get(client, math.nan) for method in study.methods]
        rows.append((*cells, *(Cell(show(score), score) for score in scores)))
    unit = " (%)" if study.metric == "accuracy" else ""
    note = f"Test {study.metric}{unit} at the selected round, seed {study.seeds[0]}."
    return Table("clients", "Client by client", note, tuple(columns), tuple(rows))


def runs(study: Study) -> Table:
    """Every run with the hashes that name its settings, data and partition."""
    heads = ("run", "seed", "selected round", "settings", "data", "partition", "engine", "folder")
    rows = []
    for method in study.methods:
        for seed, run in study.runs[method].items():
            held = run.summary
            facts: Sequence[Any] = (
                held["config_hash"], held["data_hash"], held["partition"]["hash"], held["engine"], run.folder,
            )  # fmt: skip
            numbers = [Cell(str(each), float(each)) for each in (seed, run.selected)]
            rows.append((Cell(method, method), *numbers, *(Cell(str(each), str(each)) for each in facts)))
    return Table("runs", "Runs", "", tuple(Column(head) for head in heads), tuple(rows))


def _marks(standing: LeaderboardRow) -> str:
    return "†" * (standing.point == "adapted") + "*" * standing.needs_more_steps


def _interval(held: Interval | None, show: Show) -> Cell:
    if held is None:
        return Cell("–", math.nan)
    return Cell(show(held.mean) + ("" if math.isnan(held.half) else f" ± {show(held.half)}"), held.mean)
