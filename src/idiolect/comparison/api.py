"""Comparisons: every method on the same partitions, initial weights and sampled clients, seed by seed, in one
folder that an interrupted comparison continues from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..contract import Method
from ..core.errors import IdiolectError, InputError, RunFolderError
from ..core.files import write_text
from ..core.options import options_of
from ..core.registry import describe, override
from ..engines import AutoChoice, Plan, engines, resolve
from ..engines.machine import cores
from ..engines.phases import batches
from ..methods.fedavg import FedAvg
from ..models import default_model
from ..runs.api import OWN, carry_out, make_plan, resolve_data
from ..runs.progress import Reporter
from ..runs.settings import Config, configure
from .entrants import resolve_baseline, resolve_methods, resolve_rates, resolve_seeds
from .folder import SPEC, Entry, Ground, check_folder, finished, next_round, read_spec, slug, spec
from .leaderboard import Comparison, rank
from .processes import Job, Workshop
from .tables import write_comparison

OBJECTS = ("model", "loss", "initial", "schedule", "metrics", "public")


def compare(
    methods: str | Sequence[str | Method],
    data: Any = "digits",
    *,
    seeds: int | str | Sequence[int] = 3,
    baseline: str | Method | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    reporter: Reporter | None = None,
    skipped: Mapping[str, str] | None = None,
    rates: Mapping[str, float] | None = None,
    **settings: Any,
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
        reporter: is told how the runs go on.
        skipped: methods that were left out before, and why; for the record.
        rates: learning rates of methods that have their own, by expression; the others take `lr`.
        settings: any other argument of `run`: settings such as rounds or partition, or own objects.

    >>> board = compare("local, fedavg", clients=5, rounds=2, seeds=2)
    >>> gap = board["local"].selected.mean - board["fedavg"].selected.mean
    >>> abs(board["local"].versus.difference - gap) < 1e-9
    True
    """
    given, own = separate(data, settings)
    config = marked(given)
    asked = resolve_seeds(seeds, config.seed)
    folder = None if out is None else Path(out)
    if jobs > 1 and (own or folder is None):
        raise InputError(
            f"jobs={jobs} needs a folder (out=...) and data and models by name; use jobs=1 for own objects"
        )
    chosen = resolve_methods(methods)
    config = with_known_engine(config, folder)
    if folder is not None:
        check_folder(folder, config, [describe(each) for each in chosen], asked)
    config, grounds, unfit = survey(chosen, config, asked, own, jobs)
    if unfit and methods != "all":
        raise next(iter(unfit.values()))
    left_out = dict(skipped or {}) | {name: str(error) for name, error in unfit.items()}
    chosen = [each for each in chosen if describe(each) not in unfit]
    names = [describe(each) for each in chosen]
    against = resolve_baseline(baseline, names)
    own_rates = resolve_rates(rates, names)
    entries = [
        Entry(
            each,
            replace(config, method=name, seed=seed, lr=own_rates.get(name, config.lr)),
            folder and folder / slug(name) / f"seed-{seed}",
        )
        for seed in asked
        for each, name in zip(chosen, names, strict=True)
    ]
    done = {e.label: found for e in entries if (found := finished(e, grounds[e.config.seed])) is not None}
    if folder is not None:
        write_text(folder / SPEC, spec(config, names, asked, against, left_out, own_rates))
    pending = [e for e in entries if e.label not in done]
    done |= carry_out_all(pending, own, jobs, reporter or Reporter())
    runs = {name: {e.config.seed: done[e.label] for e in entries if e.config.method == name} for name in names}
    standings = rank(runs, against, {seed: ground.budget for seed, ground in grounds.items()})
    comparison = Comparison(
        protocol(config, asked, against, grounds, done[entries[0].label]) | ({"rates": own_rates} if own_rates else {}),
        standings,
        tuple(record(e, done[e.label], folder) for e in entries),
        left_out,
        folder,
    )
    if folder is not None:
        write_comparison(comparison, folder)
    return comparison


def resume_comparison(folder: str | Path, *, jobs: int = 1, reporter: Reporter | None = None, **own: Any) -> Comparison:
    """Continue a comparison where it stopped; what was given in Python must be given again."""
    held = read_spec(Path(folder) / SPEC)
    missing = [name for name, each in held.items() if each == OWN and own.get(name) is None]
    if missing:
        listing = ", ".join(f"{name}=..." for name in missing)
        raise RunFolderError(
            f"{folder} was started in Python with own {', '.join(missing)}; call compare there again with {listing}"
        )
    return compare(**{**held, **own}, out=folder, jobs=jobs, reporter=reporter)


# -- what is asked for --------------------------------------------------------------------------------


