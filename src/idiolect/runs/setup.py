"""From settings and the user's own objects to a plan. Everything that can be wrong is found here, before anything
runs."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..contract import Method, Training
from ..contract import methods as registry
from ..core.code import name_code
from ..core.errors import InputError, ModelError, UnknownNameError
from ..core.names import visible
from ..core.options import did_you_mean
from ..core.ranges import parse_ranges
from ..core.reading import doing
from ..core.registry import describe
from ..data import Federation
from ..data import load as load_data
from ..data.pool_clients import distinct
from ..data.transforms import build_transforms
from ..engines import Plan
from ..engines.presence import Presence
from ..kernels import has_bf16
from ..models import Network, default_model, models
from ..models import build as build_model
from ..task.schedules import Custom, Schedule, schedules
from ..task.task import Task
from .own_labels import check_own_labels, own_task
from .settings import Config, configure, mark_objects

log = logging.getLogger("idiolect")

OBJECTS = ("data", "model", "loss", "metrics", "transform", "initial", "schedule", "public")
"""Settings that may be given as objects instead of by name."""
LISTS = ("metrics", "transform")
"""Settings that may be lists of names."""
DEALING = ("partition", "clients", "unseen", "split", "public")
"""Settings that say how data become clients, which a federation has behind it."""
IN_DATA = "(part of the data)"
"""What a configuration says of public data that a federation brings along."""
NETWORKS = ("models", "model_of")
"""Several networks, which have no names: they are objects and no settings."""


def separate(arguments: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The configuration, with a mark where the user gave an object, and these objects by name, the method among them.

    >>> config, objects = separate({"method": "fedprox(mu=0.50)", "data": [([[1.0]], [0])], "public": 0.1, "lr": 0.1})
    >>> config.method, config.data, config.public, list(objects)
    ('fedprox(mu=0.5)', '(given in Python)', '0.1', ['data', 'method'])
    """
    settings: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None and name != "data":
            continue
        if name in LISTS and isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            settings[name] = ", ".join(value)
        elif name in NETWORKS:
            objects |= {name: value} if len(value) else {}
        elif name in OBJECTS and not isinstance(value, str | float | None) and not _is_file(name, value):
            objects[name] = value
        else:
            settings[name] = str(value) if name in OBJECTS and value is not None else value
    marks = [name for name in objects if name in OBJECTS]
    if isinstance(objects.get("data"), Federation):
        settings |= describe_dealing(objects["data"], {n: arguments[n] for n in DEALING if n in arguments})
    if "method" in settings:
        objects["method"] = settings["method"] = registry.build(settings["method"])
    return mark_objects(configure(settings), marks), objects


def check_objects(names: Iterable[str]) -> None:
    """Raise an error unless these are names of objects, which alone may be given for a run that is there already."""
    known = ("method", *OBJECTS, *NETWORKS)
    for name in names:
        if name not in known:
            raise UnknownNameError(
                f"{name!r} cannot be given for a run that is there already.{did_you_mean(name, known)} Its settings are"
                f" in its folder; only objects that were given in Python are given again: {', '.join(known)}."
            )


