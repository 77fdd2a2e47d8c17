"""From settings and the user's own objects to a plan. Everything that can be wrong is found here, before anything
runs."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..contract import Method, Training
from ..contract import methods as registry
from ..core.errors import InputError, ModelError
from ..data import Federation
from ..data import load as load_data
from ..engines import Plan
from ..kernels import has_bf16
from ..models import build as build_model
from ..models import default_model
from ..task.schedules import Custom, Schedule, schedules
from ..task.task import Task
from .settings import Config, configure, mark_objects

log = logging.getLogger("idiolect")

OBJECTS = ("data", "model", "loss", "metrics", "initial", "schedule", "public")
"""Settings that may be given as objects instead of by name."""
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
        if name in NETWORKS:
            objects |= {name: value} if len(value) else {}
        elif name in OBJECTS and not isinstance(value, str | float | None) and not _is_file(name, value):
            objects[name] = value
        else:
            settings[name] = str(value) if name in OBJECTS and value is not None else value
    marks = [name for name in objects if name in OBJECTS]
    if "method" in settings:
        objects["method"] = settings["method"] = registry.build(settings["method"])
    return mark_objects(configure(settings), marks), objects


def _is_file(name: str, value: Any) -> bool:
    return name == "initial" and isinstance(value, Path)


def make_plan(config: Config, objects: Mapping[str, Any]) -> Plan:
    """The plan that a configuration and the user's objects, by name, describe; an object counts before a setting."""
    method: Method = registry.build(objects.get("method") or config.method)
    data = resolve_data(config, objects)
    tasks = resolve_tasks(config, objects, data)
    for task in tasks:
        _place(task, config)
        method.check(task)
    if config.precision == "bf16" and not has_bf16(config.device):
        log.warning("this processor has no instructions for bf16, which will be many times slower than fp32")
    if method.needs.public and data.public is None:
        raise InputError(
            f"{method.name} needs public data, which everybody sees; give a source or a share, as in public=0.1"
        )
    return Plan(
        method=method,
        tasks=tasks,
        data=data,
        rounds=config.rounds,
        training=Training(
            optimizer=config.build_optimizer(),
            schedule=resolve_schedule(config, objects),
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
        networks=tuple(objects.get("model_of") or ()),
        after_local=config.after_local,
    )


def _place(task: Task, config: Config) -> None:
    """Move a network to the device, in the precision that is asked for."""
    try:
        task.net.to(config.device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device={config.device!r} cannot be used: {str(error).splitlines()[0]}; choose another, such as cpu"
        ) from error
    task.net.precision = torch.bfloat16 if config.precision == "bf16" else None


def resolve_schedule(config: Config, objects: Mapping[str, Any]) -> Schedule:
    """The schedule of the learning rate, from its name, a schedule or a function."""
    given: Schedule | Callable[[int, int], float] | None = objects.get("schedule")
    if given is None:
        return schedules.build(config.schedule)
    return given if isinstance(given, Schedule) else Custom(given)


def resolve_data(config: Config, objects: Mapping[str, Any]) -> Federation:
    """The federation that a configuration, or the user's own data, describes."""
    given = objects.get("data", config.data)
    if isinstance(given, Federation):
        return given
    return load_data(
        given,
        partition=config.partition,
        clients=config.clients,
        split=config.split,
        seed=config.seed,
        unseen=config.unseen,
        public=objects.get("public", config.public),
    )


def resolve_tasks(config: Config, objects: Mapping[str, Any], data: Federation) -> tuple[Task, ...]:
    """The model (or models) with loss and metrics, checked against the data."""
    modules = list(objects.get("models") or ())
    if not modules:
        given = objects.get("model")
        named = not isinstance(given, nn.Module)
        modules = [build_model(config.model or default_model(data), data, seed=config.seed) if named else given]
    initial = objects.get("initial", config.initial)
    if initial is not None:
        modules = [copy_with_weights(module, initial) for module in modules]
    x, y = data.clients[0].split("train")
    loss, metrics = objects.get("loss", config.loss), objects.get("metrics", config.metrics)
    return tuple(Task(module, (x[:2], y[:2]), loss, metrics, data.classes, config.head) for module in modules)


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
    """Raise an error if a method needs several networks and there is one."""
    if plan.method.needs.networks and len(plan.tasks) < 2:
        raise InputError(f"{plan.method.name} needs several networks; give models=[...] and model_of=[...]")


def weights_hash(plan: Plan) -> str:
    """A short hash of the initial weights, frozen ones as well."""
    digest = hashlib.sha256()
    for task in plan.tasks:
        for leaves in (*task.initial.values(), task.net.constants):
            digest.update(b"".join(_bytes(leaf) for leaf in leaves.values()))
    return digest.hexdigest()[:12]


def _bytes(leaf: Tensor) -> bytes:
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
