"""Gradients and SGD steps of dense networks, compiled with numba; `dense.py` says in plain PyTorch what is computed.

Used for float32 on the CPU where numba is installed. The compiled code is in `dense_steps.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import Grad
from ..core.tree import Tree
from ..task.task import Batch, Scored
from .dense import Dense
from .dense_reading import ADD, LINEAR, MEAN, Operation
from .dense_steps import run_steps

ONE_STEP, NO_CHANGES = np.zeros(1, np.int64), np.zeros((0, 0, 0, 0, 0), np.float32)
NO_FLOATS, NO_TOKENS = np.empty(0, np.float32), np.empty(0, np.int64)


class CompiledDense(Dense):
    """A dense network whose gradients and steps are compiled."""

    def grad(self, slot: str, params: Mapping[str, Tensor], batch: Batch, part: frozenset[str] | None) -> Grad:
        """The gradient of one client's loss, or of all clients that `torch.func.vmap` traces as one."""
        leaves = [batch.x.flatten(1), batch.y, batch.weight, *(params[name] for name in self.names)]
        if not self.accepts(leaves[0], params) or any(leaf.requires_grad for leaf in leaves):
            return super().grad(slot, params, batch, part)
        trained = [part is None or name in part for name in self.names]
        wanted = {name: leaf.shape for name, leaf, use in zip(self.names, leaves[3:], trained, strict=True) if use}
        (samples,), outputs = batch.y.shape, params[self.layers[-1].weight or ""].shape
        shapes = [*wanted.values(), (), *((samples, width) for width in outputs)]
        pieces = gradients_of_one(leaves, json.dumps([*self.code, trained])).split([*map(count, shapes)])
        results = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        grads = dict(zip(wanted, results, strict=False))
        loss, logits, features = results[-3:]
        return Grad({slot: {n: grads[n] for n in params if n in grads}}, Scored(loss, logits, features, {}))

    def change_(
        self, params: Tree, others: Tensor, batches: Batch, batch_of: Sequence[int], changes: Any,
        trained: Sequence[bool],
    ) -> Scored:  # fmt: skip
        """Steps of a stack, in place, that make sums; see `Dense.change_`."""
        x, leaves = batches.x.flatten(3), [params[name] for name in self.names]
        at_params, (_, clients, samples), steps = addresses(leaves), batches.y.shape, len(batch_of)
        places = tuple((0, leaf[0].numel()) for leaf in leaves)
        code, eps = self.code
        network = describe(tuple(code), tuple(eps), tuple(leaf.shape[1:] for leaf in leaves), x.shape[-1], places)
        classes, width = params[self.layers[-1].weight or ""].shape[1:]
        scores = torch.empty(steps, clients, 1 + samples * (classes + width))
        at = np.array([0, scores.stride(1), scores.stride(0)])
        losses = torch.empty(steps, clients)
        samples_of = sample_arrays(x, batches.y, batches.weight)
        run_steps(at_params, at_params, *network, np.array(trained), *samples_of, np.array(batch_of), changes,
                  others.view(-1).numpy(), losses.numpy(), scores.view(-1).numpy(), at)  # fmt: skip
        outputs, features = torch.split(scores[..., 1:], [samples * classes, samples * width], -1)
        shape = (steps, clients, samples)
        return Scored(losses, outputs.reshape(*shape, classes), features.reshape(*shape, width), {})

    def accepts(self, x: Tensor, params: Mapping[str, Tensor]) -> bool:
        """Whether inputs fit the first layer; if not, PyTorch says what is wrong."""
        if not super().accepts(x, params):
            return False
        first = self.operations[0]
        if first.kind == MEAN:
            return x.dtype == torch.int64 and x.shape[-1] > 0
        return x.dtype == torch.float32 and x.shape[-1] == params[first.weight or ""].shape[-1]

    @cached_property
    def code(self) -> tuple[list[int], list[float]]:
        """The operations as numbers, five each: the kind, two inputs, the numbers of weight and bias among the
        parameters, -1 for none; and the eps of each."""
        number: dict[str | None, int] = {None: -1, **{name: at for at, name in enumerate(self.names)}}
        rows = [(o.kind, o.inputs[0], o.inputs[-1], number[o.weight], number[o.bias]) for o in self.operations]
        return [each for row in rows for each in row], [o.eps for o in self.operations]


def count(shape: Sequence[int]) -> int:
    """How many numbers a tensor of a shape has."""
    total = 1
    for size in shape:
        total *= size
    return total


@torch.library.custom_op("idiolect::dense_gradients", mutates_args=())
def gradients_of_one(leaves: Sequence[Tensor], network: str) -> Tensor:
    """The gradients of one client's trained parameters, its loss, logits and features, one after another, from inputs,
    targets, sample weights and all parameters. They are one tensor, and the network (its code, and which parameters are
    trained) is one text, since every argument and result costs time on its way through PyTorch."""
    return gradients_of_stack([leaf[None] for leaf in leaves], network)[0]


