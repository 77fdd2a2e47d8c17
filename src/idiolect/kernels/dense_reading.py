"""Dense networks in any module: `read_dense` finds the operations of one that has no others."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from ..task.losses import cross_entropy
from ..task.network import is_inert
from ..task.task import Task
from .reading import RELUS, read_arguments
from .tracing import trace

LINEAR, RELU, GELU, NORM, ADD, MEAN = range(6)
"""Kinds of operations; MEAN is that of the embeddings of a sample's tokens."""
ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
FLATTENING = (torch.flatten, torch.reshape, "flatten", "reshape", "view")  # that nothing else happens is checked
SHAPES = ("size", getattr, operator.getitem, len)


class Operation(NamedTuple):
    """One operation on rows of numbers.

    Attributes:
        kind: LINEAR, RELU, GELU, NORM, ADD or MEAN.
        inputs: the values that enter it. Value 0 is the network's input, value n + 1 what operation n gives.
        weight, bias: the names of its parameters.
        eps: of a normalisation.
    """

    kind: int
    inputs: tuple[int, ...]
    weight: str | None = None
    bias: str | None = None
    eps: float = 0.0


def read_dense(task: Task) -> list[Operation]:
    """The operations of a network of linear layers, ReLUs, GELUs, layer normalisations and additions, with means of
    embeddings in front, under cross-entropy; empty if it is anything else."""
    if task.loss_fn != cross_entropy or task.example[1].ndim != 1 or task.net.precision is not None:
        return []
    if task.net.buffers or task.net.constants or task.net.call is not None:
        return []
    module = task.twin().net.module
    forget_taps(module, task)
    graph = trace(module)
    operations = [] if graph is None else read_operations(graph, module)
    names = [name for operation in operations for name in (operation.weight, operation.bias) if name is not None]
    places = list(module.named_parameters(remove_duplicate=False))
    complete = sorted(names) == sorted(task.net.params) and len(places) == len(names)
    return operations if complete and operations[-1].kind == LINEAR else []


def forget_taps(module: nn.Module, task: Task) -> None:
    """Remove from a copy of a task's network the hook by which the task sees the features."""
    head = dict(module.named_modules()).get(task.head_unit.name)
    hooks = {} if head is None else head._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "__func__", None) is Task._tap]:
        del hooks[key]


def read_operations(graph: fx.Graph, module: nn.Module) -> list[Operation]:
    """The operations of a graph; empty if there are others."""
    operations, values, embedded = list[Operation](), dict[fx.Node, int](), dict[fx.Node, str]()
    for node in graph.nodes:
        source = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        if node.op == "placeholder":
            values[node] = 0
        elif node.op in ("get_attr", "output") or node.target in SHAPES:
            continue
        elif node.op == "call_module":
            layer = module.get_submodule(node.target)
            if source is None or not (is_inert(layer) or type(layer) is nn.Identity):
                return []
            values[node] = source
        elif node.target is F.embedding and (table := read_embedding(node)) is not None and source == 0:
            embedded[node] = table
        elif node.target in (torch.mean, "mean") and node.args[0] in embedded:
            if read_arguments(node, {"dim": None, "keepdim": False}, ()) not in mean_of_tokens(node.args[0]):
                return []
            operations.append(Operation(MEAN, (0,), embedded[node.args[0]]))
            values[node] = len(operations)
        elif source is not None and node.target in FLATTENING:
            values[node] = source
        elif source is not None and (operation := read_operation(node, source, values)) is not None:
            operations.append(operation)
            values[node] = len(operations)
        else:
            return []
    last: Any = next(iter(reversed(graph.nodes))).args[0]
    return operations if values.get(last) == len(operations) else []


def read_operation(node: fx.Node, source: int, values: dict[fx.Node, int]) -> Operation | None:
    """One operation, if it is known."""
    if node.target is F.linear:
        given = read_arguments(node, {"bias": None}, ("weight",))
        return _with_parameters(LINEAR, source, given)
    if node.target in RELUS:
        return Operation(RELU, (source,))
    if node.target is F.gelu and read_arguments(node, {"approximate": "none"}, ())["approximate"] == "none":
        return Operation(GELU, (source,))
    if node.target is F.layer_norm:
        given = read_arguments(node, {"weight": None, "bias": None, "eps": 1e-5}, ("normalized_shape",))
        return _with_parameters(NORM, source, given)
    other = node.args[1] if len(node.args) == 2 and not node.kwargs else None
    if node.target in ADDITIONS and isinstance(other, fx.Node) and other in values:
        return Operation(ADD, (source, values[other]))
    return None


def _with_parameters(kind: int, source: int, given: dict[str, Any]) -> Operation | None:
    """An operation whose weight, and whose bias if it has one, are the module's own."""
    weight, bias = given["weight"], given["bias"]
    if not all(leaf is None or leaf.op == "get_attr" for leaf in (weight, bias)) or weight is None:
        return None
    return Operation(kind, (source,), weight.target, None if bias is None else bias.target, given.get("eps", 0.0))


def read_embedding(node: fx.Node) -> str | None:
    """The name of the table of an embedding without options."""
    defaults = {"padding_idx": None, "max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
    given = read_arguments(node, defaults, ("weight",))
    plain = (
        given["padding_idx"] is given["max_norm"] is None and not given["scale_grad_by_freq"] and not given["sparse"]
    )
    return given["weight"].target if plain and given["weight"].op == "get_attr" else None


def mean_of_tokens(node: fx.Node) -> list[dict[str, Any]]:
    """The arguments of a mean over the tokens of embeddings."""
    return [{"input": node, "dim": dim, "keepdim": False} for dim in (1, -2, (1,), [1])]
