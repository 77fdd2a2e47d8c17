"""`tune`: every method gets the same number of trials on validation data. Each trial is recorded when it ends, and an
interrupted tuning continues from the records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Unpack

import yaml

from ..comparison.conditions import choose_engine, keep_known_engine
from ..comparison.elsewhere import Follower
from ..comparison.entrants import resolve_methods
from ..contract import Method
from ..core.errors import IdiolectError, InputError
from ..core.files import write_text
from ..core.registry import describe
from ..core.tables import write_html
from ..engines.cluster.task_actor import Send
from ..engines.cluster.tasks import OnRay, Task, find_place
from ..methods.fedavg import FedAvg
from ..runs.arguments import Arguments
from ..runs.identity import identify
from ..runs.lock import lock_folder
from ..runs.notebook import reporting
from ..runs.progress import Reporter
from ..runs.settings import Config
from ..runs.setup import check_needs, make_plan, separate
from ..runs.summary import is_better
from ..runs.trial import Trial, describe_trial, without_test
from .presets import PRESETS, write_presets
from .records import SPEC, Candidate, TrialRecord, open_folder, write_trials
from .search import count_stepwise, load_optuna, propose, propose_stepwise
from .space import LEARNING_RATE, make_spaces, set_options
from .tables import chosen_table, failed_lines

CHOSEN = "tuned.yaml"
NEEDED = 3
"""How many trials of a method there must be before one is pruned."""


@dataclass(frozen=True)
class Tuned:
    """A method after its trials.

    Attributes:
        method: the expression that was given.
        expression, lr: what was chosen: the expression with the best options, and the learning rate; the method as
            given where no trial has a score.
        score: the validation score of what was chosen; `before` is that of the first trial, the method as given.
        trials, failed, pruned: how many trials there were, how many of them have no score since they failed, and how
            many were stopped early.
    """

    method: str
    expression: str
    lr: float
    score: float
    before: float
    trials: int
    failed: int
    pruned: int = 0


@dataclass(frozen=True, repr=False)
class Tuning:
    """All methods with what was chosen for them, and all trials."""

    methods: tuple[Tuned, ...]
    trials: tuple[TrialRecord, ...]
    metric: str
    direction: str
    config: Config
    folder: Path | None = None

    def __repr__(self) -> str:
        """What was tuned, and by how many trials."""
        return f"Tuning({', '.join(tuned.method for tuned in self.methods)}; {len(self.trials)} trials)"

    def _repr_html_(self) -> str:
        """What was chosen, in a notebook."""
        return write_html([chosen_table(self)], [repr(self), *failed_lines(self)])

    def __getitem__(self, method: str) -> Tuned:
        """What was chosen for a method, by the expression that was given."""
        return next(tuned for tuned in self.methods if tuned.method == method)

    @property
    def comparison(self) -> dict[str, Any]:
        """The chosen options as settings of a comparison: one `lr` where all chose the same, else `rates`, the learning
        rates by expression. Methods without a successful trial are left out."""
        settings = {k: v for k, v in self.config.as_dict().items() if k != "method"}
        rates = {tuned.expression: tuned.lr for tuned in self.methods if not math.isnan(tuned.score)}
        common = len(set(rates.values())) == 1
        chosen = settings | {"lr": next(iter(rates.values()))} if common else {"rates": rates} | settings
        return {"methods": list(rates)} | chosen


def tune(
    methods: str | Sequence[str | Method],
    data: Any = "digits",
    *,
    trials: int = 10,
    space: Sequence[str] = (),
    stepwise: bool = False,
    prune: bool = False,
    out: str | Path | None = None,
    on: str | None = None,
    reporter: Reporter | None = None,
    **settings: Unpack[Arguments],
) -> Tuning:
    """Choose the options and the learning rate of each method by validation, with equally many trials for all.

    The first trial of a method is the method as given; the others are proposed by Optuna's TPE from those before.

    Args:
        methods: expressions, as a list or split at commas. What an expression sets stays; other numbers are tuned.
        data: as for `run`. Test data are not touched.
        trials: how many each method gets.
        space: what may be tried, where the derived ranges do not suit: `mu=0.001:1:log`, `ditto.lam=0.1:1`,
            `estimator=paf,pc`, or one value that stays.
        stepwise: tune what `space` lists one after another instead, in this order: every value of the first, then with
            the best of it every value of the second, and so on. `trials` does not count then.
        prune: stop a trial after the first third of its rounds if its score is worse there than the median of the
            method's trials so far, from the fourth trial on. It counts as a trial, and is shown.
        out: a folder; called again with it, the tuning goes on, and trials and methods may be added.
        on: `ray`, or as in `ray(cpus=2)`, makes the trials of different methods at the same time, on any nodes of a
            cluster; by default if RAY_ADDRESS names one.
        reporter: receives how the trials go on.
        settings: any other argument of `run`: settings such as rounds or partition, or own objects.

    >>> tuning = tune("fedprox", clients=5, rounds=1, trials=1, model="linear")
    >>> tuning["fedprox"].expression, tuning["fedprox"].lr, tuning["fedprox"].trials
    ('fedprox', 0.05, 1)
    """
    if not stepwise:
        load_optuna()
    if trials < 1:
        raise InputError(f"trials={trials} is not allowed; give each method at least 1")
    if "method" in settings:
        raise InputError("a tuning has several methods; give methods=... instead of method=...")
    config, objects = separate({"data": data, **settings})
    place = find_place(on)
    folder = None if out is None else Path(out)
    config = keep_known_engine(config, folder and folder / SPEC)
    chosen = {describe(method): method for method in resolve_methods(methods)}
    if stepwise and not space:
        raise InputError("a stepwise tuning needs what to try; list values, as in space=['layers=1,2', 'tau=0.25,0.5']")
    make_spaces(chosen, space, config.lr, stepwise=stepwise)  # what is wrong is said before data are loaded
    plan = make_plan(replace(config, method="fedavg"), {**objects, "method": FedAvg()})
    spaces = make_spaces(chosen, space, config.lr, plan.tasks[0], stepwise)
    candidates = [Candidate(name, chosen[name], dimensions) for name, dimensions in spaces.items()]
    if stepwise:
        trials = max(count_stepwise(candidate, config.lr) for candidate in candidates)
    objects = {**objects, "data": without_test(plan.data)}
    for candidate in candidates:
        check_needs(make_plan(replace(config, method=candidate.name), {**objects, "method": candidate.method}))
    config = replace(config, engine=choose_engine(config.engine, plan, place=place))
    metric, judge = next(iter(plan.tasks[0].metrics.items()))
    shared = SharedSetup(config, objects, metric, judge.higher_is_better, trials, stepwise, prune)
    with lock_folder(folder):
        records = [] if folder is None else open_folder(folder, config, candidates, identify(plan, config), prune)
        with reporting(reporter) as shown:
            carry_out(candidates, shared, records, folder, shown, place)
    counted = tuple(record for record in records if record.method in chosen and record.number < trials)
    tuned = tuple(choose([record for record in counted if record.method == name], shared.higher) for name in chosen)
    result = Tuning(tuned, counted, metric, "higher" if shared.higher else "lower", config, folder)
    if folder is not None and result.comparison["methods"]:
        write_text(folder / CHOSEN, yaml.safe_dump(result.comparison, sort_keys=False))
        write_text(folder / PRESETS, write_presets(result))
    return result


@dataclass(frozen=True)
class SharedSetup:
    """What is the same for all methods: settings, the user's objects, the metric, and how many trials are made how."""

    config: Config
    objects: Mapping[str, Any]
    metric: str
    higher: bool
    trials: int
    stepwise: bool = False
    prune: bool = False

    @property
    def early_round(self) -> int:
        """After which round a trial may be pruned; none where it is the last."""
        early = math.ceil(self.config.rounds / 3)
        return early if self.prune and early < self.config.rounds else 0

    def count(self, candidate: Candidate) -> int:
        """How many trials a method gets."""
        return count_stepwise(candidate, self.config.lr) if self.stepwise else self.trials

    def propose(self, candidate: Candidate, before: Sequence[TrialRecord]) -> dict[str, Any]:
        """The values to try next, after a method's trials so far."""
        if self.stepwise:
            return propose_stepwise(candidate, before, self.config.lr, self.higher)
        return propose(candidate, before, self.config.lr, self.config.seed, self.trials, self.higher)