def describe_dealing(data: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
    """How a federation's clients came about, as settings; an error if other ones are given beside it."""
    share = len(data.unseen) / len(data)
    holds = {"partition": data.partition, "clients": len(data), "unseen": share, "public": data.public and IN_DATA}
    for name, value in given.items():
        usual = isinstance(value, str | int | float | tuple) and value in (getattr(Config, name), holds.get(name))
        if value is not None and not usual:
            raise InputError(
                f"{name} cannot be given beside a Federation, which is already dealt and split; leave it out, or give"
                f" it where the federation is made"
            )
    return {name: value for name, value in holds.items() if value is not None}


def arrange_clients(objects: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The objects with the clients' data in the order of these names, if they are the same names in another order."""
    data, objects = objects.get("data"), dict(objects)
    if isinstance(data, Federation):
        given = data.client_names
    elif isinstance(data, Mapping):
        given = [str(name) for name in data]
    else:
        return objects
    if given == list(names) or len(set(given)) < len(given) or set(given) != set(names):
        return objects
    order = [given.index(name) for name in names]
    if isinstance(data, Federation):
        unseen = frozenset(place for place, before in enumerate(order) if before in data.unseen)
        objects["data"] = replace(data, clients=tuple(data.clients[at] for at in order), unseen=unseen)
    else:
        items = list(data.items())
        objects["data"] = dict(items[at] for at in order)
    if objects.get("model_of") and not isinstance(objects["model_of"], Mapping):
        objects["model_of"] = [objects["model_of"][at] for at in order]
    return objects


def _is_file(name: str, value: Any) -> bool:
    return name == "initial" and isinstance(value, Path)


def make_plan(config: Config, objects: Mapping[str, Any]) -> Plan:
    """The plan that a configuration and the user's objects, by name, describe; an object counts before a setting."""
    method: Method = registry.build(objects.get("method") or config.method)
    transform = build_transforms(objects.get("transform", config.transform))
    data = resolve_data(config, objects).transformed(transform).cached(config.sample_cache_mb, config.sample_cache)
    built_by = [name_model(model, data) for model in choose_models(config, objects, data)]
    objects = build_by_labels(config, objects, data)
    tasks = resolve_tasks(config, objects, data)
    for task in tasks:
        place(task, config)
        if method.refuses.other_networks or method.needs.public:
            check_own_labels(
                method, task, data
            )  # here, since what follows would ask for one network, or for public data
        method.check(task)
    if config.precision == "bf16" and not has_bf16(config.device):
        log.warning("this processor has no instructions for bf16, which will be many times slower than fp32")
    if method.needs.public and data.public is None:
        raise InputError(
            f"{method.name} needs public data, which everybody sees; give a source or a share, as in public=0.1"
        )
    networks = resolve_networks(objects.get("model_of") or (), data, len(tasks))
    names = built_by * len(tasks) if len(built_by) == 1 else built_by
    return assemble_plan(config, objects, method, data, tasks, networks, names)


def assemble_plan(
    config: Config,
    objects: Mapping[str, Any],
    method: Method,
    data: Federation,
    tasks: tuple[Task, ...],
    networks: tuple[int, ...],
    built_by: Sequence[str],
) -> Plan:
    """The plan of a configuration whose parts are there."""
    for task in tasks if data.own_labels else ():
        task.all_classes = len(data.class_names)
    return Plan(
        method=method,
        tasks=tasks,
        data=data,
        rounds=config.rounds,
        training=Training(
            optimizer=config.build_optimizer(),
            schedule=resolve_schedule(config, objects),
            optimizer_state=config.optimizer_state,
            lr=config.lr,
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            weighting=config.weighting,
            norm_stats=config.norm_stats,
            norm_affine=config.norm_affine,
            seed=config.seed,
            device=config.device,
        ),
        participation=config.participation,
        networks=networks,
        after_local=config.after_local,
        eval_global=config.eval_global,
        eval_clients=config.eval_clients,
        built_by=tuple(built_by),
        presence=resolve_presence(config, data),
        sampling_seed=config.sampling_seed,
        init_seed=config.init_seed,
    )


def place(task: Task, config: Config) -> None:
    """Move a network to the device, in the precision that is asked for."""
    try:
        torch.zeros(1, device=config.device).tolist()
        task.net.to(config.device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device={config.device!r} cannot be used: {str(error).splitlines()[0]}; choose another, such as cpu"
        ) from error
    task.net.precision = torch.bfloat16 if config.precision == "bf16" else None


def resolve_presence(config: Config, data: Federation) -> Presence:
    """When clients are there, by position; an error where a name is none, or nobody ever is there."""
    names = [client.name for client in data.clients]
    for name in config.presence or ():
        if name not in names:
            raise InputError(f"presence: no client is called {visible(name)!r}.{did_you_mean(name, names)}")
    rounds = {names.index(name): parse_ranges(at, name) for name, at in (config.presence or {}).items()}
    presence = Presence(rounds, config.dropout or 0.0, config.stragglers or 0.0)
    if not any(presence.choose(data.seen, round) for round in range(config.rounds)):
        raise InputError("presence: in no round is a client there that trains; give some client a round")
    return presence


def resolve_schedule(config: Config, objects: Mapping[str, Any]) -> Schedule:
    """The schedule of the learning rate, from its name, a schedule or a function."""
    schedule: Schedule | Callable[[int, int], float] | None = objects.get("schedule")
    if schedule is None:
        return schedules.build(config.schedule)
    return schedule if isinstance(schedule, Schedule) else Custom(schedule)


def resolve_data(config: Config, objects: Mapping[str, Any]) -> Federation:
    """The federation that a configuration, or the user's own data, describes."""
    source = objects.get("data", config.data)
    if isinstance(source, Federation):
        return source
    with doing("reading the data"):
        return load_data(
            source,
            partition=config.partition,
            clients=config.clients,
            split=config.split,
            seed=config.seed_of("partition"),
            unseen=config.unseen,
            public=objects.get("public", config.public),
        )


def resolve_tasks(config: Config, objects: Mapping[str, Any], data: Federation) -> tuple[Task, ...]:
    """The model (or models) with loss and metrics, checked against the data."""
    chosen = choose_models(config, objects, data)
    modules = [resolve_model(model, data, config.seed_of("init")) for model in chosen]
    initial = objects.get("initial", config.initial)
    if initial is not None:
        modules = [copy_with_weights(module, initial) for module in modules]
    first = data.clients[0]
    x, y = first.take(first.train[:2].long())
    loss, metrics = objects.get("loss", config.loss) or data.loss, objects.get("metrics", config.metrics)
    if len(modules) == 1 or data.classes is None:
        return tuple(Task(m, (x, y), loss, metrics, data.classes, config.head, data.layout) for m in modules)
    networks = resolve_networks(objects.get("model_of") or (), data, len(modules))
    return tuple(
        own_task(module, number, networks, data, loss, metrics, config.head) for number, module in enumerate(modules)
    )


def choose_models(config: Config, objects: Mapping[str, Any], data: Federation) -> list[Any]:
    """The networks, each by name, as an object, or as what builds it."""
    return list(objects.get("models") or [objects.get("model", config.model) or default_model(data)])


def name_model(model: Any, data: Federation) -> str:
    """The expression that builds a network, with what the data know; "" where there is none."""
    if isinstance(model, nn.Module):
        return ""
    if not isinstance(model, str | Network):
        return name_code(model)
    return describe(models.build(model).for_data(data))


def build_by_labels(config: Config, objects: Mapping[str, Any], data: Federation) -> Mapping[str, Any]:
    """The objects with a network for each number of classes, where every client has its own and the network is built
    for the data."""
    model = objects.get("model", config.model) or default_model(data)
    sizes = sorted({len(client.labels) for client in distinct(data.clients) if client.labels})
    if len(sizes) <= 1 or "models" in objects or isinstance(model, nn.Module):
        return objects
    models = [resolve_model(model, replace(data, classes=size), config.seed_of("init")) for size in sizes]
    places = [sizes.index(len(client.labels)) if client.labels else 0 for client in data.clients]
    return {**objects, "models": models, "model_of": places}


def resolve_model(model: Any, data: Federation, seed: int) -> nn.Module:
    """A network: one that is given, or one that a name, class or function builds with the seed's initial weights."""
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, str) and not callable(model):
        raise InputError(
            "model must be one nn.Module, a class or function that builds one, or a name, not a"
            f" {type(model).__name__}; several networks are given as models=[...], with model_of saying which client"
            " has which"
        )
    return build_model(model, data, seed=seed)


def resolve_networks(model_of: Sequence[int] | Mapping[str, int], data: Federation, count: int) -> tuple[int, ...]:
    """For each client the position of its network among `count`, from a list in the clients' order or by name."""
    names = data.client_names
    if isinstance(model_of, Mapping):
        if wrong := [name for name in (*model_of, *names) if name not in model_of or name not in names]:
            raise InputError(f"model_of must name every client once, and no other; look at {wrong[0]!r}")
        model_of = [model_of[name] for name in names]
    networks = tuple(model_of)
    if (networks or count > 1) and len(networks) != len(names):
        raise InputError(f"model_of has {len(networks)} entries for {len(names)} clients; give one for each, or a dict")
    if missing := [number for number in networks if number not in range(count)]:
        raise InputError(f"model_of names the network {missing[0]!r}; there are {count}, 0 to {count - 1}")
    return networks


def copy_with_weights(module: nn.Module, initial: str | Path | Mapping[str, Tensor]) -> nn.Module:
    """A copy of a module with given weights, a state dict or a safetensors file."""
    if isinstance(initial, str | Path):
        try:
            initial = load_file(initial)
        except (OSError, SafetensorError) as error:
            raise InputError(f"the initial weights {initial} cannot be read as safetensors: {error}") from error
    module = copy.deepcopy(module)
    try:
        module.load_state_dict(dict(initial))
    except RuntimeError as error:
        raise ModelError(f"the initial weights do not fit the model: {error}") from error
    return module


def check_needs(plan: Plan) -> None:
    """Raise an error if a method needs several networks and there is one, or the same labels everywhere."""
    if plan.method.needs.networks and len(plan.tasks) < 2:
        raise InputError(f"{plan.method.name} needs several networks; give models=[...] and model_of=[...]")
    for task in plan.tasks:
        check_own_labels(plan.method, task, plan.data)


def weights_hash(plan: Plan) -> str:
    """A short hash of the initial weights, frozen ones as well."""
    digest = hashlib.sha256()
    for task in plan.tasks:
        for leaves in (*task.initial.values(), task.net.constants):
            digest.update(b"".join(_bytes(leaf) for leaf in leaves.values()))
    return digest.hexdigest()[:12]


def _bytes(leaf: Tensor) -> bytes:
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
