"""The leading slices of a model: which shapes a width gives, and whether such a model computes. Nothing here knows of
clients or rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import ModelError
from ...core.tree import Tree
from ...task.task import Task

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm)


def slice_shapes(task: Task, width: float) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter and buffer at a width.

    Rows are ceil(width x rows) except in the output layer; a layer's inputs follow the layer before it, and what a
    flatten made of one channel stays together.

    >>> task = Task(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    ...             (torch.zeros(2, 4), torch.tensor([0, 1])), classes=3)
    >>> slice_shapes(task, 0.5)
    {'0.weight': (3, 4), '0.bias': (3,), '2.weight': (3, 3), '2.bias': (3,)}
    """
    leaves = {**task.net.params, **task.net.buffers}
    if width == 1:
        return {name: tuple(leaf.shape) for name, leaf in leaves.items()}
    named, shapes, before = dict(task.net.module.named_modules()), dict[str, tuple[int, ...]](), 0
    for unit in task.units:
        module = named.get(unit.name, task.net.module)
        if not isinstance(module, LAYERS + NORMS) or getattr(module, "groups", 1) != 1:
            what = type(module).__name__ + (" with groups" if isinstance(module, LAYERS) else "")
            raise ModelError(
                "heterofl takes leading channels of Linear and Conv layers and of batch and group norms, but "
                f"{unit.name} is a {what}; use rates=1, or a model without it"
            )
        for name in unit.params + unit.buffers:
            rows, *rest = leaves[name].shape or (0,)
            shape = [rows if unit is task.head_unit else count_kept(width, rows), *rest] if leaves[name].ndim else []
            if isinstance(module, LAYERS) and leaves[name].ndim > 1 and before:
                channels = before if rest[0] % before == 0 and isinstance(module, nn.Linear) else rest[0]
                shape[1] = count_kept(width, channels) * (rest[0] // channels)
            shapes[name] = tuple(shape)
        if isinstance(module, LAYERS):
            before = len(leaves[unit.params[0]])
    return {name: shapes[name] for name in leaves}


def count_kept(width: float, rows: int) -> int:
    """How many of the rows a width keeps: ceil(width x rows), where 0.1 x 30 is meant to be 3."""
    return math.ceil(width * rows - 1e-9)


def check_slices(task: Task, width: float) -> None:
    """Raise `ModelError` unless the sliced model computes what the whole one does with the other channels at zero."""
    if width == 1:
        return
    shapes, net, at = slice_shapes(task, width), task.net, ["its first layer"]
    x = task.example[0][:2].to(next(iter(net.params.values())).device)
    small = [{n: cut(leaf, shapes[n]) for n, leaf in leaves.items()} for leaves in (net.params, net.buffers)]
    zeroed = {n: paste(small[0][n], torch.zeros_like(leaf)) for n, leaf in net.params.items()}
    named = dict(net.module.named_modules())

    def note(name: str) -> Callable[..., None]:
        return lambda *_: at.append(name)

    hooks = [named[u.name].register_forward_pre_hook(note(u.name)) for u in task.units if u.name in named]
    try:
        outputs, wanted = net.apply(small[0], small[1], x).outputs, net.apply(zeroed, net.buffers, x).outputs
    except (RuntimeError, ValueError) as error:
        problem = f"{at[-1]} fails: {str(error).strip().splitlines()[0]}"
    else:
        grouped = any(isinstance(module, nn.GroupNorm) for module in net.module.modules())
        if outputs.shape == wanted.shape and (grouped or torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-5)):
            return
        problem = "some layer between them joins or mixes channels"
    finally:
        for hook in hooks:
            hook.remove()
    raise ModelError(
        f"heterofl cannot give a client the leading channels of this model's layers at width {width:g}: {problem}; "
        "use rates=1, or a model whose layers follow each other"
    )


def hidden_params(task: Task) -> frozenset[str]:
    """Weights and biases of all layers but the output layer, norms apart."""
    return task.names_of(unit for unit in task.units if not unit.is_norm and unit is not task.head_unit)


def scale_stats(task: Task, buffers: Tree, factor: float) -> Tree:
    """Running statistics of outputs that are `factor` times as large."""
    power = {n: 1 if n.endswith("running_mean") else 2 for n in task.stat_momentum}
    return {n: leaf * factor ** power[n] if n in power and factor != 1 else leaf for n, leaf in buffers.items()}


def cut(leaf: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The leading block of a leaf."""
    return leaf[tuple(slice(0, n) for n in shape)] if shape else leaf


def pad(block: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """A leading block in the shape of the whole, zeros around it, and where it is."""
    around = [n for a, b in zip(reversed(block.shape), reversed(whole.shape), strict=True) for n in (0, b - a)]
    return F.pad(block, around), F.pad(torch.ones_like(block, dtype=torch.bool), around)


def paste(block: Tensor, whole: Tensor) -> Tensor:
    """A leaf with its leading block replaced.

    >>> paste(torch.tensor([5.0]), torch.tensor([1.0, 2.0]))
    tensor([5., 2.])
    """
    padded, inside = pad(block, whole)
    return torch.where(inside, padded, whole)
