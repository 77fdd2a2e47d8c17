"""The ledger: the tables of the page about all claims, from their files and committed results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..comparison.statistics import interval
from ..core.tables import escape_markdown
from .claims import Claim
from .files import define, read_result, result_path
from .reading import read_claims
from .verdicts import NOT_RUNNABLE

SHARES = ("score", "bottom_decile", "unseen", "generalization_gap", "personal_gain")
"""Measures that are shares of one and shown in percent, as the papers do."""
HEADS = ("claim", "what the paper says", "ours", "theirs", "verdict", "hours", "command")
NOT_RUN, OUTDATED = "not run yet", "to be run anew: its file has changed"


def write_ledger(folder: Path) -> dict[str, str]:
    """The parts of the page about all claims of a folder: `ledger`, `count` and `details`."""
    claims = {name: claim for name, claim in read_claims(folder).items() if not claim.is_table}
    results = {name: find_result(claim, folder) for name, claim in claims.items()}
    rows = [row(*HEADS), "|---|---|---|---|---|---:|---|"]
    rows += [line for name, claim in claims.items() for line in write_rows(claim, results[name])]
    done = [result for result in results.values() if isinstance(result, dict)]
    runnable = sum(not claim.not_runnable for claim in claims.values())
    hours = sum(result["seconds"] for result in done) / 3600
    return {
        "count": f"Run so far: {len(done)} of the {runnable} claims that can be run, in {hours:.1f} hours of one core.",
        "ledger": "\n".join(rows),
        "details": "\n\n".join(write_details(claim, results[name]) for name, claim in claims.items()),
    }


def find_result(claim: Claim, folder: Path) -> dict[str, Any] | str:
    """The committed result of a claim, or why there is none."""
    if claim.not_runnable:
        return NOT_RUNNABLE
    result = read_result(result_path(folder, claim.name))
    if result is None:
        return NOT_RUN
    return result if result["definition"] == define(claim) else OUTDATED


# -- rows -------------------------------------------------------------------------------------------------


def write_rows(claim: Claim, result: dict[str, Any] | str) -> Iterator[str]:
    """A row per verdict of a claim; the first one names it."""
    name = f"[{claim.name}](#{claim.name})"
    where = f"{claim.paper}, {claim.where}: "
    command = f"`idiolect reproduce {claim.name}`"
    if isinstance(result, str):
        yield row(name, where + claim.says, "", "", result, "", "" if claim.not_runnable else command)
        return
    hours = f"{result['seconds'] / 3600:.2f}"
    for case in result["cases"]:
        for verdict in case["verdicts"]:
            says = where + verdict["says"] + (f" ({case['case']})" if case["case"] else "")
            words = f"**{verdict['verdict']}**" + (f": {verdict['words']}" if verdict["words"] else "")
            yield row(name, says, write_ours(verdict), write_theirs(verdict), words, hours, command)
            name = where = hours = command = ""


def row(*cells: str) -> str:
    """A line of a table; what is written in it stays as it is."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def write_ours(verdict: Mapping[str, Any]) -> str:
    """The claimed number, and the best of the others."""
    others = {name: mean for name, mean in verdict["ours"].items() if name != verdict["left"] and mean is not None}
    return write_pair(verdict, verdict["ours"].get(verdict["left"]), others, 100 if verdict["measure"] in SHARES else 1)


def write_theirs(verdict: Mapping[str, Any]) -> str:
    """The paper's number for the same, and its best of the others."""
    others = {name: number for name, number in verdict["theirs"].items() if name != verdict["left"]}
    return write_pair(verdict, verdict["theirs"].get(verdict["left"]), others, 1)


def write_pair(verdict: Mapping[str, Any], claimed: float | None, others: Mapping[str, float], factor: float) -> str:
    """A number and the one of the others that comes nearest to refuting the claim, with its name."""
    if claimed is None and not others:
        return ""
    text = "–" if claimed is None else show(claimed * factor)
    if not others:
        return text
    best = (min if verdict["relation"] == "lower" else max)(others, key=lambda name: others[name])
    shown = "" if best == f"{others[best]:g}" else f" `{best}`"
    return f"{text} / {show(others[best] * factor)}{shown}"


def show(number: float | None) -> str:
    """A number with a sensible number of digits.

    >>> show(91.234), show(0.01234), show(1234.5), show(None)
    ('91.23', '0.0123', '1,234', '–')
    """
    if number is None or math.isnan(number):
        return "–"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.2f}" if abs(number) >= 1 or number == 0 else f"{number:.3g}"


