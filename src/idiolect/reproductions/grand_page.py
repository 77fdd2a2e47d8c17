"""The page of the grand table as Markdown, and its critical-difference diagram as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from ..advice.presets import KINDS
from ..comparison.ranks import common_names, critical_difference, draw_ranks, friedman, mean_ranks
from .claims import Claim
from .grand import REFERENCES, Federation, below_both, means_of, read_federations, wins
from .ledger import row, show

EMPTY = "No federation has run yet."
NOTHING = f"*{EMPTY}*"
MATRIX = 12
"""How many of the best methods the win matrix shows, beside the references."""


def write_grand(folder: Path) -> dict[str, str]:
    """The parts of the page, by name, and the picture as `svg`; from the committed results in a folder of claims."""
    done, waiting = read_federations(folder)
    parts = {"grand-state": "\n".join(write_state(done, waiting))}
    if not done:
        names = ("ranks", "scores", "wins", "costs", "unseen", "hurt", "below")
        return parts | {f"grand-{name}": NOTHING for name in names} | {"svg": draw_ranks({}, math.nan, nothing=EMPTY)}
    return parts | {
        "grand-ranks": "\n".join(write_ranks(done)),
        "grand-scores": "\n".join(write_scores(done)),
        "grand-wins": "\n".join(write_wins(done)),
        "grand-costs": "\n".join(write_costs(done)),
        "grand-unseen": "\n".join(write_unseen(done)),
        "grand-hurt": "\n".join(write_hurt(done)),
        "grand-below": "\n".join(write_below(done)),
        "svg": draw_ranks(mean_ranks(means_of(done)), find_critical(done), REFERENCES),
    }


def find_critical(done: Sequence[Federation]) -> float:
    """The critical difference; NaN with fewer than two federations."""
    return critical_difference(len(common_names(means_of(done))), len(done)) if len(done) > 1 else math.nan


def write_state(done: Sequence[Federation], waiting: Sequence[Claim]) -> Iterator[str]:
    """What has run, and what has not."""
    yield row("federation", "kind", "data", "clients", "model", "state", "command")
    yield "|---|---|---|---:|---|---|---|"
    minutes = {each.claim.name: each.minutes for each in done}
    for claim in sorted([*(each.claim for each in done), *waiting], key=lambda claim: KINDS.index(claim.kind)):
        (case,) = claim.cases
        found = minutes.get(claim.name)
        state = f"{len(claim.methods)} methods, {found:.0f} minutes" if found is not None else "not run yet"
        settings = case.settings
        clients, model = str(settings.get("clients", "all")), str(settings.get("model", "the data's own"))
        yield row(
            claim.where,
            claim.kind,
            f"`{settings['data']}`",
            clients,
            f"`{model}`",
            state,
            f"`idiolect reproduce {claim.name}`",
        )


def write_ranks(done: Sequence[Federation]) -> Iterator[str]:
    """Mean ranks of the methods that ran everywhere, with the critical difference."""
    ranks = mean_ranks(means_of(done))
    kinds = [kind for kind in KINDS if any(each.claim.kind == kind for each in done)]
    by_kind = {kind: mean_ranks(means_of([each for each in done if each.claim.kind == kind])) for kind in kinds}
    p, apart = friedman(means_of(done)), find_critical(done)
    tests = [] if math.isnan(p) else [f"Friedman's test that all are alike: p = {p:.2g}."]
    tests += (
        []
        if math.isnan(apart)
        else [f"By Nemenyi's test, two mean ranks differ at 5 % where they lie more than {apart:.1f} apart."]
    )
    yield f"{len(ranks)} methods that ran on all {len(done)} federations. " + " ".join(tests)
    yield ""
    yield row("method", "mean rank", *kinds)
    yield "|---|---:|" + "---:|" * len(kinds)
    for name, rank in ranks.items():
        yield row(f"`{name}`", f"{rank:.1f}", *(f"{by_kind[kind][name]:.1f}" for kind in kinds))


def write_scores(done: Sequence[Federation]) -> Iterator[str]:
    """Every method's score on every federation; what could not run says so below."""
    names = list(dict.fromkeys([*mean_ranks(means_of(done)), *(name for each in done for name in each.entries)]))
    yield row("method", *(each.claim.name.partition("-")[2] for each in done))
    yield "|---|" + "---:|" * len(done)
    for name in names:
        yield row(f"`{name}`", *(show(100 * each.entries[name].mean) if name in each.entries else "" for each in done))
    for each in done:
        for name, reason in {**each.skipped, **each.failed}.items():
            yield f"\n`{name}` has no score on {each.claim.where}: {reason}"


def write_wins(done: Sequence[Federation]) -> Iterator[str]:
    """On how many federations the row is above the column and below it, with paired intervals over seeds."""
    best = list(mean_ranks(means_of(done)))[:MATRIX]
    names = [*best, *(name for name in REFERENCES if name not in best)]
    yield row("", *(f"`{name}`" for name in names))
    yield "|---|" + ":---:|" * len(names)
    for a in names:
        cells = ["" if a == b else "{} : {}".format(*wins(done, a, b)) for b in names]
        yield row(f"`{a}`", *cells)


def write_costs(done: Sequence[Federation]) -> Iterator[str]:
    """Costs over FedAvg's, medians over federations, beside the mean gain over it."""
    yield row("method", "points above FedAvg", "gradients", "bytes", "seconds")
    yield "|---|---:|---:|---:|---:|"
    for name in mean_ranks(means_of(done)):
        entries = [each.entries[name] for each in done]
        gains = [100 * (each.entries[name].mean - each.entries["fedavg"].mean) for each in done]
        middle = (median(getattr(e, what) for e in entries) for what in ("gradients", "megabytes", "seconds"))
        yield row(f"`{name}`", f"{fmean(gains):+.1f}", *(f"{value:.2f}" for value in middle))


def median(values: Iterator[float]) -> float:
    """The middle of the finite values; NaN of none."""
    known = sorted(value for value in values if math.isfinite(value))
    return math.nan if not known else (known[len(known) // 2] + known[(len(known) - 1) // 2]) / 2


def write_unseen(done: Sequence[Federation]) -> Iterator[str]:
    """What clients get that never trained."""
    having = [each for each in done if any(math.isfinite(entry.unseen) for entry in each.entries.values())]
    if not having:
        yield "No federation that has run has unseen clients."
        return
    yield row("method", *(each.claim.name.partition("-")[2] for each in having))
    yield "|---|" + "---:|" * len(having)
    for name in mean_ranks(means_of(done)):
        yield row(f"`{name}`", *(show(100 * each.entries[name].unseen) for each in having))


def write_hurt(done: Sequence[Federation]) -> Iterator[str]:
    """The share of clients that are worse off than alone."""
    yield row("method", *(each.claim.name.partition("-")[2] for each in done))
    yield "|---|" + "---:|" * len(done)
    for name in mean_ranks(means_of(done)):
        yield row(f"`{name}`", *(f"{100 * each.entries[name].below_local:.0f} %" for each in done))


def write_below(done: Sequence[Federation]) -> Iterator[str]:
    """The methods below both Local and fine-tuned FedAvg."""
    for each in done:
        names = below_both(each)
        yield f"- {each.claim.where}: " + (", ".join(f"`{name}`" for name in names) or "none")
