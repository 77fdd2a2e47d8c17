"""`reproduce`: run a claim, or go on with it, and judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..comparison.api import carry_out_all
from ..comparison.folder import RunSpec, read_summary
from ..contract import methods as registry
from ..core.errors import DataError, TrainingError
from ..core.names import slug
from ..data.sources import sources
from ..engines.cluster.tasks import OnRay, find_place
from ..runs.progress import Reporter
from ..runs.settings import configure
from .budgets import Fitted, fit_rounds, keep_runnable, with_rounds
from .claims import Case, Claim
from .committed import CommittedTuning, take_committed
from .files import ClaimResult
from .folders import CACHE, cache_of, digest
from .measures import FinishedRun
from .results import CaseRuns, MethodRuns, make_result
from .tunings import Origin, Settled, TuningTask, carry_out_tunings, find_origin, list_tasks, settle


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
    on: str | None = None,
    quick: bool = False,
    make_reporter: Callable[[], Reporter] = Reporter,
    committed: Path | None = None,
) -> ClaimResult:
    """Run a claim, or go on with it, and judge it.

    Args:
        claim: what is run.
        claims: all claims by name, of which some are tuned like others.
        cache: the folder of runs and tunings; what is complete there is not run again.
        jobs: how many at a time, each in a process of its own.
        on: as for `compare`: tunings and runs are tasks of a cluster.
        quick: run the quick version, which tests that everything works and whose numbers mean nothing.
        make_reporter: makes what receives how each tuning, and all runs of a case, go on.
        committed: the folder of claims whose committed results may stand for the tunings of other claims that this
            one takes over.
    """
    if claim.not_runnable:
        return make_result(claim, ())
    require_data(claim)
    claim, claims, cache = prepare(claim, claims, cache, quick)
    fitted = fit_rounds(claim, cache)
    runnable, skipped = keep_runnable(claim, fitted)
    tasks = list_tasks(runnable, claims, cache, fitted, taker(committed, quick))
    place = find_place(on)
    carry_out_tunings(list(tasks.values()), jobs, make_reporter, place)
    work = Work(runnable, claims, tasks, fitted, cache)
    return make_result(claim, [carry_out_case(work, case, jobs, make_reporter, place) for case in claim.cases], skipped)


@dataclass(frozen=True)
class Work:
    """What the runs of a claim need: its methods that can run, their tunings and rounds, and where all of it lies."""

    claim: Claim
    claims: Mapping[str, Claim]
    tasks: Mapping[tuple[str, str], TuningTask]
    fitted: Fitted
    cache: Path

    def settle(self, case: Case, method: str) -> Settled:
        """A method as its tuning left it."""
        tuning = self.claim.tuning
        settled = settle(method, self.tasks.get((case.name, method)), case, tuning.without if tuning else ())
        return replace(settled, origin=tuning.of if tuning else "")

    def list_runs(self, case: Case, method: str, settled: Settled) -> list[RunSpec]:
        """The runs of a method, one per seed."""
        return list_runs(with_rounds(case, method, self.fitted), settled, self.claim, self.cache)


def taker(committed: Path | None, quick: bool) -> Callable[[TuningTask, Origin], TuningTask]:
    """What is known of tunings of other claims: what their committed results hold, except of quick versions."""
    return lambda task, origin: take_committed(task, origin, None if quick else committed)


def find_committed(claim: Claim, claims: Mapping[str, Claim], cache: Path, committed: Path | None) -> list[str]:
    """The claims from whose committed results a claim would take its tuning."""
    if claim.not_runnable:
        return []
    tasks = list_tasks(claim, claims, cache, fit_rounds(claim, cache, read_only=True), taker(committed, False))
    taken = [key for key, task in tasks.items() if isinstance(task, CommittedTuning)]
    origins = [find_origin(claim, claim.case(case), method, claims).claim.name for case, method in taken]
    return list(dict.fromkeys(origins))


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
    work: Work, case: Case, jobs: int, make_reporter: Callable[[], Reporter], place: OnRay | None = None
) -> CaseRuns:
    """Run all methods of a case with every seed."""
    settled: dict[str, Settled] = {}
    failed: dict[str, str] = {}
    for method in work.claim.methods:
        try:
            settled[method] = work.settle(case, method)
        except TrainingError as error:
            failed[method] = str(error)
    specs = {method: work.list_runs(case, method, each) for method, each in settled.items()}
    waiting = {spec.folder: spec for of_method in specs.values() for spec in of_method if read_finished(spec) is None}
    in_order = sorted(waiting.values(), key=lambda spec: spec.config.seed)
    reasons: dict[str, str] = {}
    if in_order:
        with make_reporter() as reporter:
            reasons = carry_out_all(in_order, {}, jobs, reporter, place)[1]
    runs = []
    for method in work.claim.methods:
        reason = failed.get(method) or (reasons.get(settled[method].expression, "") if method in settled else "")
        done = tuple(read_finished(spec) for spec in specs.get(method, ()))
        runs.append(MethodRuns(method, settled.get(method), done, reason))
    return CaseRuns(case, tuple(runs))


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


def find_state(
    claim: Claim,
    claims: Mapping[str, Claim],
    cache: Path = CACHE,
    quick: bool = False,
    committed: Path | None = None,
) -> State:
    """How far a claim is, from what the cache holds. Runs whose methods are not tuned yet count as not done."""
    claim, claims, cache = prepare(claim, claims, cache, quick)
    fitted = fit_rounds(claim, cache, read_only=True)
    claim, _ = keep_runnable(claim, fitted)
    tasks = list_tasks(claim, claims, cache, fitted, taker(committed, quick))
    work = Work(claim, claims, tasks, fitted, cache)
    done, seconds = 0, 0.0
    distinct = {task.folder: task for task in tasks.values() if not isinstance(task, CommittedTuning)}
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
                specs = work.list_runs(case, method, work.settle(case, method))
            except TrainingError:
                done += len(claim.seeds)
                continue
            finished = [run for run in map(read_finished, specs) if run is not None]
            done += len(finished)
            seconds += sum(float(run.summary["seconds"]) for run in finished)
    return State(done, total, seconds)