# -- details ----------------------------------------------------------------------------------------------


def write_details(claim: Claim, result: dict[str, Any] | str) -> str:
    """The section of a claim: setting, what is smaller, numbers of every method, and differences."""
    head = [f"### {claim.name}", f"{claim.paper}, {claim.where}. {claim.says}"]
    if claim.not_runnable:
        return "\n\n".join([*head, f"Not runnable here: {claim.not_runnable}"])
    head += [f"*In the paper:* {claim.setup}", f"*Smaller here:* {claim.scaled}"]
    if isinstance(result, str):
        return "\n\n".join([*head, f"*{result[0].upper()}{result[1:]}.*"])
    machine = result["machine"]
    ran = (
        f"*Run:* version {result['version']}, {machine['processor']}, torch {machine['torch']}; seeds"
        f" {', '.join(map(str, result['seeds']))}; {result['seconds'] / 60:,.0f} minutes of one core."
    )
    tables = [part for case in result["cases"] for part in write_case(case)]
    return "\n\n".join([*head, ran, *tables])


def write_case(case: Mapping[str, Any]) -> Iterator[str]:
    """The tables of a case: every method's score, then the differences that a verdict rests on."""
    if case["case"]:
        yield f"**{escape_markdown(case['case'])}**"
    theirs = {name: number for v in case["verdicts"] if v["measure"] == "score" for name, number in v["theirs"].items()}
    heads = ["method", f"{case['metric']}, ours", "theirs", "chosen", "learning rate", "MB up", "s"]
    lines = [row(*heads), "|---|---:|---:|---|---:|---:|---:|"]
    ordered = sorted(case["methods"], key=lambda method: -mean_of(method, "score", -math.inf))
    lines += [write_method(method, theirs) for method in ordered]
    yield "\n".join(lines)
    for verdict in case["verdicts"]:
        yield write_differences(verdict)


def mean_of(method: Mapping[str, Any], name: str, missing: float = math.nan) -> float:
    """The mean of a number over a method's runs."""
    mean = interval([run[name] for run in method["runs"] if run.get(name) is not None]).mean
    return missing if math.isnan(mean) else mean


def write_method(method: Mapping[str, Any], theirs: Mapping[str, float]) -> str:
    """The row of a method."""
    mean, half = interval([run["score"] for run in method["runs"] if run["score"] is not None])
    spread = "" if math.isnan(half) else f" ± {show(100 * half)}"
    score = method.get("failed") or f"{show(100 * mean)}{spread}"
    chosen = "" if method["expression"] in (None, method["method"]) else f"`{method['expression']}`"
    lr = "" if method["lr"] is None else f"{method['lr']:g}" + "*" * is_at_edge(method)
    number = theirs.get(method["method"])
    up, seconds = mean_of(method, "bytes_up") / 1e6, mean_of(method, "seconds")
    return row(
        f"`{method['method']}`", score, "" if number is None else show(number), chosen, lr, show(up), show(seconds)
    )


def is_at_edge(method: Mapping[str, Any]) -> bool:
    """Whether the chosen learning rate is the lowest or the highest of those that were tried."""
    rates = {trial["lr"] for trial in method.get("trials", ())}
    return len(rates) > 1 and method["lr"] in (min(rates), max(rates))


def write_differences(verdict: Mapping[str, Any]) -> str:
    """The differences that a verdict rests on, in a sentence."""
    factor, unit = (100, " points") if verdict["measure"] in SHARES else (1, "")
    parts = []
    for each in verdict["differences"]:
        if each["difference"] is None:
            parts.append(f"`{each['other']}` has no score")
            continue
        span = (
            ""
            if each["low"] is None
            else f" [{show_signed(each['low'] * factor)}, {show_signed(each['high'] * factor)}]"
        )
        parts.append(f"`{each['other']}` {show_signed(each['difference'] * factor)}{span}")
    margin = f" within {show(verdict['within'] * factor)}{unit}" if "within" in verdict else ""
    measure = "" if verdict["measure"] == "score" else f", {verdict['measure'].replace('_', ' ')}"
    rule = f"`{verdict['left']}` {verdict['relation']}{margin}{measure}"
    return (
        f"{verdict['says']} ({rule}): **{verdict['verdict']}**. Differences{unit and ' in points'}: {'; '.join(parts)}."
    )


def show_signed(number: float) -> str:
    """A number with its sign."""
    return f"{'+' if number > 0 else ''}{show(number)}"