def separate(data: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings as text and numbers, and the user's own objects."""
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, each in {"data": data, **settings}.items():
        if name in ("models", "model_of"):
            own |= {} if each is None else {name: each}
        elif name == "data" or name in OBJECTS:
            text = each is None or isinstance(each, str | float)
            (given if text else own)[name] = str(each) if isinstance(each, float) else each
        elif name == "method":
            raise InputError("a comparison has several methods; give methods=... instead of method=...")
        else:
            given[name] = each
    return given | {name: OWN for name in own if name == "data" or name in OBJECTS}, own


def marked(given: Mapping[str, Any]) -> Config:
    """The configuration, with a mark where the user gave an object."""
    config = configure({name: each for name, each in given.items() if each is not None and each != OWN})
    return replace(config, **{name: each for name, each in given.items() if each == OWN})


def survey(
    chosen: Sequence[Method], config: Config, seeds: Sequence[int], own: Mapping[str, Any], jobs: int
) -> tuple[Config, dict[int, Ground], dict[str, IdiolectError]]:
    """Make every plan once, so that whatever is wrong is found before anything is written or run.

    Returns the configuration with the engine that all runs use, what all methods share under each seed, and the
    error of each method that cannot run.
    """
    grounds, unfit = {}, {}
    for seed in seeds:
        at = replace(config, method="fedavg", seed=seed)
        data = resolve_data(at, own)
        if not any(len(data.clients[index].test) for index in data.seen):
            raise InputError(
                f"{data.name} has no test data, so nothing can be compared; give a split with a test share, as in"
                " split=[0.6, 0.2, 0.2]"
            )
        plan = make_plan(at, {**own, "data": data}, FedAvg())
        grounds[seed] = Ground(
            data_hash=data.fingerprint,
            partition_hash=data.partition_hash,
            partition=data.partition,
            data=data.name,
            clients=len(data.clients),
            model=OWN if own.get("models") else config.model or default_model(data),
            budget=budget(plan),
        )
        for method in chosen if seed == seeds[0] else ():
            try:
                check_needs(method, make_plan(at, {**own, "data": data}, method))
            except IdiolectError as error:
                unfit[describe(method)] = error
        if seed == seeds[0]:
            config = replace(config, engine=shared_engine(config.engine, plan, jobs))
    return config, grounds, unfit


def with_known_engine(config: Config, folder: Path | None) -> Config:
    """The configuration, with the engine that a comparison was started with where `auto` leaves it open."""
    automatic = isinstance(engines.build(config.engine), AutoChoice)
    if automatic and folder is not None and (folder / SPEC).is_file():
        return replace(config, engine=str(read_spec(folder / SPEC).get("engine", config.engine)))
    return config


def shared_engine(text: str, plan: Plan, jobs: int) -> str:
    """The engine for all runs: `auto` is resolved once, and the cores are shared by the runs that go on at a time."""
    choice = engines.build(resolve(text, plan)[0])
    if jobs > 1 and isinstance(engines.build(text), AutoChoice) and "count" in options_of(type(choice)):
        choice = override(choice, "count", str(max(1, cores() // jobs)))
    return describe(choice)


def check_needs(method: Method, plan: Plan) -> None:
    """Raise an error if a method needs several networks and there is one."""
    if method.needs.networks and len(plan.tasks) < 2:
        raise InputError(f"{method.name} needs several networks; give models=[...] and model_of=[...]")


def budget(plan: Plan) -> int:
    """The local steps of FedAvg under a plan: what the steps of other methods are measured against."""
    plan, counts = replace(plan, method=FedAvg()), {}
    with torch.random.fork_rng(devices=[]):
        for index in plan.data.seen:
            ctx = plan.context(index, 0)
            (phase,) = plan.method.phases(ctx)
            counts[index] = sum(1 for _ in batches(plan, replace(ctx, phase=phase), 0))
    return sum(counts[i] for round in range(plan.rounds) for i in plan.participants(round))


# -- running ------------------------------------------------------------------------------------------


def carry_out_all(
    entries: Sequence[Entry], own: Mapping[str, Any], jobs: int, reporter: Reporter
) -> dict[str, dict[str, Any]]:
    """Run what is left to do and return the summaries by label."""
    begun = {e.label: next_round(e) for e in entries}
    reporter.begin(len(entries), sum(e.config.rounds - begun[e.label] for e in entries))
    if jobs > 1 and len(entries) > 1:
        waiting = [Job(e.label, e.config, e.folder, begun[e.label]) for e in entries if e.folder is not None]
        return Workshop(waiting, jobs, reporter).run()
    summaries: dict[str, dict[str, Any]] = {}
    seed, data = None, None
    for entry in entries:
        if seed != entry.config.seed:  # one federation at a time: entries come seed by seed
            seed, data = entry.config.seed, resolve_data(entry.config, own)
        plan = make_plan(entry.config, {**own, "data": data}, entry.method)
        reporter.start(entry.label, plan.rounds, begun[entry.label])
        result = carry_out(plan, entry.config, entry.folder, partial(reporter.step, entry.label))
        if not result.complete:
            raise KeyboardInterrupt
        summaries[entry.label] = result.summary
        result.store.close()
        reporter.end(entry.label, summaries[entry.label])
    return summaries


def protocol(
    config: Config, seeds: Sequence[int], baseline: str, grounds: Mapping[int, Ground], summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Under which conditions all numbers hold."""
    first = grounds[seeds[0]]
    return {
        "metric": summary["metric"],
        "direction": summary["direction"],
        "selection": summary["selection"],
        "interval": "95 % Student interval over seeds",
        "test": "paired t-test over seeds, Holm's correction",
        "baseline": baseline,
        "seeds": list(seeds),
        "data": first.data,
        "data_hashes": {str(seed): ground.data_hash for seed, ground in grounds.items()},
        "partition": {
            "name": first.partition,
            "clients": first.clients,
            "hashes": {str(seed): ground.partition_hash for seed, ground in grounds.items()},
        },
        "fedavg_steps": round(sum(ground.budget for ground in grounds.values()) / len(grounds)),
        **{k: v for k, v in config.as_dict().items() if k not in ("method", "seed", "data", "partition", "clients")},
        "model": first.model,
        "versions": summary["versions"],
    }


def record(entry: Entry, summary: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """One run for comparison.json: where it is, and its summary."""
    where = None if folder is None or entry.folder is None else entry.folder.relative_to(folder).as_posix()
    return {"method": entry.config.method, "seed": entry.config.seed, "folder": where, "summary": dict(summary)}
