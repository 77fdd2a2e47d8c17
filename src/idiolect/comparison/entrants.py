"""Who takes part in a comparison: methods, seeds and the baseline, from what the user writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..contract import Method
from ..contract import methods as registry
from ..core.errors import InputError
from ..core.expressions import split
from ..core.options import check_option, coerce, did_you_mean, options_of
from ..core.registry import describe
from ..runs.settings import Config


def resolve_methods(given: str | Sequence[str | Method]) -> list[Method]:
    """The methods that a list describes; `all` is the whole registry."""
    if given == "all":
        return [registry.build(name) for name in registry]
    parts = split(given) if isinstance(given, str) else list(given)
    if not parts:
        raise InputError("no methods to compare; name some, as in 'local, fedavg, fedprox(mu=0.1)', or all")
    chosen = [registry.build(part) for part in parts]
    names = [describe(each) for each in chosen]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{', '.join(sorted(twice))} is given twice; name each method once")
    return chosen


def resolve_seeds(given: int | str | Sequence[int], first: int) -> list[int]:
    """Seeds from a number of them (from `first` on), or from a list.

    >>> resolve_seeds(3, first=5), resolve_seeds("0, 5, 7", first=0)
    ([5, 6, 7], [0, 5, 7])
    """
    try:
        if isinstance(given, str):
            numbers = [int(part) for part in given.split(",") if part.strip()]
            given = numbers if "," in given else numbers[0]
        seeds = list(range(first, first + given)) if isinstance(given, int) else [int(each) for each in given]
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"seeds={given!r} must be how many, as in 3, or which, as in 0,5,7") from error
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds={given!r} must be at least one seed, all different and none below 0")
    return seeds


def resolve_baseline(given: str | Method | None, names: Sequence[str]) -> str:
    """The baseline's expression: the given one, else FedAvg, else the first method."""
    if not names:
        raise InputError("none of the methods can run here, so there is nothing to compare")
    if given is None:
        return "fedavg" if "fedavg" in names else names[0]
    name = describe(registry.build(given))
    if name not in names:
        raise InputError(
            f"the baseline {name} is not among the methods.{did_you_mean(name, names)} Methods: {', '.join(names)}."
        )
    return name


def resolve_rates(given: Mapping[str, float] | None, names: Sequence[str]) -> dict[str, float]:
    """Learning rates by expression, for methods that take part and have their own.

    >>> resolve_rates({"ditto(lam=0.50)": 0.1}, ["fedavg", "ditto(lam=0.5)"])
    {'ditto(lam=0.5)': 0.1}
    """
    info, rates = options_of(Config)["lr"], {}
    for text, rate in (given or {}).items():
        name = describe(registry.build(text))
        if name not in names:
            raise InputError(f"rates: {name} is not among the methods.{did_you_mean(name, names)}")
        check_option(f"rates of {name}", info, coerce(info, rate))
        rates[name] = float(rate)
    return rates
