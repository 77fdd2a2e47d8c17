"""Reading claims from their files. Everything is checked here, before anything runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..advice.presets import KINDS
from ..comparison.budget import check_budget
from ..comparison.entrants import resolve_methods, resolve_seeds
from ..core.errors import InputError
from ..core.options import did_you_mean
from ..core.registry import describe
from ..runs.settings import configure, read_config
from ..tuning.space import parse_dimension
from . import model_measures  # noqa: F401 (they register themselves)
from .claims import OTHERS, RELATIONS, Case, Claim, Operand, Rule, Space
from .measures import MEASURES

KEYS = (
    "paper",
    "where",
    "claim",
    "setup",
    "scaled",
    "settings",
    "cases",
    "methods",
    "tuning",
    "seeds",
    "verdicts",
    "quick",
    "not_runnable",
    "kind",
    "budget",
    "minutes",
)
FEDERATIONS = "federations"
"""The key of a file that holds several claims, which differ in their settings."""
_RULE_KEYS = (*RELATIONS, "says", "than", "measure", "theirs", "within", "case")


def read_claims(folder: Path) -> dict[str, Claim]:
    """All claims of a folder, by name."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise InputError(
            f"{folder} holds no claims (*.yaml); run this in a clone of the repository, or name the folder: --claims"
        )
    claims: dict[str, Claim] = {}
    for path in paths:
        for claim in read_file(path):
            if claim.name in claims:
                raise InputError(f"{path} holds the claim {claim.name!r}, which another file has; rename one of them")
            claims[claim.name] = claim
    return claims


def read_claim(path: Path) -> Claim:
    """The only claim of a file, checked."""
    (claim,) = read_file(path)
    return claim


def read_file(path: Path) -> list[Claim]:
    """The claims of a file, checked: one, or one for each of its federations, which is named after both."""
    values = read_config(path)
    try:
        federations = values.pop(FEDERATIONS, None)
        if federations is None:
            return [_make_claim(path.stem, values)]
        return [_make_claim(f"{path.stem}-{name}", _join(values, own)) for name, own in federations.items()]
    except InputError as error:
        error.add_note(f"in {path}")
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a claim: {type(error).__name__} {error}") from error


