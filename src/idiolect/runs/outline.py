"""What the folder of a run knows of its data and networks: names, sizes, shapes and first weights, by which its models
are built again without the data. It is written once, when the run starts, and holds no sample."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..contract import methods
from ..core.errors import ModelError, RunFolderError, UntrustedCodeError
from ..core.layout import read_layout
from ..core.tree import Slots
from ..data import Client, Federation
from ..data.absent import AbsentInputs, AbsentTargets, DescribedFederation
from ..data.naming import Naming
from ..data.partitions import partitions
from ..data.partitions.shift import Shift
from ..data.preparing import read_prepared
from ..data.splits import SPLITS
from ..data.transforms import build_transforms
from ..engines import Plan
from ..engines.client_evaluation import adapt_phases
from ..task.losses import LOSSES
from ..task.metrics import Metric
from ..task.schedules import Schedule
from ..task.task import Task
from .architecture import Described, build_network
from .identity import FACT
from .model_card import DTYPES, any_loss, describe_task_data, describe_task_network, make_example, to_tuples
from .predictor import set_values
from .settings import OWN, Config
from .setup import assemble_plan, place, resolve_model
from .store import Store

OUTLINE = "outline"
MOST_CLIENTS = 100_000
"""A run of more clients is opened with its data."""


def record_outline(store: Store, plan: Plan) -> None:
    """Write down what a run's models can be built from, unless it is there, or there are too many clients to list."""
    if store.fact(OUTLINE) is None and len(plan.data) <= MOST_CLIENTS:
        store.keep(_values(plan), {OUTLINE: outline_of(plan)})


def has_outline(store: Store) -> bool:
    """Whether the folder of a run knows enough of its data; those of earlier versions do not."""
    return store.fact(OUTLINE) is not None


def headline_of(store: Store) -> tuple[str, str]:
    """The metric that counts, and the point at which it is measured."""
    outline = store.fact(OUTLINE)
    return next(iter(outline["networks"][0]["metrics"])), outline["point"]


def outline_of(plan: Plan) -> dict[str, Any]:
    """Data and networks of a plan as plain values."""
    data, first = plan.data, plan.data.clients[0]
    return {
        "data": {
            name: getattr(data, name) for name in ("name", "classes", "partition", "partition_hash", "seed", "loss")
        },
        "names": data.names.as_dict(),
        "point": "adapted" if adapt_phases(plan.context(data.seen[0], 0)) else "personal",
        "described": asdict(Described.of(data)),
        "inputs": {"shape": list(first.x.shape[1:]), "dtype": _name(first.x.dtype)},
        "targets": {"shape": list(first.y.shape[1:]), "dtype": _name(first.y.dtype)},
        "layout": None if data.layout is None else data.layout.as_plain(),
        "prepared": None if data.prepared is None else data.prepared.as_plain(),
        "shifted": any(client.shift for client in data.clients),
        "labels": [list(client.labels) for client in data.clients] if data.own_labels else None,
        "networks": [_describe_task(plan, number) for number in range(len(plan.tasks))],
    }


def _describe_task(plan: Plan, number: int) -> dict[str, Any]:
    task = plan.tasks[number]
    return {
        **describe_task_network(plan, number),
        "outputs": describe_task_data(plan, number).outputs,
        "classes": task.classes,
        "head": task.head_name,
        "loss": next((name for name, loss in LOSSES.items() if loss is task.loss_fn), None),
        "metrics": {name: metric.higher_is_better for name, metric in task.metrics.items()},
        "parameters": [task.parameters_total, task.parameters_trained],
    }


def _values(plan: Plan) -> Iterator[tuple[str, Slots]]:
    """The first values of each network, and what is known of each client's training data."""
    for number, task in enumerate(plan.tasks):
        yield f"network {number}", {**task.initial, "constants": task.net.constants}
    facts = [plan.facts(index) for index in range(len(plan.data))]
    splits = [[len(getattr(client, which)) for which in SPLITS] for client in plan.data.clients]
    yield (
        "clients",
        {
            "clients": {
                "splits": torch.tensor(splits),
                "samples": torch.stack([samples for samples, _ in facts]).cpu(),
                "classes": torch.stack([counts for _, counts in facts]).cpu(),
            }
        },
    )


def plan_without_data(store: Store, config: Config, objects: Mapping[str, Any], folder: Path) -> Plan:
    """The plan of the run in a folder, whose clients have no samples. What was given in Python and is not given again
    is missing where it is needed, and is asked for there."""
    outline, identity = store.fact(OUTLINE), store.fact(FACT)
    known = read_kept(store, "clients")["clients"]
    advice = (
        f"{folder} keeps no data, and this needs them: open it with the data it was run on,"
        f" idiolect.load({str(folder)!r}, data=...)"
    )
    data = _describe_data(outline, identity, known["splits"].tolist(), config, objects, advice)
    tasks = tuple(
        _open_task(store, number, outline, data, config, objects, folder) for number in range(len(outline["networks"]))
    )
    samples, counts = known["samples"].to(config.device), known["classes"].to(config.device)
    if config.schedule == OWN:
        objects = {"schedule": Schedule(), **objects}  # no model depends on it
    method = methods.build(objects.get("method") or config.method)
    built_by = [plain.get("expression", "") for plain in outline["networks"]]
    plan = assemble_plan(config, objects, method, data, tasks, tuple(identity["model_of"]), built_by)
    return replace(plan, known_facts={index: (samples[index], counts[index]) for index in range(len(data))})


