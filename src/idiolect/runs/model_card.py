"""The card of a personal model, as plain values in the file of its weights: what is needed to open it in another
process without the run or the data, and what there is to say about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..contract import ClientContext, Method, Training, methods, predicts_its_own_way
from ..core.errors import IdiolectError, InputError, ModelError, RunFolderError
from ..core.layout import InputLayout, read_layout
from ..core.registry import describe
from ..core.trust import named_by
from ..data import Federation
from ..task.losses import LOSSES, Loss
from ..task.metrics import Metric
from ..task.network import Net
from ..task.task import Task
from .architecture import Described, build_network, describe_network, fill, values_of
from .model_files import read_model
from .predictor import Predictor

if TYPE_CHECKING:
    from ..engines import Plan
    from .export import Personal

CARD = "card"
"""The name of the card among the metadata of the file."""
FORMAT = 1
LARGEST_RATIO = 100
"""A card is believed that describes a network of at most so many times the numbers that its file holds; methods that
send parts of a network keep fewer than it has."""
DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.int64, torch.bool)}


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Everything by name that a model predicts with, as it is written to a file."""
    return {name: leaf.clone().contiguous().cpu() for name, leaf in values_of(module).items()}


def make_card(personal: Personal, module: nn.Module, networks: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The card of a personal model, which `module` is; `networks` are those that are described already, by number."""
    plan, task = personal.plan, personal.plan.task_of(personal.index)
    data, client = plan.data, plan.data.clients[personal.index]
    layout, number = data.layout, plan.networks[personal.index] if plan.networks else 0
    described = describe_task_data(plan, number)
    if number not in networks:
        networks[number] = describe_task_network(plan, number)
    return {
        "format": FORMAT,
        **{name: personal.facts[name] for name in _FACTS if name in personal.facts},
        "data": {"name": data.name, "fingerprint": data.fingerprint, "partition": data.partition},
        "network": networks[number],
        "inputs": {
            **asdict(described),
            "dtype": str(client.x.dtype).removeprefix("torch."),
            "layout": None if layout is None else layout.as_plain(),
        },
        "targets": {
            "dtype": str(client.y.dtype).removeprefix("torch."),
            "classes": task.classes,
            "loss": next((name for name, loss in LOSSES.items() if loss is task.loss_fn), None),
            "head": task.head_name,
        },
        "preprocessing": {
            "transform": None if data.transform is None else str(data.transform),
            "shift": None if client.shift is None or not personal.client else str(client.shift),
            "columns": None if data.prepared is None else data.prepared.as_dict(personal.client),
        },
        "names": names_of(data, personal.index if personal.client else None),
        "scores": [list(score) for score in personal.scores],
        "prediction": _describe_prediction(personal, module),
    }


def describe_task_data(plan: Plan, number: int) -> Described:
    """What one of a plan's networks must know of the data."""
    described, classes = Described.of(plan.data), plan.tasks[number].classes
    return described if plan.data.classes is None or classes is None else replace(described, outputs=classes)


def describe_task_network(plan: Plan, number: int) -> dict[str, Any]:
    """One of a plan's networks as plain values."""
    described, first = describe_task_data(plan, number), plan.data.clients[0]
    x = None
    if plan.data.layout is None:
        x = draw_inputs(described.input_shape, first.x.dtype, described.vocabulary)
    return describe_network(plan.tasks[number].module, plan.built_by[number] if plan.built_by else "", described, x)


_FACTS = ("client", "clients", "method", "round", "rounds", "training_samples", "config_hash", "idiolect")


def _describe_prediction(personal: Personal, module: nn.Module) -> dict[str, Any] | None:
    """How slots become outputs, where that is more than a network's forward pass: by the method's `predict`."""
    if not isinstance(module, Predictor):
        return None
    method, precision = personal.plan.method, personal.plan.task_of(personal.index).net.precision
    return {
        "method": describe(method) if _is_named(method) else None,
        "client": personal.index,
        "rounds": personal.plan.rounds,
        "bf16": precision is not None,
        "slots": module.places,
    }


def _is_named(method: Method) -> bool:
    try:
        return methods.build(describe(method)) == method
    except IdiolectError:
        return False


def names_of(data: Federation, index: int | None) -> dict[str, list[str]]:
    """What the data call things; the classes are a client's own where it has its own."""
    own = data.clients[index].labels if index is not None else ()
    return data.names.as_dict() | ({"classes": list(own)} if own else {})


def draw_inputs(shape: tuple[int, ...], dtype: torch.dtype, vocabulary: int, count: int = 2) -> Tensor:
    """Inputs of a shape that are nobody's: random numbers, or random tokens."""
    draw = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.rand(count, *shape, generator=draw, dtype=dtype)
    return torch.randint(0, max(1, vocabulary), (count, *shape), generator=draw).to(dtype)


def read_card(path: Path | str) -> dict[str, Any]:
    """What a personal model's file says of it: client, method, round, network, inputs, targets, preprocessing, names of
    classes, features and words, scores, and the fingerprint of the data.

    >>> import idiolect
    >>> clients = {"ann": ([[0.0], [1.0]] * 9, [0, 1] * 9), "bob": ([[0.0], [1.0]] * 9, [1, 0] * 9)}
    >>> result = idiolect.run("local", clients, model="linear", rounds=1)
    >>> path, _ = result.save_models(getfixture("tmp_path") / "models")
    >>> card = idiolect.read_card(path)
    >>> card["client"], card["method"], card["inputs"]["input_shape"]
    ('ann', 'local', [1])
    """
    return _parse(read_model(Path(path))[1], Path(path))


def _parse(about: Mapping[str, str], path: Path) -> dict[str, Any]:
    if CARD not in about:
        raise InputError(
            f"the file {path} has weights, but no card that says of which network; build the network, and give it as "
            "load_model(path, module)"
        )
    try:
        card = json.loads(about[CARD])
        number = card["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"the card in {path} cannot be read: {error}; save or export the model again") from error
    if number != FORMAT:
        raise RunFolderError(
            f"the card in {path} has the format {number}, and this Idiolect reads {FORMAT}; open it with the Idiolect "
            f"that wrote it, {card.get('idiolect')}"
        )
    return dict(card)


def load_model(path: Path | str, module: nn.Module | None = None, *, trust: bool = False) -> nn.Module:
    """Open a personal model that `Result.save_models` or `idiolect export` wrote, in evaluation mode: without the run
    and without the data, which its file says nothing of. `read_card` tells what it is.

    Args:
        path: the file.
        module: the network, where the file cannot build it: one that was given built, of a class that does not keep
            its arguments. It is filled with the values.
        trust: run code that the file names, as in `mine.py:Net`, though no run on this machine has used it.

    >>> import idiolect, torch
    >>> result = idiolect.run("fedrod", "digits", clients=5, rounds=1)
    >>> path = result.save_models(getfixture("tmp_path") / "models")[2]
    >>> model, x = load_model(path), torch.rand(3, 1, 8, 8)
    >>> torch.equal(model(x), result.model(2)(x))
    True
    """
    path = Path(path)
    values, about = read_model(path)
    if module is not None and (CARD not in about or values_of(module).keys() == values.keys()):
        return fill(module, values).eval()
    card = _parse(about, path)
    try:
        with named_by(path, trust):
            return _open(card, values, module).eval()
    except IdiolectError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise RunFolderError(
            f"the card in {path} describes no model that can be built ({type(error).__name__}: {error}); save or "
            "export it again"
        ) from error


def _open(card: Mapping[str, Any], values: Mapping[str, Tensor], module: nn.Module | None) -> nn.Module:
    inputs, targets = card["inputs"], card["targets"]
    shape = inputs["input_shape"]
    described = Described(
        to_tuples(shape), tuple(inputs["target_shape"]), inputs["outputs"], inputs["tokens"], inputs["vocabulary"]
    )
    held = sum(leaf.numel() for leaf in values.values())
    network = build_network(card["network"], described, module, most=LARGEST_RATIO * held)
    prediction = card["prediction"]
    if prediction is None:
        return fill(network, values)
    if prediction["method"] is None:
        raise ModelError(
            f"the method {card['method']} was given in Python and has no name by which it is found; register it, or "
            "name it as file.py:Class, and save the model again"
        )
    method = methods.build(prediction["method"])
    if not predicts_its_own_way(method):
        raise ModelError(f"{prediction['method']} predicts with its network alone, but the file says otherwise")
    layout = None if inputs["layout"] is None else read_layout(inputs["layout"])
    example = make_example(described, layout, DTYPES[inputs["dtype"]], DTYPES[targets["dtype"]])
    loss: str | Loss = targets["loss"] or any_loss
    task = Task(
        network, example, loss, {"none": Metric(any_loss, each=True)}, targets["classes"], targets["head"], layout
    )
    task.net.precision = torch.bfloat16 if prediction["bf16"] else None
    ctx = ClientContext(
        method=method,
        task=task,
        nets={name: Net(net) for name, net in method.modules(task).items()},
        training=Training(),
        round=prediction["rounds"] - 1,
        rounds=prediction["rounds"],
        index=prediction["client"],
        variant=method.variant(prediction["client"]),
        newcomer=False,
    )
    slots = {
        slot: {leaf: values[name] for leaf, name in leaves.items()} for slot, leaves in prediction["slots"].items()
    }
    return fill(Predictor(ctx, slots, method.needs.eval_batch), values)


def make_example(
    described: Described, layout: InputLayout | None, inputs: torch.dtype, targets: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Two samples that are nobody's, zeros, which show the shapes of inputs and targets."""
    y = torch.zeros(2, *described.target_shape, dtype=targets)
    if layout is None:
        return torch.zeros(2, *described.input_shape, dtype=inputs), y
    return _one_step(torch.zeros(2, sum(leaf.size for leaf in layout.leaves), dtype=layout.dtype), layout), y


def draw_rows(data: Federation, count: int = 2) -> Tensor:
    """Inputs for a model of some data that are nobody's; of several inputs, rows of zeros."""
    if data.layout is None:
        described = Described.of(data)
        return draw_inputs(described.input_shape, data.clients[0].x.dtype, described.vocabulary, count)
    rows = torch.zeros(count, sum(leaf.size for leaf in data.layout.leaves), dtype=data.layout.dtype)
    return _one_step(rows, data.layout)


def _one_step(rows: Tensor, layout: InputLayout) -> Tensor:
    """Rows of zeros in which every sequence has one step."""
    at = 0
    for leaf in layout.leaves:
        if leaf.sequence:
            rows[:, at] = 1
        at += leaf.size
    return rows


def to_tuples(shape: Any) -> Any:
    """Shapes as JSON has them, with tuples again."""
    if isinstance(shape, dict):
        return {name: to_tuples(part) for name, part in shape.items()}
    return tuple(map(to_tuples, shape)) if isinstance(shape, list) else shape


def any_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss that nobody asks for."""
    return 0 * outputs.reshape(len(outputs), -1).sum(1)