def carry_out(
    candidates: Sequence[Candidate],
    shared: SharedSetup,
    records: list[TrialRecord],
    folder: Path | None,
    reporter: Reporter,
    place: OnRay | None = None,
) -> None:
    """Make the trials that are missing, in turns, and add each to the records when it is done."""
    done = {(record.method, record.number) for record in records}
    left = [
        (candidate, n)
        for n in range(shared.trials)
        for candidate in candidates
        if n < shared.count(candidate) and (candidate.name, n) not in done
    ]
    reporter.begin(len(left), len(left) * shared.config.rounds)
    if place is not None and left:
        carry_out_elsewhere(left, shared, records, folder, reporter, place)
        return
    for candidate, number in left:
        before = [record for record in records if record.method == candidate.name]
        values = shared.propose(candidate, before)
        records.append(run_trial(candidate, number, values, shared, reporter, find_bar(before)))
        if folder is not None:
            write_trials(folder, records)


def carry_out_elsewhere(
    left: Sequence[tuple[Candidate, int]],
    shared: SharedSetup,
    records: list[TrialRecord],
    folder: Path | None,
    reporter: Reporter,
    place: OnRay,
) -> None:
    """The same on a cluster: methods go on beside each other, and each trial of a method waits for those before it,
    from which it is proposed."""
    queues: dict[str, list[tuple[Candidate, int]]] = {}
    for candidate, number in left:
        queues.setdefault(candidate.name, []).append((candidate, number))

    def next_task(name: str) -> Task:
        candidate, number = queues[name].pop(0)
        before = [record for record in records if record.method == name]
        values = shared.propose(candidate, before)
        return Task(label_trial(candidate, number), try_on_node, (candidate, number, values, shared, find_bar(before)))

    rounds = shared.config.rounds
    first = [next_task(name) for name in queues]
    follower = Follower(first, place, reporter, {task.label: (rounds, 0) for task in first})
    places = {name: at for at, name in enumerate(queues)}
    for task, event in follower.ends():
        if event.kind == "failed":
            raise event.value
        record: TrialRecord = event.value
        reporter.end(task.label, describe_record(record, shared))
        records.append(record)
        records.sort(key=lambda each: (each.number, places.get(each.method, -1)))
        if folder is not None:
            write_trials(folder, records)
        if queues[record.method]:
            follower.add(next_task(record.method), rounds)