def _join(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of all federations, and of one of them, whose settings are added to the common ones."""
    return {**common, **own, "settings": {**common.get("settings", {}), **own.get("settings", {})}}


def _make_claim(name: str, values: Mapping[str, Any]) -> Claim:
    _require_known(values, KEYS)
    head = {"name": name, "paper": values["paper"], "where": values["where"], "says": values["claim"]}
    if reason := values.get("not_runnable"):
        return Claim(**head, not_runnable=reason)
    methods = tuple(describe(method) for method in resolve_methods(values["methods"]))
    common = values.get("settings", {})
    named = values.get("cases") or {"": {}}
    rules = values.get("verdicts", ())
    kind, budget = values.get("kind", ""), values.get("budget", "rounds")
    check_budget(budget)
    if kind and kind not in KINDS:
        raise InputError(f"there is no kind {kind!r}.{did_you_mean(str(kind), KINDS)} Kinds: {', '.join(KINDS)}.")
    cases = tuple(
        Case(
            case,
            {**common, **own},
            tuple(_make_rule(rule, case, methods, named) for rule in rules if _holds_in(rule, case)),
        )
        for case, own in named.items()
    )
    for case in cases:
        configure({**case.settings, "method": methods[0]})
    return Claim(
        **head,
        setup=values["setup"],
        scaled=values["scaled"],
        methods=methods,
        tuning=_make_space(values.get("tuning"), methods),
        seeds=tuple(resolve_seeds(values.get("seeds", 5), 0)),
        cases=cases,
        quick=values.get("quick", {}),
        kind=kind,
        budget=budget,
        minutes=float(values.get("minutes", math.nan)),
    )


def _holds_in(rule: Mapping[str, Any], case: str) -> bool:
    """Whether a rule is about a case: the one that it names, else every one."""
    return bool(rule.get("case", case) == case)


def _make_rule(values: Mapping[str, Any], case: str, methods: Sequence[str], cases: Mapping[str, Any]) -> Rule:
    _require_known(values, _RULE_KEYS)
    relations = [name for name in RELATIONS if name in values]
    if len(relations) != 1:
        raise InputError(
            f"a verdict needs one of {', '.join(RELATIONS)}; {values.get('says')!r} has {relations or 'none'}"
        )
    if (about := values.get("case", case)) not in cases:
        raise InputError(f"a verdict is about the case {about!r}, which is none of {', '.join(cases)}")
    (relation,) = relations
    left = _make_operand(values[relation], methods, cases)
    than = values["than"]
    others = [method for method in methods if method != left.method] if than == "all" else than
    right = tuple(
        _make_operand(other, methods, cases) for other in (others if isinstance(others, list | tuple) else [others])
    )
    measure = values.get("measure", "score")
    if measure not in MEASURES:
        raise InputError(
            f"there is no measure {measure!r}.{did_you_mean(measure, MEASURES)} Measures: {', '.join(MEASURES)}."
        )
    if (relation == "equal") != ("within" in values):
        raise InputError("a verdict with `equal` says `within` how much, and no other does")
    theirs = values.get("theirs", {})
    if any(isinstance(numbers, Mapping) for numbers in theirs.values()):
        theirs = theirs.get(case, {})
    paper = {str(_make_operand(side, methods, cases)): float(number) for side, number in theirs.items()}
    return Rule(values["says"], relation, left, right, measure, paper, float(values.get("within", 0)))


def _make_operand(text: str | float, methods: Sequence[str], cases: Mapping[str, Any]) -> Operand:
    """A side of a comparison: `METHOD`, `METHOD @ CASE` or a number."""
    if isinstance(text, int | float):
        return Operand(number=float(text))
    expression, _, case = (part.strip() for part in text.partition(" @ "))
    (built,) = resolve_methods([expression])
    method = describe(built)
    if method not in methods:
        raise InputError(
            f"{method} is none of the methods.{did_you_mean(method, methods)} Methods: {', '.join(methods)}."
        )
    if case and case not in cases:
        raise InputError(f"{text!r} names the case {case!r}, which is none of {', '.join(cases)}")
    return Operand(method, case)


def _make_space(values: Mapping[str, Any] | None, methods: Sequence[str]) -> Space | None:
    if values is None:
        return None
    _require_known(values, [entry.name for entry in dataclasses.fields(Space)])
    space = dict(values.get("values", {}))
    named = {
        key if key == OTHERS else describe(resolve_methods([key])[0]): tuple(texts) for key, texts in space.items()
    }
    if unknown := [key for key in named if key != OTHERS and key not in methods]:
        raise InputError(f"the tuning names {', '.join(unknown)}, which is none of the methods")
    if bool(named) == bool(values.get("of")):
        raise InputError("a tuning lists `values` to try, or says `of` which claim it is; give one of them")
    for text in (text for texts in named.values() for text in texts):
        parse_dimension(text)
    for method in methods if named else ():
        texts = named.get(method, named.get(OTHERS, ()))
        if not any(text.startswith("lr=") for text in texts):
            raise InputError(f"the tuning of {method} does not try learning rates; list them, as in lr=0.01,0.1,1")
    like = {
        describe(resolve_methods([a])[0]): describe(resolve_methods([b])[0]) for a, b in values.get("like", {}).items()
    }
    return Space(**{**values, "values": named, "like": like, "without": tuple(values.get("without", ()))})


def _require_known(values: Mapping[str, Any], known: Sequence[str]) -> None:
    if wrong := [key for key in values if key not in known]:
        raise InputError(
            f"a claim has no {wrong[0]!r}.{did_you_mean(str(wrong[0]), known)} It may have {', '.join(known)}."
        )
