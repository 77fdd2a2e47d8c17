"""What comes out of a claim: numbers per method and seed, and the verdicts on them, as the JSON that is committed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..comparison.statistics import interval
from ..runs.folder import CONFIG
from ..runs.settings import read_config
from ..tuning.records import TrialRecord
from .claims import Case, Claim, Operand, Rule, Space
from .files import ClaimResult, define
from .machine import describe_machine
from .measures import MEASURES, FinishedRun, unseen
from .tunings import Settled
from .verdicts import NOT_RUNNABLE, Difference, Verdict, judge

SCHEMA = 1
COSTS = ("seconds", "gradients", "bytes_up", "bytes_down", "peak_memory_mb", "refused")
"""What a result keeps of a run's summary beside its scores."""
OWN = ("method", "lr", "seed", "rounds")
"""Settings in which the runs of a case differ."""
BELOW = "local"
"""The method below which clients are counted."""


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


def make_result(claim: Claim, cases: Sequence[CaseRuns], skipped: Mapping[str, str] | None = None) -> ClaimResult:
    """The result of a claim from its runs; `skipped` methods could not run, for a reason."""
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
        **({"kind": claim.kind} if claim.kind else {}),
        **({"budget": claim.budget} if claim.budget != "rounds" else {}),
        **({"skipped": dict(skipped)} if skipped else {}),
        "tuning": describe_space(claim.tuning),
        "seconds": round(sum(case["seconds"] for case in body), 1),
        "cases": body,
    }


def describe_space(space: Space | None) -> dict[str, Any] | None:
    """How methods were tuned, as plain values."""
    if space is None:
        return None
    values = {method: list(texts) for method, texts in space.values.items()}
    return {"of": space.of} if space.of else {"values": values, "seed": space.seed, "case": space.case}


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
    methods = [describe_method(claim, runs, each, values) for each in runs.methods]
    verdicts = [describe_verdict(rule, *judge_rule(claim, case, rule, values)) for rule in case.rules]
    summaries = [run.summary for each in runs.methods for run in each.runs if run is not None]
    first = summaries[0] if summaries else {}
    return {
        "case": case.name,
        "settings": dict(case.settings),
        "metric": first.get("metric"),
        "protocol": describe_protocol(runs),
        "partition": first.get("partition", {}).get("hash"),
        "seconds": round(sum(each["seconds"] for each in methods), 1),
        "methods": methods,
        "verdicts": verdicts,
    }


def describe_protocol(runs: CaseRuns) -> dict[str, Any]:
    """What holds for all runs of a case: how the round was selected, and every setting, those with defaults too."""
    for run in (run for each in runs.methods for run in each.runs if run is not None):
        settings = {name: value for name, value in read_config(run.folder / CONFIG).items() if name not in OWN}
        about = {name: run.summary.get(name) for name in ("point", "headline", "selection", "direction")}
        return about | {"settings": settings}
    return {}


def count_below(case: CaseRuns, runs: MethodRuns) -> list[float | None]:
    """The share of clients that a method serves worse than training alone does, seed by seed."""
    alone = next((each.runs for each in case.methods if each.method == BELOW), ())
    pairs = zip(runs.runs, alone, strict=False)
    return [None if own is None or other is None else share_below(own, other) for own, other in pairs]


def share_below(run: FinishedRun, other: FinishedRun) -> float:
    """The share of clients with a worse score in a run than in another, at the selected rounds."""
    scores, others = run.client_scores, other.client_scores
    sign = -1 if run.summary.get("direction") == "lower" else 1
    both = [name for name in scores if name in others]
    return sum(sign * scores[name] < sign * others[name] for name in both) / len(both) if both else math.nan


def describe_method(claim: Claim, case: CaseRuns, runs: MethodRuns, values: Values) -> dict[str, Any]:
    """A method: what was chosen for it by which trials, and a record per seed."""
    settled = runs.settled
    where = case.case.name
    own = {name: found for (at, method, name), found in values.items() if (at, method) == (where, runs.method)}
    below = count_below(case, runs) if claim.is_table else []
    records = []
    for place, (seed, run) in enumerate(zip(claim.seeds, runs.runs or [None] * len(claim.seeds), strict=True)):
        costs = {} if run is None else {name: run.summary[name] for name in COSTS}
        at = None if run is None else run.summary[run.summary["metric"]]["selected"]["round"]
        more = {"unseen": unseen(run), "below_local": below[place]} if claim.is_table and run is not None else {}
        scores = {name: found[place] for name, found in own.items()}
        records.append({"seed": seed, **scores, "round": at, **more, **costs})
    spent = sum(float(record.get("seconds", 0)) for record in records)
    rounds = next((run.summary["rounds_done"] for run in runs.runs if run is not None), None)
    return {
        "method": runs.method,
        "expression": settled.expression if settled else None,
        "lr": settled.lr if settled else None,
        **({"rounds": rounds} if claim.budget != "rounds" else {}),
        **describe_tuning(settled),
        **({"failed": runs.failed} if runs.failed else {}),
        "seconds": round(spent + trial_seconds(settled), 1),
        "runs": records,
    }


def describe_tuning(settled: Settled | None) -> dict[str, Any]:
    """The trials of a method; or the claim and the method whose trials stand for it."""
    if settled is not None and settled.origin:
        return {"tuned_in": settled.origin} | ({"like": settled.like} if settled.like else {})
    return {"trials": [describe_trial(trial) for trial in (settled.trials if settled else ())]}


def describe_trial(trial: TrialRecord) -> dict[str, Any]:
    """A trial as plain values."""
    values = {"expression": trial.expression, "lr": trial.lr, "score": trial.score, "seconds": trial.seconds}
    return values | ({"error": trial.error} if trial.error else {})


def trial_seconds(settled: Settled | None) -> float:
    """How long a method's own trials took; those of another claim count there."""
    return 0.0 if settled is None or settled.origin else sum(trial.seconds for trial in settled.trials)


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
