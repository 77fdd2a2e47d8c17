"""Who takes part in a comparison: methods, seeds and the baseline, from what the user writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import Method
from ..contract import methods as registry
from ..core.errors import InputError
from ..core.expressions import split
from ..core.options import check_option, coerce, did_you_mean, options_of
from ..core.registry import describe
from ..runs.settings import Config

MOST_SEEDS = 10_000


def resolve_methods(methods: str | Sequence[str | Method]) -> list[Method]:
    """The methods that a list describes; `all` is the whole registry."""
    if methods == "all":
        return [registry.build(name) for name in registry]
    parts = split(methods) if isinstance(methods, str) else list(methods)
    if not parts:
        raise InputError("no methods to compare; name some, as in 'local, fedavg, fedprox(mu=0.1)', or all")
    chosen = [registry.build(part) for part in parts]
    names = [describe(method) for method in chosen]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{', '.join(sorted(twice))} is given twice; name each method once")
    return chosen


def resolve_seeds(setting: int | str | Sequence[int], first: int) -> list[int]:
    """Seeds from a number of them (from `first` on), or from a list.

    >>> resolve_seeds(3, first=5), resolve_seeds("0, 5, 7", first=0)
    ([5, 6, 7], [0, 5, 7])
    """
    try:
        if isinstance(setting, str):
            numbers = [int(part) for part in setting.split(",") if part.strip()]
            setting = numbers if "," in setting else numbers[0]
        if isinstance(setting, int) and setting > MOST_SEEDS:
            raise InputError(f"seeds={setting} are too many; give at most {MOST_SEEDS:,}")
        seeds = list(range(first, first + setting)) if isinstance(setting, int) else [int(seed) for seed in setting]
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"seeds={setting!r} must be how many, as in 3, or which, as in 0,5,7") from error
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds={setting!r} must be at least one seed, all different and none below 0")
    return seeds


def resolve_baseline(baseline: str | Method | None, names: Sequence[str]) -> str:
    """The baseline's expression: the given one, else FedAvg, else the first method."""
    if not names:
        raise InputError("none of the methods can run here, so there is nothing to compare")
    if baseline is None:
        return "fedavg" if "fedavg" in names else names[0]
    name = describe(registry.build(baseline))
    if name not in names:
        raise InputError(
            f"the baseline {name} is not among the methods.{did_you_mean(name, names)} Methods: {', '.join(names)}."
        )
    return name


def resolve_own(what: str, setting: str, values: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any]:
    """The values of a setting by expression, for methods that take part and have their own; `what` is the argument.

    >>> resolve_own("rates", "lr", {"ditto(lam=0.50)": 0.1}, ["fedavg", "ditto(lam=0.5)"])
    {'ditto(lam=0.5)': 0.1}
    """
    info, own = options_of(Config)[setting], dict[str, Any]()
    for text, value in (values or {}).items():
        name = describe(registry.build(text))
        if name not in names:
            raise InputError(f"{what}: {name} is not among the methods.{did_you_mean(name, names)}")
        own[name] = coerce(info, value)
        check_option(f"{what} of {name}", info, own[name])
    return own


def resolve_rerun(rerun: str | Sequence[str | Method], names: Sequence[str]) -> list[str]:
    """The expressions of the methods that are run anew; `all` is every one.

    >>> resolve_rerun("ditto(lam=0.50)", ["fedavg", "ditto(lam=0.5)"])
    ['ditto(lam=0.5)']
    """
    if rerun == "all":
        return list(names)
    chosen = [describe(registry.build(part)) for part in (split(rerun) if isinstance(rerun, str) else rerun)]
    for name in chosen:
        if name not in names:
            raise InputError(f"rerun: {name} is not among the methods.{did_you_mean(name, names)}")
    return chosen
