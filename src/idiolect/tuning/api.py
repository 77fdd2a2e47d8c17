"""`tune`: every method gets the same number of trials on validation data; each trial is recorded when it ends, and
what follows depends on the records alone, so an interrupted tuning goes on as if nothing had happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..comparison.api import check_needs, marked, separate, shared_engine
from ..comparison.entrants import resolve_methods
from ..contract import Method
from ..core.errors import IdiolectError, InputError, MissingExtraError
from ..core.files import write_text
from ..core.randomness import torch_seed
from ..core.registry import describe
from ..methods.fedavg import FedAvg
from ..runs.api import make_plan
from ..runs.progress import Reporter
from ..runs.settings import Config
from ..runs.summary import better
from ..runs.trial import Trial, without_test
from .records import Attempt, Entrant, opened, record, with_known_engine
from .space import RATE, Dimension, spaces, with_values

CHOSEN = "tuned.yaml"
DIGITS = 3
"""Significant digits of the values that are tried."""


@dataclass(frozen=True)
class Tuned:
    """A method after its trials: the best expression and rate, and its validation score beside that of the first trial,
    which is the method as it was given."""

    method: str
    expression: str
    lr: float
    score: float
    before: float
    trials: int
    failed: int


@dataclass(frozen=True)
class Tuning:
    """All methods with what was chosen for them, and all trials."""

    methods: tuple[Tuned, ...]
    trials: tuple[Attempt, ...]
    metric: str
    direction: str
    config: Config
    folder: Path | None = None

    def __getitem__(self, method: str) -> Tuned:
        """What was chosen for a method, by the expression that was given."""
        return next(each for each in self.methods if each.method == method)

    @property
    def comparison(self) -> dict[str, Any]:
        """The chosen options as settings of a comparison, with one `lr` where all chose the same, else with a mapping
        `rates` from expressions; without methods of which no trial succeeded."""
        settings = {k: v for k, v in self.config.as_dict().items() if k != "method"}
        rates = {each.expression: each.lr for each in self.methods if not math.isnan(each.score)}
        common = len(set(rates.values())) == 1
        chosen = settings | {"lr": next(iter(rates.values()))} if common else {"rates": rates} | settings
        return {"methods": list(rates)} | chosen


def tune(
    methods: str | Sequence[str | Method],
    data: Any = "digits",
    *,
    trials: int = 10,
    space: Sequence[str] = (),
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Tuning:
    """Choose the options and the learning rate of each method by validation, with equally many trials for all.

    The first trial of a method is the method as given; the others are proposed by Optuna's TPE from those before.

    Args:
        methods: expressions, as a list or split at commas. What an expression sets stays; other numbers are tuned.
        data: as for `run`. Test data are not touched.
        trials: how many each method gets.
        space: what may be tried, where the derived ranges do not suit: `mu=0.001:1:log`, `ditto.lam=0.1:1`,
            `estimator=paf,pc`, or one value that stays.
        out: a folder; called again with it, the tuning goes on, and trials and methods may be added.
        reporter: is told how the trials go on.
        settings: any other argument of `run`: settings such as rounds or partition, or own objects.

    >>> tuning = tune("fedprox", clients=5, rounds=1, trials=1, model="linear")
    >>> tuning["fedprox"].expression, tuning["fedprox"].lr, tuning["fedprox"].trials
    ('fedprox', 0.05, 1)
    """
    optuna()
    if trials < 1:
        raise InputError(f"trials={trials} is not allowed; give each method at least 1")
    given, own = separate(data, settings)
    folder = None if out is None else Path(out)
    config = with_known_engine(marked(given), folder)
    chosen = {describe(each): each for each in resolve_methods(methods)}
    entrants = [Entrant(name, chosen[name], each) for name, each in spaces(chosen, space, config.lr).items()]
    plan = make_plan(replace(config, method="fedavg"), own, FedAvg())
    own = {**own, "data": without_test(plan.data)}
    for each in entrants:
        check_needs(each.method, make_plan(replace(config, method=each.name), own, each.method))
    config = replace(config, engine=shared_engine(config.engine, plan, 1))
    metric, judged = next(iter(plan.tasks[0].metrics.items()))
    terms = Terms(config, own, metric, judged.higher_is_better, trials)
    records = opened(folder, config, entrants)
    carry_out(entrants, terms, records, folder, reporter or Reporter())
    counted = [each for each in records if each.method in chosen and each.number < trials]
    result = Tuning(
        tuple(best([each for each in counted if each.method == name], terms.higher) for name in chosen),
        tuple(counted),
        metric,
        "higher" if terms.higher else "lower",
        config,
        folder,
    )
    if folder is not None:
        write_text(folder / CHOSEN, yaml.safe_dump(result.comparison, sort_keys=False))
    return result


@dataclass(frozen=True)
class Terms:
    """What is the same for all methods."""

    config: Config
    own: Mapping[str, Any]
    metric: str
    higher: bool
    trials: int


def carry_out(
    entrants: Sequence[Entrant], terms: Terms, records: list[Attempt], folder: Path | None, told: Reporter
) -> None:
    """Make the trials that are missing, in turns, and add each to the records when it is done."""
    done = {(each.method, each.number) for each in records}
    left = [(each, n) for n in range(terms.trials) for each in entrants if (each.name, n) not in done]
    told.begin(len(left), len(left) * terms.config.rounds)
    for entrant, number in left:
        before = [each for each in records if each.method == entrant.name]
        records.append(attempt(entrant, number, proposed(entrant, number, before, terms), terms, told))
        if folder is not None:
            record(folder, records)


def optuna() -> Any:
    """The package Optuna, quiet."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("tuning needs the package optuna: pip install idiolect[tune]") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def proposed(entrant: Entrant, number: int, before: Sequence[Attempt], terms: Terms) -> dict[str, Any]:
    """The values to try next: first the method as given, then what TPE proposes from the trials before."""
    space, config = entrant.space, terms.config
    given = {path: config.lr if path == RATE else value_at(entrant.method, path) for path in space}
    start = {path: each.values[0] if len(each.values) == 1 else given[path] for path, each in space.items()}
    if number == 0 and all(space[path].holds(each) for path, each in start.items()):
        return start
    library = optuna()
    seed = torch_seed(config.seed, f"tune {entrant.name}", number) % 2**32
    sampler = library.samplers.TPESampler(seed=seed, n_startup_trials=max(3, min(10, terms.trials // 3)))
    study = library.create_study(direction="maximize" if terms.higher else "minimize", sampler=sampler)
    distributions = {path: distribution(library, each) for path, each in space.items()}
    done, failed = library.trial.TrialState.COMPLETE, library.trial.TrialState.PRUNED  # which TPE takes for worse
    for each in before:
        study.add_trial(
            library.trial.create_trial(
                state=failed if each.score is None else done,
                value=each.score,
                params=dict(each.values),
                distributions=distributions,
            )
        )
    asked = study.ask(distributions)
    return {path: rounded(space[path], asked.params[path]) for path in space}


def distribution(library: Any, dimension: Dimension) -> Any:
    """A dimension as Optuna has it."""
    if dimension.values:
        return library.distributions.CategoricalDistribution(dimension.values)
    if dimension.whole:
        return library.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return library.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def rounded(dimension: Dimension, given: Any) -> Any:
    """A value with few digits, within its dimension."""
    if dimension.values or dimension.whole:
        return given
    return min(max(float(f"{given:.{DIGITS}g}"), dimension.low), dimension.high)


def value_at(method: Any, path: str) -> Any:
    """The option at a path, as in `inner.lam`."""
    for part in path.split("."):
        method = getattr(method, part)
    return method


def attempt(entrant: Entrant, number: int, values: Mapping[str, Any], terms: Terms, told: Reporter) -> Attempt:
    """Carry out one trial; one that cannot be run, or whose score is not a number, is recorded with the reason."""
    label, method = f"{entrant.name} trial {number + 1}", entrant.method
    score, at, steps, seconds, error = math.nan, 0, 0, 0.0, ""
    rate = values.get(RATE, terms.config.lr)
    told.start(label, terms.config.rounds)
    try:
        method = with_values(method, values)
        config = replace(terms.config, method=describe(method), lr=rate)
        trial = Trial(make_plan(config, terms.own, method), config.engine, config.eval_every)
        trial.advance(config.rounds, partial(told.step, label))
        (score, at), steps, seconds = trial.best, trial.steps, round(trial.seconds, 3)
        trial.store.close()
        error = "" if math.isfinite(score) else "its validation score is not a number"
    except IdiolectError as reason:
        error = str(reason)
    metric = terms.metric
    told.end(label, {"metric": metric, metric: {"selected": {"weighted": score}}, "seconds": seconds})
    kept = score if math.isfinite(score) else None
    return Attempt(entrant.name, number, dict(values), describe(method), rate, kept, at, steps, seconds, error)


def best(tried: Sequence[Attempt], higher: bool) -> Tuned:
    """What was chosen for a method: the best of its trials, of equal ones the first."""
    chosen = tried[0]
    for each in tried[1:]:
        chosen = each if better(number(each), number(chosen), higher) else chosen
    failed = sum(each.score is None for each in tried)
    return Tuned(chosen.method, chosen.expression, chosen.lr, number(chosen), number(tried[0]), len(tried), failed)


def number(each: Attempt) -> float:
    """A trial's score; NaN where there is none."""
    return math.nan if each.score is None else each.score
