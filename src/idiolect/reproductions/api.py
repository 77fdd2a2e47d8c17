"""`reproduce`: run a claim, or go on with it, and judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..comparison.api import carry_out_all
from ..comparison.folder import RunSpec, read_summary
from ..contract import methods as registry
from ..core.errors import DataError, TrainingError
from ..core.names import slug
from ..data.sources import sources
from ..runs.progress import Reporter
from ..runs.settings import configure
from .claims import Case, Claim
from .folders import CACHE, cache_of, digest
from .measures import FinishedRun
from .results import CaseRuns, ClaimResult, MethodRuns, make_result
from .tunings import Settled, TuningTask, carry_out_tunings, list_tasks, settle


@dataclass(frozen=True)
class State:
    """How far a claim is: what is done and what there is to do, in trials and runs, and the seconds so far."""

    done: int
    total: int
    seconds: float

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.done >= self.total

    @property
    def seconds_left(self) -> float:
        """The seconds that the rest takes if it goes on like that; NaN before anything is done."""
        return self.seconds / self.done * (self.total - self.done) if self.done else float("nan")


def reproduce(
    claim: Claim,
    claims: Mapping[str, Claim],
    *,
    cache: Path = CACHE,
    jobs: int = 1,
    quick: bool = False,
    make_reporter: Callable[[], Reporter] = Reporter,
) -> ClaimResult:
    """Run a claim, or go on with it, and judge it.

    Args:
        claim: what is run.
        claims: all claims by name, of which some are tuned like others.
        cache: the folder of runs and tunings; what is complete there is not run again.
        jobs: how many at a time, each in a process of its own.
        quick: run the quick version, which tests that everything works and whose numbers mean nothing.
        make_reporter: makes what receives how each tuning, and all runs of a case, go on.
    """
    if claim.not_runnable:
        return make_result(claim, ())
    require_data(claim)
    claim, claims, cache = prepare(claim, claims, cache, quick)
    tasks = list_tasks(claim, claims, cache)
    carry_out_tunings(list(tasks.values()), jobs, make_reporter)
    return make_result(claim, [carry_out_case(claim, case, tasks, cache, jobs, make_reporter) for case in claim.cases])


def prepare(
    claim: Claim, claims: Mapping[str, Claim], cache: Path, quick: bool
) -> tuple[Claim, Mapping[str, Claim], Path]:
    """The claim, all claims and the cache, of the quick versions where these are asked for."""
    if not quick:
        return claim, claims, cache
    return claim.shrink(), {name: other.shrink() for name, other in claims.items()}, cache_of(cache, True)


def require_data(claim: Claim) -> None:
    """Raise an error that says in a sentence which data are missing."""
    for name in dict.fromkeys(str(case.settings.get("data", "digits")) for case in claim.cases):
        source = sources.build(name)
        if not source.available():
            raise DataError(f"{claim.name} needs the data {source.name}, which are not here; {source.where()}")


def carry_out_case(
    claim: Claim,
    case: Case,
    tasks: Mapping[tuple[str, str], TuningTask],
    cache: Path,
    jobs: int,
    make_reporter: Callable[[], Reporter],
) -> CaseRuns:
    """Run all methods of a case with every seed."""
    settled: dict[str, Settled] = {}
    failed: dict[str, str] = {}
    for method in claim.methods:
        try:
            settled[method] = settle(method, tasks.get((case.name, method)), case, left_out(claim))
        except TrainingError as error:
            failed[method] = str(error)
    specs = {method: list_runs(case, each, claim, cache) for method, each in settled.items()}
    waiting = {spec.folder: spec for of_method in specs.values() for spec in of_method if read_finished(spec) is None}
    in_order = sorted(waiting.values(), key=lambda spec: spec.config.seed)
    reasons: dict[str, str] = {}
    if in_order:
        with make_reporter() as reporter:
            reasons = carry_out_all(in_order, {}, jobs, reporter)[1]
    runs = []
    for method in claim.methods:
        reason = failed.get(method) or (reasons.get(settled[method].expression, "") if method in settled else "")
        done = tuple(read_finished(spec) for spec in specs.get(method, ()))
        runs.append(MethodRuns(method, settled.get(method), done, reason))
    return CaseRuns(case, tuple(runs))


def left_out(claim: Claim) -> tuple[str, ...]:
    """The options that a claim does not take over from the tuning of another."""
    return claim.tuning.without if claim.tuning else ()


def list_runs(case: Case, settled: Settled, claim: Claim, cache: Path) -> list[RunSpec]:
    """The runs of a method, one per seed, each in a folder that is named after what it is."""
    specs = []
    for seed in claim.seeds:
        config = configure({**case.settings, "method": settled.expression, "lr": settled.lr, "seed": seed})
        folder = cache / "runs" / f"{slug(config.method)}-seed-{seed}-{digest(config.hash)}"
        specs.append(RunSpec(registry.build(config.method), config, folder))
    return specs


def read_finished(spec: RunSpec) -> FinishedRun | None:
    """A run that is complete; None if it has to be run or continued."""
    summary = None if spec.folder is None else read_summary(spec.folder)
    if spec.folder is None or summary is None or summary["rounds_done"] < spec.config.rounds:
        return None
    return FinishedRun(spec.folder, summary)


def find_state(claim: Claim, claims: Mapping[str, Claim], cache: Path = CACHE, quick: bool = False) -> State:
    """How far a claim is, from what the cache holds. Runs whose methods are not tuned yet count as not done."""
    claim, claims, cache = prepare(claim, claims, cache, quick)
    tasks = list_tasks(claim, claims, cache)
    done, seconds = 0, 0.0
    distinct = {task.folder: task for task in tasks.values()}
    total = sum(task.count() for task in distinct.values())
    for tuning in distinct.values():
        trials = tuning.read_trials()
        done += len(trials)
        seconds += sum(trial.seconds for trial in trials)
    total += len(claim.cases) * len(claim.methods) * len(claim.seeds)
    for case in claim.cases:
        for method in claim.methods:
            task = tasks.get((case.name, method))
            if task is not None and not task.is_done():
                continue
            try:
                specs = list_runs(case, settle(method, task, case, left_out(claim)), claim, cache)
            except TrainingError:
                done += len(claim.seeds)
                continue
            finished = [run for run in map(read_finished, specs) if run is not None]
            done += len(finished)
            seconds += sum(float(run.summary["seconds"]) for run in finished)
    return State(done, total, seconds)
