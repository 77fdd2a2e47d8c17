"""The tables of a study: the leaderboard, and what only single runs and clients tell."""

from __future__ import annotations

import math

from ..analysis import effective_classes, target_score, win_tie_loss
from ..comparison.tables import leaderboard_tables
from ..core.tables import Cell, Column, Table, formatter, label, number, score_cell, unit
from .scores import best_score, common_target, cost_to_reach, paired_scores
from .study import Study

SHARES = (0.8, 0.9)


def study_tables(study: Study) -> list[Table]:
    """Every table: the leaderboard, and what only single runs and clients tell."""
    wins = [wins_table(study)] if len(study.methods) > 1 else []
    leaderboard = leaderboard_tables(study.comparison)
    return [*leaderboard, *wins, targets_table(study), clients_table(study), runs_table(study)]


def wins_table(study: Study) -> Table:
    """On how many clients each method beats the baseline."""
    others = [method for method in study.methods if method != study.baseline]
    rows = []
    for method in others:
        counts = win_tie_loss(*paired_scores(study, method, study.baseline), study.higher)
        rows.append((Cell(method, method), *(Cell(str(count), float(count)) for count in counts)))
    columns = tuple(Column(head) for head in ("method", "clients won", "tied", "lost"))
    note = f"Clients, over all seeds, whose selected test score is better, equal or worse than with {study.baseline}."
    return Table("against", f"Clients won against {study.baseline}", note, columns, tuple(rows))


def targets_table(study: Study) -> Table:
    """Rounds, bytes and seconds until a share of the best score is reached."""
    columns = [Column("method")]
    for share in SHARES:
        columns += [Column(f"{100 * share:g} %: {head}", "low") for head in ("rounds", "MB", "s")]
    columns += [Column(f"{100 * share:g} % of own best: rounds", "low") for share in SHARES]
    rows = []
    for method in study.methods:
        cells = [Cell(method, method)]
        for share in SHARES:
            cells += [number(cost) for cost in cost_to_reach(study, method, common_target(study, share))]
        for share in SHARES:
            cost = cost_to_reach(study, method, target_score(best_score(study, method), share, study.higher))
            cells.append(number(cost.rounds))
        rows.append(tuple(cells))
    show = formatter(study.metric)
    goals = ", ".join(f"{100 * share:g} % is {show(common_target(study, share))}" for share in SHARES)
    unit = " %" if study.metric == "accuracy" else ""
    note = (
        f"Spent until the test {study.metric} first reaches a share of the best of any method ({goals}{unit}), or of"
        " the method's own best, on average over seeds; – where it is not reached under every seed."
    )
    return Table("targets", "Time to target", note, tuple(columns), tuple(rows))


def clients_table(study: Study) -> Table:
    """Every client of the first seed: what it holds, and its score under every method."""
    data = study.federation
    known = sorted(study.first(study.methods[0]).scores)
    columns = [Column("client")]
    if data is not None:
        columns += [Column("training samples"), *([Column("effective classes")] if data.classes else [])]
    columns += [Column(method, unit=unit(study.metric)) for method in study.methods]
    rows = []
    for client in known:
        name = study.name_client(client)
        cells = [Cell(name, name)]
        if data is not None:
            samples = len(data.clients[client])
            cells.append(Cell(f"{samples:,}", float(samples)))
            if data.classes:
                effective = effective_classes(data.label_counts()[client])
                cells.append(Cell(f"{effective:.1f}", effective))
        scores = [study.first(method).scores.get(client, math.nan) for method in study.methods]
        rows.append((*cells, *(score_cell(score, study.metric) for score in scores)))
    note = f"Test {label(study.metric)} at the selected round, seed {study.seeds[0]}."
    return Table("clients", "Client by client", note, tuple(columns), tuple(rows))


def runs_table(study: Study) -> Table:
    """Every run with the hashes that name its settings, data and partition."""
    heads = ("run", "seed", "selected round", "settings", "data", "partition", "engine", "folder")
    rows = []
    for method in study.methods:
        for seed, run in study.runs[method].items():
            summary = run.summary
            hashes = (summary["config_hash"], summary["data_hash"], summary["partition"]["hash"])
            numbers = [Cell(str(number), float(number)) for number in (seed, run.selected)]
            texts = [str(fact) for fact in (*hashes, summary["engine"], run.folder)]
            rows.append((Cell(method, method), *numbers, *(Cell(text, text) for text in texts)))
    return Table("runs", "Runs", "", tuple(Column(head) for head in heads), tuple(rows))
