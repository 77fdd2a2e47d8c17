"""The output layer by itself, for methods that change or compare the features that enter it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...core import tree
from ...core.errors import ModelError
from ...core.tree import Tree
from ...task.task import Task
from ..context import RoundContext
from .class_statistics import no_features


def head_params(task: Task) -> Tree:
    """The initial values of the output layer, by their names in the model, its weight first."""
    return {name: task.net.params[name] for name in task.head_unit.params}


def initial_head(ctx: RoundContext) -> Tree:
    """The first value of a slot: the output layer of the initial model."""
    return head_params(ctx.task)


def zeros_like_head(ctx: RoundContext) -> Tree:
    """The first value of a slot: an output layer of zeros."""
    return tree.zeros_like(head_params(ctx.task))


def head_outputs(task: Task, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """What the output layer makes of features; `params` are the model's, or those of the layer alone.

    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1)), (torch.ones(2, 1),) * 2)
    >>> layer = {"1.weight": torch.tensor([[1.0, 3.0]]), "1.bias": torch.tensor([0.5])}
    >>> head_outputs(task, layer, torch.ones(1, 2))
    tensor([[4.5000]])
    """
    return task.net.apply_module(task.head_unit.name, {name: params[name] for name in task.head_unit.params}, features)


def no_outputs(ctx: RoundContext) -> Tree:
    """The first value of a slot: means of the output layer's outputs on no sample."""
    outputs = head_outputs(ctx.task, ctx.initial["params"], no_features(ctx)["mean"])
    return tree.zeros_like({"mean": outputs, "count": outputs[:, 0]})


def check_head(name: str, task: Task) -> None:
    """Raise an error unless the model classifies, one label per sample, by an output layer on a feature vector."""
    if task.classes is None or task.example[1].ndim != 1:
        raise ModelError(f"{name} works with one class per sample, which this task does not have; use another method")
    task.require_features(name)
    out = task.example_output
    if out.features.ndim != 2:
        raise ModelError(
            f"{name} works with one feature vector per sample, but the output layer {task.head_unit.name} gets the "
            f"shape {tuple(out.features.shape[1:])}; use a model that flattens or pools before its output layer"
        )
    alone = head_outputs(task, task.net.params, out.features)
    if alone.shape != out.outputs.shape or not torch.allclose(alone, out.outputs, atol=1e-5):
        raise ModelError(
            f"{name} feeds the output layer {task.head_unit.name} by itself, but the model computes more after it; use "
            "a model that ends with its output layer and trains it, or name that layer as the head"
        )


def divergence(means: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    r"""The mean over the known classes of the divergence of predictions, given as logits [classes, d], from the mean
    soft predictions of the classes.

    .. math:: \frac{1}{|J|} \sum_{j \in J} \mathrm{KL}\bigl(\bar q^j \,\|\, \mathrm{softmax}(logits^j)\bigr)

    >>> means = {"mean": torch.tensor([[0.5, 0.5], [0.0, 0.0]]), "count": torch.tensor([3.0, 0.0])}
    >>> divergence(means, torch.tensor([[7.0, 7.0], [1.0, 0.0]]))
    tensor(0.)
    """
    target, known = means["mean"], (means["count"] > 0).to(means["mean"].dtype)
    apart = (torch.xlogy(target, target) - target * logits.log_softmax(1)).sum(1)
    return (known * apart).sum() / known.sum().clamp_min(1)
