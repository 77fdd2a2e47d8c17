"""The tables of a study: the leaderboard, and what only single runs and clients tell."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from ..analysis import effective_classes, target_score, win_tie_loss
from ..comparison.tables import leaderboard_tables, name_selection
from ..core.tables import Cell, Column, Table, formatter, label, number, score_cell, unit
from ..runs.constants import TITLES
from .scores import best_score, common_target, cost_to_reach, paired_scores
from .study import Study

SHARES = (0.8, 0.9)
_NUMBERS = re.compile(r"[-+−]?[\d,]+(?:\.\d+)?(?:e[-+]\d+)?( ± [\d,.]+(?:e[-+]?\d+)?)?")


def study_tables(study: Study) -> list[Table]:
    """Every table: the leaderboard, and what only single runs and clients tell."""
    wins = [wins_table(study)] if len(study.methods) > 1 else []
    leaderboard = leaderboard_tables(study.comparison)
    return [*leaderboard, *wins, targets_table(study), clients_table(study), runs_table(study)]


# -- for a page -----------------------------------------------------------------------------------------


def align_table(table: Table) -> Table:
    """A table in which every column has one number of digits."""
    return replace(table, rows=tuple(zip(*map(align_digits, zip(*table.rows, strict=True)), strict=True)))


def fold_columns(table: Table) -> Table:
    """The table without columns that say the same in all rows, or the same as the column before; the note says it. A
    table of which nothing would be left stays as it is.

    >>> rows = tuple((Cell(n, n), Cell("5", 5.0), Cell("–", math.nan), Cell(n, n), Cell(n, n)) for n in "ab")
    >>> table = Table("t", "T", "A note.", tuple(map(Column, ("method", "MB", "s", "p", "q"))), rows)
    >>> [column.head for column in fold_columns(table).columns]
    ['method', 'p']
    >>> fold_columns(table).note
    'A note. The same for all: MB 5. No row has a value of s. Q is the same as p in all rows.'
    >>> fold_columns(table.pick([0, 1])) == table.pick([0, 1])
    True
    """
    if len(table.rows) < 2:
        return table
    texts = [[row[place].text for row in table.rows] for place in range(len(table.columns))]
    kept, alike, empty, twins = [0], list[str](), list[str](), list[str]()
    for place, (column, cells) in enumerate(zip(table.columns, texts, strict=True)):
        if place == 0:
            continue
        values = {text for text in cells if text}
        if values == {"–"}:
            empty.append(column.head)
        elif len(values) == 1:
            alike.append(f"{column.head} {values.pop()}")
        elif kept[-1] and cells == texts[kept[-1]]:
            twins.append(f"{column.head} is the same as {table.columns[kept[-1]].head} in all rows")
        else:
            kept.append(place)
    if len(kept) == 1:
        return table
    sentences = [f"The same for all: {'; '.join(alike)}."] if alike else []
    sentences += [f"No row has a value of {', '.join(empty)}."] if empty else []
    sentences += [f"{'; '.join(twins)}."[0].upper() + f"{'; '.join(twins)}."[1:]] if twins else []
    return replace(table.pick(kept), note=" ".join([*([table.note] if table.note else []), *sentences]))


def align_digits(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """A column of numbers, all with as many digits after the point as its middle one needs for three digits, or with
    the fewer or two that they have; other columns, and numbers a million times as large as the middle one, as they are.

    >>> [cell.text for cell in align_digits([Cell("4.8", 4.8), Cell("4.81", 4.81), Cell("0", 0.0), Cell("–", math.nan)])
    ... ]
    ['4.80', '4.81', '0.00', '–']
    >>> [cell.text for cell in align_digits([Cell("0.3097 ± 1.427", 0.3097, half=1.427)])]
    ['0.310 ± 1.427']
    >>> [cell.text for cell in align_digits([Cell("86.35", 86.35), Cell("0.00", 0.0)])]
    ['86.35', '0.00']
    >>> [cell.text for cell in align_digits([Cell("-0.03072", -0.03072), Cell("-0.08974", -0.08974)])]
    ['-0.0307', '-0.0897']
    """
    plain = [cell for cell in cells if isinstance(cell.value, float) and _NUMBERS.fullmatch(cell.text)]
    if not plain or any(cell not in plain and cell.text not in ("", "–", "baseline", "none") for cell in cells):
        return tuple(cells)
    sizes = sorted(abs(float(cell.value)) for cell in plain)
    middle = sizes[len(sizes) // 2]
    decimals = {_decimals(part) for cell in plain for part in cell.text.split(" ± ")}
    digits = max(0, 2 - math.floor(math.log10(middle or max(*sizes, 1.0))))
    if len(decimals) == 1 and decimals.pop() <= max(digits, 2):
        return tuple(cells)
    return tuple(
        _write(cell, digits) if cell in plain and abs(float(cell.value)) < 1e6 * max(middle, 1e-9) else cell
        for cell in cells
    )


def _decimals(number: str) -> int:
    return 0 if "e" in number else len(number.partition(".")[2])


def _write(cell: Cell, digits: int) -> Cell:
    sign = "+" if cell.text.startswith("+") else ""
    half = "" if cell.half is None else f" ± {cell.half:,.{digits}f}"
    return cell._replace(text=f"{cell.value:{sign},.{digits}f}{half}")


# -- what they show -------------------------------------------------------------------------------------


def rounds_table(study: Study) -> Table:
    """The scores of a single run: at the selected round, at the last one, and at the best by test."""
    summary, metric = study.first(study.methods[0]).summary, study.metric
    parts = {"selected": "selected", "last": "last", "best": "best (by test, optimistic)"}
    heads = {"weighted": "weighted by samples", "mean": "mean of clients", "bottom_decile": "bottom decile"}
    heads |= {"worst": "worst client", "std": "std of clients"}
    points = {
        "": metric,
        "before adaptation": "before_adaptation",
        "the shared model": "global",
        "unseen clients": "unseen",
    }
    rows = []
    for words, key in points.items():
        for part, scores in summary.get(key, {}).items():
            name = f"{words}: {parts[part]}" if words else parts[part]
            numbers = [score_cell(float(scores[name]), metric) for name in heads]
            rows.append((Cell(name, name), Cell(str(scores["round"]), float(scores["round"])), *numbers))
    for kind, scores in summary.get("constants", {}).items():
        numbers = [score_cell(float(scores.get(name, math.nan)), metric) for name in heads]
        rows.append((Cell(TITLES[kind], TITLES[kind]), Cell("any", math.nan), *numbers))
    columns = [Column("round"), *(Column(head, unit=unit(metric)) for head in heads.values())]
    lower = "" if study.higher else " (lower is better)"
    note = f"Selected is the {name_selection(summary['selection'])}."
    return Table("scores", f"Test {label(metric)}{lower}", note, (Column("scores"), *columns), tuple(rows))


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
    several = len(study.methods) > 1
    columns = [Column("method")]
    for share in SHARES:
        columns += [Column(f"{100 * share:g} %: {head}", "low") for head in ("rounds", "MB", "s")]
    columns += [Column(f"own {100 * share:g} %: rounds", "low") for share in SHARES if several]
    rows = []
    for method in study.methods:
        cells = [Cell(method, method)]
        for share in SHARES:
            rounds, *others = cost_to_reach(study, method, common_target(study, share))
            cells += [_write_rounds(rounds, len(study.seeds)), *map(number, others)]
        for share in SHARES if several else ():
            cost = cost_to_reach(study, method, target_score(best_score(study, method), share, study.higher))
            cells.append(_write_rounds(cost.rounds, len(study.seeds)))
        rows.append(tuple(cells))
    show = formatter(study.metric)
    goals = ", ".join(f"{100 * share:g} % is {show(common_target(study, share))}" for share in SHARES)
    unit = " %" if study.metric == "accuracy" else ""
    best = "best of any method" if several else "best"
    note = f"Spent until the test {study.metric} first reaches a share of the {best} ({goals}{unit})"
    note += ", or of the method's own best" * several
    average, every = (", on average over seeds", " under every seed") if len(study.seeds) > 1 else ("", "")
    note += f"{average}; – where it is not reached{every}."
    return Table("targets", "Time to target", note, tuple(columns), tuple(rows))


def _write_rounds(rounds: float, seeds: int) -> Cell:
    """A number of rounds, with a digit after the point where it is a mean over seeds."""
    return Cell("–" if math.isnan(rounds) else f"{rounds:,.{int(seeds > 1)}f}", rounds)


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