@gradients_of_one.register_vmap
def gradients_of_traced(info: Any, in_dims: Any, leaves: Sequence[Tensor], network: str) -> tuple[Tensor, int]:
    """The same for all clients that `torch.func.vmap` traces as one."""
    stacks = [
        leaf.expand(info.batch_size, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
        for leaf, axis in zip(leaves, in_dims[0], strict=True)
    ]
    return gradients_of_stack(stacks, network), 0


def gradients_of_stack(leaves: Sequence[Tensor], network: str) -> Tensor:
    """The same for a stack of clients, [clients, ...]."""
    code, eps, trained = read_network(network)
    if not all(map(has_memory, leaves)):
        return plain_gradients(leaves, code, eps, trained)
    x, y, weight, *params = leaves
    shapes, places, at = tuple(leaf.shape[1:] for leaf in params), list[int](), 0
    for shape, use in zip(shapes, trained, strict=True):
        places.append(at)
        at += count(shape) if use else 0
    last = shapes[code[-2]]
    total = at + 1 + y.shape[1] * (last[0] + last[1])
    arguments = describe(code, eps, shapes, x.shape[-1], tuple((place, total) for place in places))
    results, params = torch.empty(len(y), total), [leaf.contiguous() for leaf in params]
    array, losses = results.view(-1).numpy(), np.empty((1, len(y)), np.float32)
    samples = sample_arrays(x[None], y[None], weight[None])
    run_steps(addresses(params), np.full(len(params), results.data_ptr()), *arguments, np.array(trained), *samples,
              ONE_STEP, NO_CHANGES, NO_FLOATS, losses, array, np.array([at, total, 0]))  # fmt: skip
    return results


@cache
def read_network(network: str) -> tuple[tuple[int, ...], tuple[float, ...], tuple[bool, ...]]:
    """The code of a network, and which of its parameters are trained."""
    code, eps, trained = map(tuple, json.loads(network))
    return code, eps, trained


def has_memory(leaf: Tensor) -> bool:
    """Whether compiled code may read a tensor: it has memory of its own, and nothing differentiates through it. Tensors
    inside of further `torch.func` transforms have none."""
    try:
        return leaf.data_ptr() is not None and not leaf.requires_grad
    except RuntimeError:
        return False


def plain_gradients(
    leaves: Sequence[Tensor], code: Sequence[int], eps: Sequence[float], trained: Sequence[bool]
) -> Tensor:
    """`gradients_of_stack` in plain PyTorch."""
    batch, params = Batch(*leaves[:3]), {str(at): leaf for at, leaf in enumerate(leaves[3:])}
    dense = Dense(tuple(decode(code[at : at + 5], eps[at // 5]) for at in range(0, len(code), 5)))
    grads, passed = dense.gradients(params, batch, batch.x)
    results = [grads[name] for name, use in zip(params, trained, strict=True) if use]
    results += [passed.loss, passed.values[-1], dense.features(passed)]
    return torch.cat([leaf.reshape(len(batch.y), -1) for leaf in results], 1)


def decode(numbers: Sequence[int], eps: float) -> Operation:
    """One operation of `CompiledDense.code`, with the numbers of its parameters as their names."""
    kind, first, second, weight, bias = numbers
    weight_name, bias_name = (None if at < 0 else str(at) for at in (weight, bias))
    return Operation(kind, (first, second) if kind == ADD else (first,), weight_name, bias_name, eps)


def addresses(leaves: Sequence[Tensor]) -> Any:
    """Where tensors begin in memory; whoever uses that keeps them."""
    for leaf in leaves:
        if leaf.dtype is not torch.float32 or not leaf.is_contiguous():
            raise TypeError("compiled steps need parameters of float32 that are contiguous")
    return np.array([leaf.data_ptr() for leaf in leaves], np.int64)


@cache
def describe(
    code: tuple[int, ...], eps: tuple[float, ...], shapes: tuple[tuple[int, ...], ...], inputs: int,
    places: tuple[tuple[int, int], ...],
) -> tuple[Any, ...]:  # fmt: skip
    """A network as arrays: its operations, their eps, the widths of all values (none for tokens), how many numbers each
    parameter has, and where its gradients are: those of the first client, and the distance to the next client's."""
    operations = np.array(code).reshape(-1, 5)
    widths = [0 if operations[0, 0] == MEAN else inputs]
    for kind, first, _, weight, _ in operations:
        widths.append(shapes[weight][0] if kind == LINEAR else shapes[weight][1] if kind == MEAN else widths[first])
    sizes = np.array([count(shape) for shape in shapes])
    return operations, np.array(eps, np.float32), np.array(widths), sizes, np.array(places)


def sample_arrays(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Any, Any, Any, Any]:
    """Inputs as numbers or as tokens, targets and sample weights, normalised to a sum of one per step and client."""
    share, flat = weight / weight.sum(2, keepdim=True), x.contiguous().view(-1).numpy()
    inputs = (NO_FLOATS, flat) if x.dtype == torch.int64 else (flat, NO_TOKENS)
    return *inputs, y.contiguous().numpy(), share.contiguous().numpy()
