"""What comes out of a claim: numbers per method and seed, and the verdicts on them, as the JSON that is committed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparison.statistics import interval
from ..core.errors import InputError
from ..core.files import finite_or_null, write_text
from .claims import Case, Claim, Operand, Rule
from .folders import RESULTS, digest
from .machine import describe_machine
from .measures import MEASURES, FinishedRun
from .tunings import Settled
from .verdicts import NOT_RUNNABLE, Difference, Verdict, judge

SCHEMA = 1
COSTS = ("seconds", "gradients", "bytes_up", "bytes_down", "peak_memory_mb", "refused")
"""What a result keeps of a run's summary beside its scores."""
ClaimResult = dict[str, Any]
"""A claim's result as plain values, as in its JSON."""


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method in the order of the seeds, None where one has no result, and why."""

    method: str
    settled: Settled | None
    runs: tuple[FinishedRun | None, ...]
    failed: str = ""


@dataclass(frozen=True)
class CaseRuns:
    """The runs of a case."""

    case: Case
    methods: tuple[MethodRuns, ...]


def make_result(claim: Claim, cases: Sequence[CaseRuns]) -> ClaimResult:
    """The result of a claim from its runs."""
    from .. import __numerics__, __version__

    command = f"idiolect reproduce {claim.name}" + " --quick" * claim.is_quick
    head = {"schema": SCHEMA, "claim": claim.name, "quick": claim.is_quick, "command": command}
    if claim.not_runnable:
        return head | {"verdict": NOT_RUNNABLE, "why": claim.not_runnable}
    values = measure_all(claim, cases)
    body = [describe_case(claim, each, values) for each in cases]
    return head | {
        "definition": define(claim),
        "version": __version__,
        "numerics": __numerics__,
        "machine": describe_machine(),
        "seeds": list(claim.seeds),
        "seconds": round(sum(case["seconds"] for case in body), 1),
        "cases": body,
    }


def define(claim: Claim) -> str:
    """A hash of what determines a claim's numbers and verdicts."""
    values = dataclasses.asdict(claim)
    return digest({name: values[name] for name in ("methods", "tuning", "seeds", "cases")})


# -- numbers ----------------------------------------------------------------------------------------------

Values = Mapping[tuple[str, str, str], list[float]]
"""A measure's values in the order of the seeds, by case, method and measure."""


def measure_all(claim: Claim, cases: Sequence[CaseRuns]) -> Values:
    """The score of every run, and what else the rules are about."""
    wanted = {(each.case.name, runs.method, "score") for each in cases for runs in each.methods}
    for case, rule in claim.rules:
        wanted |= {(side.case or case.name, side.method, rule.measure) for side in sides(rule) if side.method}
    runs_of = {(each.case.name, runs.method): runs.runs for each in cases for runs in each.methods}
    return {
        (case, method, name): [math.nan if run is None else MEASURES[name](run) for run in runs_of[case, method]]
        or [math.nan] * len(claim.seeds)
        for case, method, name in sorted(wanted)
    }


def sides(rule: Rule) -> tuple[Operand, ...]:
    """Everything that a rule compares."""
    return (rule.left, *rule.right)


def describe_case(claim: Claim, runs: CaseRuns, values: Values) -> dict[str, Any]:
    """A case: its methods with their runs, and the verdicts."""
    case = runs.case
    methods = [describe_method(claim, case, each, values) for each in runs.methods]
    verdicts = [describe_verdict(rule, *judge_rule(claim, case, rule, values)) for rule in case.rules]
    summaries = [run.summary for each in runs.methods for run in each.runs if run is not None]
    first = summaries[0] if summaries else {}
    return {
        "case": case.name,
        "settings": dict(case.settings),
        "metric": first.get("metric"),
        "partition": first.get("partition", {}).get("hash"),
        "seconds": round(sum(each["seconds"] for each in methods), 1),
        "methods": methods,
        "verdicts": verdicts,
    }


def describe_method(claim: Claim, case: Case, runs: MethodRuns, values: Values) -> dict[str, Any]:
    """A method: what was chosen for it by which trials, and a record per seed."""
    settled = runs.settled
    own = {
        name: found for (where, method, name), found in values.items() if (where, method) == (case.name, runs.method)
    }
    records = []
    for place, (seed, run) in enumerate(zip(claim.seeds, runs.runs or [None] * len(claim.seeds), strict=True)):
        costs = {} if run is None else {name: run.summary[name] for name in COSTS}
        at = None if run is None else run.summary[run.summary["metric"]]["selected"]["round"]
        records.append({"seed": seed, **{name: found[place] for name, found in own.items()}, "round": at, **costs})
    trials = settled.trials if settled else ()
    tried = [{"expression": trial.expression, "lr": trial.lr, "score": trial.score} for trial in trials]
    spent = sum(float(record.get("seconds", 0)) for record in records)
    return {
        "method": runs.method,
        "expression": settled.expression if settled else None,
        "lr": settled.lr if settled else None,
        **({"like": settled.like} if settled and settled.like else {"trials": tried}),
        **({"failed": runs.failed} if runs.failed else {}),
        "seconds": round(spent + (0 if settled and settled.like else sum(trial.seconds for trial in trials)), 1),
        "runs": records,
    }


# -- verdicts ---------------------------------------------------------------------------------------------


def judge_rule(claim: Claim, case: Case, rule: Rule, values: Values) -> tuple[Verdict, dict[str, float]]:
    """The verdict on a rule, and the means of what it compares."""

    def find(side: Operand) -> list[float]:
        if side.number is not None:
            return [side.number] * len(claim.seeds)
        return values[side.case or case.name, side.method, rule.measure]

    others = {str(side): find(side) for side in rule.right}
    verdict = judge(rule.relation, find(rule.left), others, rule.within)
    return verdict, {str(side): interval(find(side)).mean for side in sides(rule)}


def describe_verdict(rule: Rule, verdict: Verdict, means: Mapping[str, float]) -> dict[str, Any]:
    """A verdict as plain values, with ours beside theirs."""
    return {
        "says": rule.says,
        "relation": rule.relation,
        "measure": rule.measure,
        "left": str(rule.left),
        **({"within": rule.within} if rule.relation == "equal" else {}),
        "verdict": verdict.verdict,
        "words": verdict.words,
        "ours": dict(means),
        "theirs": dict(rule.theirs),
        "differences": [describe_difference(each) for each in verdict.differences],
    }


def describe_difference(each: Difference) -> dict[str, Any]:
    """A difference as plain values."""
    return {"other": each.other, **each.paired._asdict(), "p_holm": each.p_holm, "pairs": each.pairs}


# -- files ------------------------------------------------------------------------------------------------


def result_path(folder: Path, name: str) -> Path:
    """Where the result of a claim lies, in the folder of claims."""
    return folder / RESULTS / f"{name}.json"


def write_result(result: ClaimResult, path: Path) -> None:
    """Write a result; what is not finite is null."""
    write_text(path, json.dumps(finite_or_null(result), indent=1) + "\n")


def read_result(path: Path) -> ClaimResult | None:
    """A result from its file; None where there is none."""
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; take it from the repository again") from error
    return dict(values)