def try_on_node(argument: tuple[Any, ...], folder: Path, send: Send) -> TrialRecord:
    """Carry out a trial on a node."""
    candidate, number, values, shared, bar = argument
    return make_trial(candidate, number, values, shared, send, bar)


def label_trial(candidate: Candidate, number: int) -> str:
    """The name of a trial in progress reports."""
    return f"{candidate.name} trial {number + 1}"


def describe_record(record: TrialRecord, shared: SharedSetup) -> dict[str, Any]:
    """What a reporter is told of a trial that ended."""
    return describe_trial(shared.metric, _score(record), record.seconds)


def find_bar(before: Sequence[TrialRecord]) -> float:
    """The median of what a method's trials scored after their first third; NaN where they are too few."""
    known = [record.early for record in before if record.early is not None]
    return median(known) if len(known) >= NEEDED else math.nan


def run_trial(
    candidate: Candidate,
    number: int,
    values: Mapping[str, Any],
    shared: SharedSetup,
    reporter: Reporter,
    bar: float = math.nan,
) -> TrialRecord:
    """Carry out one trial, and report it."""
    label = label_trial(candidate, number)
    reporter.start(label, shared.config.rounds)
    record = make_trial(candidate, number, values, shared, partial(reporter.step, label), bar)
    reporter.end(label, describe_record(record, shared))
    return record


def make_trial(
    candidate: Candidate,
    number: int,
    values: Mapping[str, Any],
    shared: SharedSetup,
    watch: Send,
    bar: float = math.nan,
) -> TrialRecord:
    """Carry out one trial; one that cannot be run, or whose score is not a number, is recorded with the reason, and one
    that is worse than `bar` after the first third of its rounds is stopped there."""
    method = candidate.method
    score, at, gradients, seconds, error = math.nan, 0, 0, 0.0, ""
    early, pruned = math.nan, 0
    lr = values.get(LEARNING_RATE, shared.config.lr)
    try:
        method = set_options(method, values)
        config = replace(shared.config, method=describe(method), lr=lr)
        trial = Trial(
            make_plan(config, {**shared.objects, "method": method}), config.engine, config.eval_every, config.select
        )
        if shared.early_round:
            trial.advance(shared.early_round, watch)
            early = trial.score()
            pruned = shared.early_round * is_better(bar, early, shared.higher) if math.isfinite(bar) else 0
        if not pruned:
            trial.advance(config.rounds, watch)
            score, at = trial.best
            error = "" if math.isfinite(score) else "its validation score is not a number"
        gradients, seconds = trial.gradients, round(trial.seconds, 3)
        trial.store.close()
    except IdiolectError as reason:
        error = str(reason)
    finite, known = (value if math.isfinite(value) else None for value in (score, early))
    return TrialRecord(
        candidate.name, number, dict(values), describe(method), lr, finite, at, gradients, seconds, error, known, pruned
    )


def choose(tried: Sequence[TrialRecord], higher: bool) -> Tuned:
    """What is chosen for a method: the best of its trials, of equal ones the first."""
    best = tried[0]
    for record in tried[1:]:
        best = record if is_better(_score(record), _score(best), higher) else best
    pruned = sum(record.pruned > 0 for record in tried)
    failed = sum(record.score is None for record in tried) - pruned
    return Tuned(best.method, best.expression, best.lr, _score(best), _score(tried[0]), len(tried), failed, pruned)


def _score(record: TrialRecord) -> float:
    return math.nan if record.score is None else record.score