def _describe_data(
    outline: Mapping[str, Any],
    identity: Mapping[str, Any],
    splits: list[list[int]],
    config: Config,
    objects: Mapping[str, Any],
    advice: str,
) -> Federation:
    named, (inputs, targets) = outline["data"], (outline["inputs"], outline["targets"])
    names, shifts = identity["clients"], list[Shift | None]([None] * len(splits))
    if outline["shifted"]:
        shifts = partitions.build(named["partition"]).shifts(len(splits))
    given = objects.get("transform", config.transform)
    transform = None if given == OWN else build_transforms(given)
    labels = outline["labels"] or [()] * len(splits)
    clients = []
    for at, sizes in enumerate(splits):
        train, val, test = torch.split(torch.arange(sum(sizes)), sizes)
        x = AbsentInputs((sum(sizes), *inputs["shape"]), DTYPES[inputs["dtype"]], advice)
        y: Any = AbsentTargets((sum(sizes), *targets["shape"]), DTYPES[targets["dtype"]], advice)
        clients.append(Client(names[at], x, y, train, val, test, shifts[at], transform, tuple(labels[at])))
    described = _described(outline["described"])
    return DescribedFederation(
        clients=tuple(clients),
        **named,
        unseen=frozenset(names.index(name) for name in identity["unseen"]),
        words=described.vocabulary or None,
        names=Naming(**{kind: tuple(listed) for kind, listed in outline["names"].items()}),
        prepared=None if outline["prepared"] is None else read_prepared(outline["prepared"]),
        layout=None if outline["layout"] is None else read_layout(outline["layout"]),
        transform=transform,
        known_fingerprint=identity["data"],
        known_shape=described.input_shape,
    )


def _open_task(
    store: Store,
    number: int,
    outline: Mapping[str, Any],
    data: Federation,
    config: Config,
    objects: Mapping[str, Any],
    folder: Path,
) -> Any:
    """A network with its first values, and its loss and metrics as far as they are known."""
    plain = outline["networks"][number]
    described = replace(_described(outline["described"]), outputs=plain["outputs"])
    models = objects.get("models") or ([objects["model"]] if "model" in objects else [])
    metrics = {
        name: Metric(_missing(f"the metric {name}", "metrics", folder), higher)
        for name, higher in plain["metrics"].items()
    }
    try:
        given = resolve_model(models[number], data, config.seed_of("init")) if len(models) > number else None
        module = copy.deepcopy(build_network(plain, described, given))
    except (ModelError, UntrustedCodeError) as error:
        or_trust = ", or allow its code with trust=True" * isinstance(error, UntrustedCodeError)
        return MissingTask(
            plain, metrics, f"{str(error).partition(';')[0]}; give it: {call(folder, 'model')}{or_trust}"
        )
    first = read_kept(store, f"network {number}")
    set_values(module, {name: leaf for leaves in first.values() for name, leaf in leaves.items()})
    has_loss = config.loss != OWN or "loss" in objects
    loss = objects.get("loss", config.loss or data.loss) if has_loss else any_loss
    known = objects.get("metrics", metrics if config.metrics == OWN or not has_loss else config.metrics)
    example = make_example(described, data.layout, *(DTYPES[outline[what]["dtype"]] for what in ("inputs", "targets")))
    task = Task(module, example, loss, known, plain["classes"], plain["head"], data.layout)
    if not has_loss:
        task.loss_fn = _missing("the loss", "loss", folder)
    place(task, config)
    return task


def read_kept(store: Store, name: str) -> Slots:
    """Values that the outline keeps in a store."""
    values = store.kept(name)
    if values is None:
        raise RunFolderError(f"{store.path} is damaged: {name} is missing; give the data: idiolect.load(..., data=...)")
    return values


class MissingTask:
    """Stands for a network that cannot be built from what the folder says of it: its metrics have names, and whatever
    needs the network itself asks for it."""

    def __init__(self, plain: Mapping[str, Any], metrics: Mapping[str, Metric], advice: str) -> None:
        self.metrics, self.classes, self.head_name = metrics, plain["classes"], plain["head"]
        self.parameters_total, self.parameters_trained = plain["parameters"]
        self._advice = advice

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModelError(self._advice)


def _missing(what: str, argument: str, folder: Path) -> Any:
    """A function that asks for what was given in Python."""

    def ask(outputs: Tensor, y: Tensor) -> NoReturn:
        raise ModelError(f"{what} was given in Python; give it again: {call(folder, argument)}")

    return ask


def call(folder: Path, argument: str) -> str:
    """What a user writes to open a run with something that is missing."""
    return f"idiolect.load({str(folder)!r}, {argument}=...)"


def _described(plain: Mapping[str, Any]) -> Described:
    shape, targets = to_tuples(plain["input_shape"]), to_tuples(plain["target_shape"])
    return Described(**{**plain, "input_shape": shape, "target_shape": targets})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
