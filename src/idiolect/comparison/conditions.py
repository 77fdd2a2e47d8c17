"""What all methods of a comparison share: data, partition, initial weights, sampled clients, engine, and the
gradients that FedAvg takes. Every plan is made once here, so errors are found before anything is written or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..contract import Method
from ..core.errors import IdiolectError, InputError
from ..core.options import options_of
from ..core.reading import doing
from ..core.registry import describe, override
from ..core.trust import named_by
from ..engines import AutoChoice, Plan, engines, resolve
from ..engines.choice import RayChoice
from ..engines.cluster.tasks import OnRay
from ..engines.machine import cores
from ..engines.phases import count_passes
from ..engines.presence import DROPPED
from ..methods.fedavg import FedAvg
from ..models import default_model
from ..runs.identity import Identity, identify
from ..runs.settings import OWN, Config, read_config
from ..runs.setup import check_needs, make_plan, resolve_data


@dataclass(frozen=True)
class Conditions:
    """What all methods share under one seed.

    Attributes:
        data, partition, clients, model: names, and the number of clients.
        data_hash, partition_hash: hashes of the data and of who has which samples.
        fedavg_gradients: gradients that FedAvg takes, against which those of other methods are measured.
        identity: what a run of FedAvg is; None where runs are only read.
    """

    data_hash: str
    partition_hash: str
    partition: str
    data: str
    clients: int
    model: str
    fedavg_gradients: int
    identity: Identity | None = None


def survey(
    methods: Sequence[Method],
    config: Config,
    seeds: Sequence[int],
    objects: Mapping[str, Any],
    jobs: int,
    place: OnRay | None = None,
) -> tuple[Config, dict[int, Conditions], dict[str, IdiolectError]]:
    """The configuration with the engine of all runs, the conditions of each seed, and why some methods cannot run."""
    conditions: dict[int, Conditions] = {}
    errors: dict[str, IdiolectError] = {}
    for seed in seeds:
        seeded = replace(config, method="fedavg", seed=seed)
        data = resolve_data(seeded, objects)
        if not any(len(data.clients[index].test) for index in data.seen):
            raise InputError(
                f"{data.name} has no test data, so nothing can be compared; give a split with a test share, as in"
                " split=[0.6, 0.2, 0.2]"
            )
        plan = make_plan(seeded, {**objects, "data": data, "method": FedAvg()})
        conditions[seed] = Conditions(
            data_hash=data.fingerprint,
            partition_hash=data.partition_hash,
            partition=data.partition,
            data=data.name,
            clients=len(data.clients),
            model=OWN if objects.get("models") else config.model or default_model(data),
            fedavg_gradients=count_fedavg_gradients(plan),
            identity=identify(plan, seeded),
        )
        if seed == seeds[0]:
            errors = find_errors(methods, seeded, {**objects, "data": data})
            config = replace(config, engine=choose_engine(config.engine, plan, jobs, place))
    return config, conditions, errors


def find_errors(methods: Sequence[Method], config: Config, objects: Mapping[str, Any]) -> dict[str, IdiolectError]:
    """The error of each method that cannot run under a configuration, by expression."""
    errors = {}
    for method in methods:
        try:
            check_needs(make_plan(config, {**objects, "method": method}))
        except IdiolectError as error:
            errors[describe(method)] = error
    return errors


def choose_engine(text: str, plan: Plan, jobs: int = 1, place: OnRay | None = None) -> str:
    """The engine for all runs: `auto` is resolved once, and the cores are shared by the runs that go on at a time; on a
    cluster each has its own."""
    if place is not None and isinstance(engines.build(text), RayChoice):
        raise InputError(
            f"engine={text} spreads one run over a cluster, where each run already is a task; leave out one of --engine"
            " and --on"
        )
    with doing("choosing the engine"):
        choice = engines.build(resolve(text, plan, one_machine=place is not None)[0])
    share = int(place.cpus) if place is not None else cores() // jobs
    if (jobs > 1 or place is not None) and isinstance(engines.build(text), AutoChoice):
        choice = override(choice, "count", str(max(1, share))) if "count" in options_of(type(choice)) else choice
    return describe(choice)


def keep_known_engine(config: Config, path: Path | None, trust: bool = False) -> Config:
    """The configuration, with the engine that a file of settings names where `auto` leaves it open."""
    if path is None or not path.is_file() or not isinstance(engines.build(config.engine), AutoChoice):
        return config
    engine = str(read_config(path).get("engine", config.engine))
    with named_by(path, trust):
        engines.build(engine)
    return replace(config, engine=engine)


def count_fedavg_gradients(plan: Plan) -> int:
    """The gradients that FedAvg takes under a plan, one per local step, from the sizes of the clients' data alone."""
    plan = replace(plan, method=FedAvg())
    (phase,) = plan.method.phases(plan.context(plan.data.seen[0], 0))
    steps = {
        i: count_passes(plan, phase, plan.task_of(i), len(plan.data.clients[i].train)).steps for i in plan.data.seen
    }
    rounds = range(plan.rounds)
    return sum(steps[i] for at in rounds for i in plan.participants(at) if plan.fate(i, at) != DROPPED)


def protocol(
    config: Config,
    seeds: Sequence[int],
    baseline: str,
    conditions: Mapping[int, Conditions],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Under which conditions all numbers of a comparison hold."""
    first = conditions[seeds[0]]
    return {
        "metric": summary["metric"],
        "direction": summary["direction"],
        "selection": summary["selection"],
        "headline": summary["headline"],
        "interval": "95 % Student interval over seeds",
        "test": "paired t-test over seeds, Holm's correction",
        "baseline": baseline,
        "seeds": list(seeds),
        "data": first.data,
        "data_hashes": {str(seed): condition.data_hash for seed, condition in conditions.items()},
        "partition": {
            "name": first.partition,
            "clients": first.clients,
            "hashes": {str(seed): condition.partition_hash for seed, condition in conditions.items()},
        },
        "fedavg_gradients": round(
            sum(condition.fedavg_gradients for condition in conditions.values()) / len(conditions)
        ),
        **{k: v for k, v in config.as_dict().items() if k not in ("method", "seed", "data", "partition", "clients")},
        "model": first.model,
        "versions": summary["versions"],
    }
