"""Comparisons: every method on the same partitions, initial weights and sampled clients, seed by seed, in one
folder that an interrupted comparison continues from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from ..contract import Method
from ..core.errors import InputError, TrainingError
from ..core.files import write_text
from ..core.reading import doing
from ..core.registry import describe
from ..core.trust import named_by
from ..engines.cluster.tasks import OnRay, find_place
from ..runs.api import carry_out
from ..runs.arguments import Arguments, Known
from ..runs.folder import next_round, require_objects
from ..runs.lock import lock_folder
from ..runs.notebook import reporting
from ..runs.progress import Reporter
from ..runs.settings import Config
from ..runs.setup import check_objects, make_plan, resolve_data, separate
from .budget import check_budget, measure_rounds
from .conditions import keep_known_engine, protocol, survey
from .elsewhere import carry_out_elsewhere
from .entrants import resolve_baseline, resolve_methods, resolve_own, resolve_rerun, resolve_seeds
from .folder import (
    SPEC,
    RunSpec,
    check_folder,
    list_runs,
    read_finished,
    read_measured,
    read_spec,
    record_run,
    remove_runs,
    write_spec,
)
from .leaderboard import Comparison, rank
from .processes import Job, ProcessRunner, require_guard
from .tables import write_comparison

log = logging.getLogger("idiolect")


def compare(
    methods: str | Sequence[str | Method],
    data: Any = "digits",
    *,
    seeds: int | str | Sequence[int] = 3,
    baseline: str | Method | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    on: str | None = None,
    reporter: Reporter | None = None,
    skipped: Mapping[str, str] | None = None,
    rates: Mapping[str, float] | None = None,
    budget: str = "rounds",
    rounds_of: Mapping[str, int] | None = None,
    rerun: str | Sequence[str | Method] = (),
    trust: bool = False,
    **settings: Unpack[Arguments],
) -> Comparison:
    """Run methods on identical partitions, initial weights and sampled clients, and rank them.

    Args:
        methods: expressions, as a list or split at commas, or `all` for the whole registry; with `all`, methods that
            cannot run here are skipped and named.
        data: as for `run`.
        seeds: how many, from `seed` on, or which ones.
        baseline: the method that the others are tested against; FedAvg if it takes part, else the first.
        out: a folder; runs that are complete there are not run again, a partial one is continued, and methods and
            seeds may be added. Without it the comparison stays in memory.
        jobs: how many runs at a time, each in a process of its own.
        on: `ray`, or as in `ray(cpus=2)`, carries out each run as a task on any node of a cluster; `here` does not. By
            default on a cluster if RAY_ADDRESS names one.
        reporter: receives how the runs go on.
        skipped: methods that were left out before, and why; they are listed with the results.
        rates: learning rates of methods that have their own, by expression; the others take `lr`.
        budget: what all methods get alike: `rounds`, or as many `gradients` as FedAvg takes in these rounds, so that a
            method that takes twice as many has half the rounds; three rounds of each method are measured for that.
        rounds_of: rounds of methods that have their own, by expression; the others take `rounds` or what is measured.
        rerun: methods whose runs in the folder are removed and run anew, as after an edit of their code; `all` for
            all of them.
        trust: run code that the folder names, as its engine, though no run on this machine has used it.
        settings: any other argument of `run`: settings such as rounds or partition, or own objects.

    >>> board = compare("local, fedavg", clients=5, rounds=2, seeds=2)
    >>> gap = board["local"].selected.mean - board["fedavg"].selected.mean
    >>> abs(board["local"].versus.difference - gap) < 1e-9
    True
    """
    if "method" in settings:
        raise InputError("a comparison has several methods; give methods=... instead of method=...")
    check_budget(budget)
    if jobs > 1:
        require_guard(jobs)
    config, objects = separate({"data": data, **settings})
    seed_list = resolve_seeds(seeds, config.seed)
    folder = None if out is None else Path(out)
    place = find_place(on)
    if place is None and jobs > 1 and (objects or folder is None):
        raise InputError(
            f"jobs={jobs} needs a folder (out=...) and data and models by name; use jobs=1 for own objects"
        )
    chosen = resolve_methods(methods)
    config = keep_known_engine(config, folder and folder / SPEC, trust)
    if folder is not None:
        check_folder(folder, config, [describe(method) for method in chosen], seed_list)
    with doing("preparing the runs"):
        config, conditions, errors = survey(chosen, config, seed_list, objects, jobs, place)
    if errors and methods != "all":
        raise next(iter(errors.values()))
    left_out = dict(skipped or {}) | {name: str(error) for name, error in errors.items()}
    chosen = [method for method in chosen if describe(method) not in errors]
    names = [describe(method) for method in chosen]
    against = resolve_baseline(baseline, names)
    own_rates, own_rounds = (
        resolve_own("rates", "lr", rates, names),
        resolve_own("rounds_of", "rounds", rounds_of, names),
    )
    anew = resolve_rerun(rerun, names)
    if budget == "gradients":
        measured = {name: n for name, n in read_measured(folder).items() if name in names and name not in anew}
        own_rounds = resolve_own("rounds_of", "rounds", measured, names) | own_rounds
        first_seed, open_methods = seed_list[0], [m for m in chosen if describe(m) not in own_rounds]
        allowed = conditions[first_seed].fedavg_gradients
        own_rounds |= fit_methods(open_methods, replace(config, seed=first_seed), objects, allowed)
    specs = list_runs(chosen, config, seed_list, own_rates, own_rounds, folder)
    kept = [spec for spec in specs if spec.config.method not in anew]
    done = {spec.label: read_finished(spec, conditions[spec.config.seed]) for spec in kept}
    summaries = {label: summary for label, summary in done.items() if summary is not None}
    pending = [spec for spec in specs if spec.label not in summaries]
    with lock_folder(folder):
        if folder is not None:
            write_text(
                folder / SPEC, write_spec(config, names, seed_list, against, left_out, own_rates, budget, own_rounds)
            )
        remove_runs([spec for spec in specs if spec.config.method in anew])
        with reporting(reporter) as shown:
            carried_out, failed = carry_out_all(pending, objects, jobs, shown, place)
    summaries |= carried_out
    names = [name for name in names if name not in failed]
    specs = [spec for spec in specs if spec.config.method in names]
    if not specs:
        raise TrainingError(next(iter(failed.values())))
    against = against if against in names else resolve_baseline(None, names)
    first = next(spec for spec in specs if spec.config.method == against)
    comparison = Comparison(
        protocol(config, seed_list, against, conditions, summaries[first.label])
        | {"budget": budget}
        | ({"rates": own_rates} if own_rates else {})
        | ({"rounds_of": own_rounds} if own_rounds else {}),
        rank(
            {name: {s.config.seed: summaries[s.label] for s in specs if s.config.method == name} for name in names},
            against,
            {seed: condition.fedavg_gradients for seed, condition in conditions.items()},
        ),
        tuple(record_run(spec, summaries[spec.label], folder) for spec in specs),
        left_out,
        failed,
        folder,
    )
    if folder is not None:
        write_comparison(comparison, folder)
    return comparison


def fit_methods(methods: Sequence[Method], config: Config, objects: Mapping[str, Any], allowed: int) -> dict[str, int]:
    """How many of the configured rounds each method gets for so many gradients."""
    data = resolve_data(config, objects)
    plans = {
        describe(method): make_plan(
            replace(config, method=describe(method)), {**objects, "data": data, "method": method}
        )
        for method in methods
    }
    return {name: measure_rounds(plan, config.engine).fit_rounds(allowed, plan.rounds) for name, plan in plans.items()}


def resume_comparison(
    folder: str | Path,
    *,
    jobs: int = 1,
    on: str | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **objects: Unpack[Known],
) -> Comparison:
    """Continue a comparison where it stopped; what was given in Python must be given again. With `trust`, code that the
    folder names runs though no run on this machine has used it."""
    check_objects(objects)
    settings = read_spec(Path(folder) / SPEC)
    require_objects(Path(folder), settings, objects)
    with named_by(folder, trust):
        return compare(**{**settings, **objects}, out=folder, jobs=jobs, on=on, reporter=reporter)


def carry_out_all(
    specs: Sequence[RunSpec], objects: Mapping[str, Any], jobs: int, reporter: Reporter, place: OnRay | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Run what is left to do and return the summaries by label; and, by method, why some learned nothing. Of such a
    method no further seed is run."""
    begun = {spec.label: next_round(spec.folder, spec.method) for spec in specs}
    reporter.begin(len(specs), sum(spec.config.rounds - max(0, begun[spec.label]) for spec in specs))
    if place is not None and specs:
        waiting = [Job(s.label, s.config, s.folder, begun[s.label]) for s in specs]
        return carry_out_elsewhere(waiting, {s.label: {**objects, "method": s.method} for s in specs}, place, reporter)
    if jobs > 1 and len(specs) > 1:
        waiting = [Job(s.label, s.config, s.folder, begun[s.label]) for s in specs if s.folder is not None]
        return ProcessRunner(waiting, jobs, reporter).run()
    summaries: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    seed, data = None, None
    for spec in specs:
        if spec.config.method in failed:
            continue
        if seed != spec.config.seed:  # one federation at a time: runs are listed seed by seed
            seed, data = spec.config.seed, resolve_data(spec.config, objects)
        plan = make_plan(spec.config, {**objects, "data": data, "method": spec.method})
        reporter.start(spec.label, plan.rounds, begun[spec.label])
        try:
            result = carry_out(plan, spec.config, spec.folder, partial(reporter.step, spec.label))
        except TrainingError as error:
            failed[spec.config.method] = str(error)
            log.warning("%s: %s", spec.label, error)
            reporter.fail(spec.label, str(error))
            continue
        if not result.complete:
            raise KeyboardInterrupt
        summaries[spec.label] = result.summary
        result.store.close()
        reporter.end(spec.label, summaries[spec.label])
    return summaries, failed
