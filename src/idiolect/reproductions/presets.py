"""The presets that come out of tuning, from committed results alone, as the file that the package reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..advice.presets import KINDS, name_optimizer
from ..contract import methods as registry
from ..core.registry import describe
from ..runs.settings import configure
from ..tuning.space import LEARNING_RATE, paths
from .claims import Claim
from .files import ClaimResult, define, read_result, result_path
from .reading import read_claims

HEAD = """# What tuning found, by what clients differ in, optimiser and method. Written by scripts/pages from results in
# reproductions/results: `lr` is the middle one of the learning rates that were chosen, which stand beside it.
"""
FAR = 2.0
"""A tuned value is called far from the default where it is more than so many times as large or as small."""


class Chosen(NamedTuple):
    """What one tuning chose for a method."""

    kind: str
    optimizer: str
    method: str
    expression: str
    lr: float
    where: str


def list_chosen(folder: Path) -> Iterator[Chosen]:
    """What the tunings of all claims with a kind and a current result chose, of each case that was tuned on."""
    for claim in read_claims(folder).values():
        result = read_result(result_path(folder, claim.name)) if claim.kind else None
        if result is not None and result["definition"] == define(claim):
            yield from list_chosen_of(claim, result)


def list_chosen_of(claim: Claim, result: ClaimResult) -> Iterator[Chosen]:
    """The same of one claim; of cases that share a tuning, once."""
    tuned_on = claim.tuning.case if claim.tuning else ""
    for case in result["cases"]:
        if tuned_on and case["case"] != tuned_on:
            continue
        config = configure({**case["settings"], "method": "fedavg"})
        where = f"{claim.name} ({case['case']})" if case["case"] and not tuned_on else claim.name
        for method in case["methods"]:
            if method.get("trials") and method["expression"] is not None:
                optimizer = name_optimizer(config.build_optimizer())
                yield Chosen(claim.kind, optimizer, method["method"], method["expression"], method["lr"], where)


def make_presets(folder: Path) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """The presets as plain values: by kind, optimiser and method."""
    grouped: dict[tuple[str, str, str], list[Chosen]] = {}
    for each in list_chosen(folder):
        grouped.setdefault((each.kind, each.optimizer, each.method), []).append(each)
    made: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for kind, optimizer, method in sorted(grouped, key=lambda key: (KINDS.index(key[0]), *key[1:])):
        of_method = grouped[kind, optimizer, method]
        expression = Counter(each.expression for each in of_method).most_common(1)[0][0]
        rates = {each.where: each.lr for each in of_method if each.expression == expression}
        entry = {"method": expression, "lr": middle(list(rates.values())), "rates": rates}
        made.setdefault(kind, {}).setdefault(optimizer, {})[method] = entry
    return made


def middle(values: list[float]) -> float:
    """The median; of an even number the lower one, so that it is one that was tried.

    >>> middle([0.1, 1.0, 0.01]), middle([0.1, 0.3])
    (0.1, 0.1)
    """
    return sorted(values)[(len(values) - 1) // 2]


def write_presets(folder: Path) -> str:
    """The file of presets."""
    made = make_presets(folder)
    return HEAD + (yaml.safe_dump(made, sort_keys=False) if made else "{}\n")


# -- beside the defaults ----------------------------------------------------------------------------------


def write_distances(folder: Path) -> str:
    """A table of tuned values that are far from the defaults, which are the papers'."""
    made = make_presets(folder)
    lines = ["| method | option | default | tuned | clients | optimiser |", "|---|---|---:|---:|---|---|"]
    for kind, of_kind in made.items():
        for optimizer, of_optimizer in of_kind.items():
            for method, entry in of_optimizer.items():
                for option, (default, tuned) in far_options(method, entry["method"]).items():
                    lines.append(f"| `{method}` | `{option}` | {default} | {tuned} | {kind} | {optimizer} |")
    return "\n".join(lines) if len(lines) > 2 else "*No tuned option is far from its default.*"


def far_options(given: str, chosen: str) -> Mapping[str, tuple[Any, Any]]:
    """The options in which a tuned method is far from the default, each with both values.

    >>> far_options("ditto", "ditto(lam=0.1)")
    {'lam': (1.0, 0.1)}
    """
    method, found = registry.build(given), {}
    tuned = registry.build(chosen)
    for path in paths(method):
        if path == LEARNING_RATE or describe(method) == describe(tuned):
            continue
        before, after = find(method, path), find(tuned, path)
        if before != after and is_far(before, after):
            found[path] = (before, after)
    return found


def find(method: Any, path: str) -> Any:
    """The value of an option by its path."""
    for name in path.split("."):
        method = getattr(method, name)
    return method


def is_far(before: Any, after: Any) -> bool:
    """Whether two different values are far from each other; what are not two positive numbers always are."""
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in (before, after))
    return not numbers or abs(math.log(after / before)) > math.log(FAR)
