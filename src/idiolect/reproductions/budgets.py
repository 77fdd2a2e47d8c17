"""Equal budgets of claims that ask for them: how many rounds each method gets for the gradients that FedAvg takes, and
which methods cannot run at all. Both are found once, by a few rounds, and kept beside the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..comparison.budget import measure_rounds
from ..comparison.conditions import count_fedavg_gradients
from ..contract import methods as registry
from ..core.errors import IdiolectError
from ..core.files import write_text
from ..core.names import file_name
from ..methods.fedavg import FedAvg
from ..runs.settings import configure
from ..runs.setup import check_needs, make_plan, resolve_data
from .claims import Case, Claim
from .folders import digest

Fitted = Mapping[str, Mapping[str, int | str]]
"""The rounds of every method, or why it cannot run, by case."""


def fit_rounds(claim: Claim, cache: Path, read_only: bool = False) -> Fitted:
    """The rounds of a claim's methods; empty where all have the same, or where nothing was measured and nothing may
    be."""
    if claim.budget == "rounds":
        return {}
    found = {}
    for case in claim.cases:
        settings = {**case.settings, "seed": claim.tuning.seed if claim.tuning else claim.seeds[0]}
        path = cache / "budgets" / f"{file_name(claim.name)}-{digest(list(claim.methods), settings)}.json"
        if path.is_file():
            found[case.name] = json.loads(path.read_text(encoding="utf-8"))
        elif not read_only:
            found[case.name] = fit_case(claim, replace(case, settings=settings))
            write_text(path, json.dumps(found[case.name], indent=1) + "\n")
    return found


def fit_case(claim: Claim, case: Case) -> dict[str, int | str]:
    """The same for one case, measured."""
    config = configure({**case.settings, "method": "fedavg"})
    data = resolve_data(config, {})
    allowed = count_fedavg_gradients(make_plan(config, {"data": data, "method": FedAvg()}))
    fitted: dict[str, int | str] = {}
    for name in claim.methods:
        try:
            plan = make_plan(replace(config, method=name), {"data": data, "method": registry.build(name)})
            check_needs(plan)
            fitted[name] = measure_rounds(plan, config.engine).fit_rounds(allowed, plan.rounds)
        except IdiolectError as error:
            fitted[name] = str(error)
    return fitted


def keep_runnable(claim: Claim, fitted: Fitted) -> tuple[Claim, dict[str, str]]:
    """The claim with the methods that can run in every case, and why the others cannot."""
    reasons = {
        method: str(found) for of_case in fitted.values() for method, found in of_case.items() if isinstance(found, str)
    }
    return replace(claim, methods=tuple(name for name in claim.methods if name not in reasons)), reasons


def with_rounds(case: Case, method: str, fitted: Fitted) -> Case:
    """The case as a method runs in it: with its own number of rounds, where it has one."""
    rounds = fitted.get(case.name, {}).get(method)
    return replace(case, settings={**case.settings, "rounds": rounds}) if isinstance(rounds, int) else case
