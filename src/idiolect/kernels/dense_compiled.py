"""Gradients and SGD steps of dense networks, compiled with numba; `dense.py` says in plain PyTorch what is computed.

Works client by client, so that a client's model stays in the cache for all of its steps. Activations are stored
transposed, `[units, samples]`. Used for float32 on the CPU where numba is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import Grad
from ..core.tree import Tree
from ..task.task import Batch, Scored
from .dense import Dense, Layer
from .matmul import multiply, transpose
from .simd import LANES, jit

EMPTY = np.empty((0, 0, 0), np.float32)


class CompiledDense(Dense):
    """A dense network whose gradients and steps are compiled."""

    def grad(self, slot: str, params: Mapping[str, Tensor], batch: Batch, part: frozenset[str] | None) -> Grad:
        """The gradient of one client's loss, or of all clients that `torch.func.vmap` traces as one."""
        leaves = [batch.x.flatten(1), batch.y, batch.weight, *self.parameters(params)]
        if not self.accepts(leaves[0], leaves[3]) or any(leaf.requires_grad for leaf in leaves):
            return super().grad(slot, params, batch, part)
        names = [name for name in params if part is None or name in part]
        trained = [layer.weight in names or layer.bias in names for layer in self.layers]
        results = gradients_of_one(leaves, self.relus, trained)
        grads = dict(zip(self.names, results, strict=False))
        loss, logits, features = results[-3:]
        return Grad({slot: {name: grads[name] for name in names}}, Scored(loss, logits, features, {}))

    def sgd_(self, params: Tree, batches: Batch, trained: Sequence[bool], lr: float) -> Tensor:
        """Plain SGD steps of a stack, in place; returns the losses before each."""
        x, depth, leaves = batches.x.flatten(3), len(self.layers), self.parameters(params)
        if not self.accepts(x, leaves[0]):
            return super().sgd_(params, batches, trained, lr)
        weights, biases = leaves[:depth], leaves[depth:]
        updated, losses = (flat_arrays(weights), flat_arrays(biases)), torch.empty(batches.y.shape[:2])
        network, samples = layer_arrays(weights, self.relus, trained), sample_arrays(x, batches.y, batches.weight)
        run_steps(*updated, *updated, *network, *samples, -lr, True, losses.numpy(), EMPTY, EMPTY)
        return losses

    def accepts(self, x: Tensor, weight: Tensor) -> bool:
        """Whether inputs fit the first layer; if not, PyTorch says what is wrong."""
        return x.dtype == torch.float32 and x.shape[-1] == weight.shape[-1]

    @property
    def relus(self) -> list[bool]:
        """Which layers a ReLU follows."""
        return [layer.relu for layer in self.layers]

    @property
    def names(self) -> list[str | None]:
        """The names of all weights, then of all biases; None where a layer has no bias."""
        return [layer.weight for layer in self.layers] + [layer.bias for layer in self.layers]

    def parameters(self, params: Mapping[str, Tensor]) -> list[Tensor]:
        """All weights, then all biases; an empty tensor where a layer has no bias."""
        empty = params[self.layers[0].weight].new_empty(0)
        return [empty if name is None else params[name] for name in self.names]


@torch.library.custom_op("idiolect::dense_gradients", mutates_args=())
def gradients_of_one(leaves: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool]) -> list[Tensor]:
    """The gradients of one client's weights and biases (empty where nothing is trained or there is no bias), its loss,
    logits and features, from inputs, targets, sample weights, all weights and all biases."""
    return [result[0] for result in gradients_of_stack([leaf[None] for leaf in leaves], relus, trained)]


@gradients_of_one.register_vmap
def gradients_of_traced(
    info: Any, in_dims: Any, leaves: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool]
) -> tuple[list[Tensor], list[int]]:
    """The same for all clients that `torch.func.vmap` traces as one."""
    stacks = [
        leaf.expand(info.batch_size, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
        for leaf, axis in zip(leaves, in_dims[0], strict=True)
    ]
    results = gradients_of_stack(stacks, relus, trained)
    return results, [0] * len(results)


def gradients_of_stack(leaves: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool]) -> list[Tensor]:
    """The same for a stack of clients, [clients, ...]."""
    if not all(map(has_memory, leaves)):
        return plain_gradients(leaves, relus)
    (x, y, weight), depth = leaves[:3], len(relus)
    weights, biases = leaves[3 : 3 + depth], leaves[3 + depth :]

    def allocate(leaves: Sequence[Tensor]) -> list[Tensor]:
        return [leaf.new_empty(leaf.shape if use else len(leaf)) for leaf, use in zip(leaves, trained, strict=True)]

    grad_weights, grad_biases, (outputs, width) = allocate(weights), allocate(biases), weights[-1].shape[1:]
    scores = x.new_empty(1, len(y)), x.new_empty(*y.shape, outputs), x.new_empty(*y.shape, width)
    arrays = (flat_arrays([leaf.contiguous() for leaf in ls]) for ls in (weights, biases, grad_weights, grad_biases))
    samples = sample_arrays(x[None], y[None], weight[None])
    run_steps(*arrays, *layer_arrays(weights, relus, trained), *samples, 1.0, False, *(leaf.numpy() for leaf in scores))
    return [*grad_weights, *grad_biases, scores[0][0], *scores[1:]]


def has_memory(leaf: Tensor) -> bool:
    """Whether compiled code may read a tensor: it has memory of its own, and nothing differentiates through it. Tensors
    inside of further `torch.func` transforms have none."""
    try:
        return leaf.data_ptr() is not None and not leaf.requires_grad
    except RuntimeError:
        return False


def plain_gradients(leaves: Sequence[Tensor], relus: Sequence[bool]) -> list[Tensor]:
    """`gradients_of_stack` in plain PyTorch."""
    batch, depth = Batch(*leaves[:3]), len(relus)
    names = [f"{kind}{index}" for kind in ("weight", "bias") for index in range(depth)]
    params = {name: leaf for name, leaf in zip(names, leaves[3:], strict=True) if leaf.numel()}
    layers = [Layer(w, b if b in params else None, r) for w, b, r in zip(names, names[depth:], relus, strict=False)]
    grads, passed = Dense(layers).gradients(params, batch, batch.x)
    results = [grads.get(name, batch.x.new_empty(len(batch.y))) for name in names]
    return [*results, passed.loss, passed.logits, passed.inputs[-1]]


def flat_arrays(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """Contiguous tensors as flat arrays that share their memory."""
    return tuple(leaf.view(-1).numpy() for leaf in leaves)


def layer_arrays(weights: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool]) -> tuple[Any, Any, Any]:
    """The widths of a network's inputs and layers; which layers have a ReLU; which are trained."""
    return np.array([weights[0].shape[-1], *(leaf.shape[-2] for leaf in weights)]), np.array(relus), np.array(trained)


def sample_arrays(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights, normalised to a sum of one per step and client, as arrays."""
    share = weight / weight.sum(2, keepdim=True)
    return x.contiguous().view(-1).numpy(), y.contiguous().numpy(), share.contiguous().numpy()


@jit
def run_steps(
    weights: Any, biases: Any, grad_weights: Any, grad_biases: Any, widths: Any, relus: Any, trained: Any, x: Any,
    y: Any, share: Any, scale: float, add: bool, losses: Any, logits: Any, features: Any,
) -> None:  # fmt: skip
    """Forward and backward passes of many clients' networks, several steps one after another.

    Args:
        weights, biases: per layer one flat array with those of all clients; a bias may be empty.
        grad_weights, grad_biases: where the gradients are written, times `scale`. To make an SGD step, they are the
            weights and biases themselves, and the scale is minus the learning rate.
        widths: the widths of the inputs and of every layer.
        relus, trained: per layer, whether a ReLU follows it and whether it gets a gradient.
        x, y, share: inputs (flat), targets and normalised sample weights, [steps, clients, samples].
        scale: the factor of the gradients.
        add: whether gradients are added to what is there.
        losses: [steps, clients], written.
        logits, features: [clients, samples, ...], written for the last step; not if they are empty.
    """
    steps, clients, samples = y.shape
    depth, stride, lowest = len(relus), -(-samples // LANES) * LANES, 0
    while lowest < depth and not trained[lowest]:
        lowest += 1
    offsets = np.zeros(depth + 2, np.int64)
    offsets[1:] = np.cumsum(widths)
    activations = np.zeros(offsets[-1] * stride, np.float32)  # of all layers, [units, samples]
    inputs = np.zeros(max(1, offsets[-2] * samples), np.float32)  # of all layers but the first, [samples, units]
    grad, grad_input = np.zeros(widths.max() * stride, np.float32), np.zeros(widths.max() * stride, np.float32)
    for client in range(clients):
        for step in range(steps):
            first = (step * clients + client) * samples * widths[0]
            transpose(x, first, widths[0], samples, widths[0], activations, 0, stride)
            for layer in range(depth):
                apply_layer(weights[layer], biases[layer], client, widths[layer : layer + 2], relus[layer], activations,
                            offsets[layer] * stride, offsets[layer + 1] * stride, stride)  # fmt: skip
                if layer + 1 < depth:
                    at, width = offsets[layer + 1], widths[layer + 1]
                    transpose(activations, at * stride, stride, width, samples, inputs, at * samples, width)
            losses[step, client] = cross_entropy_grad(activations[offsets[depth] * stride :], stride, widths[depth],
                                                      y[step, client], share[step, client], scale, grad)  # fmt: skip
            for layer in range(depth - 1, lowest - 1, -1):
                width_out, width_in = widths[layer + 1], widths[layer]
                weight_at = client * width_out * width_in
                if layer > lowest:
                    multiply(grad_input, 0, stride, width_in, stride, weights[layer], weight_at, 1, width_in, grad, 0,
                             stride, width_out, False)  # fmt: skip
                if trained[layer]:
                    source, at = (inputs, offsets[layer] * samples) if layer else (x, first)
                    multiply(grad_weights[layer], weight_at, width_in, width_out, width_in, grad, 0, stride, 1, source,
                             at, width_in, samples, add)  # fmt: skip
                    sum_samples(grad, stride, width_out, samples, grad_biases[layer], client * width_out, add)
                if layer > lowest:
                    if relus[layer - 1]:
                        relu_backward(grad_input, activations, offsets[layer] * stride, width_in * stride)
                    grad, grad_input = grad_input, grad
        if logits.size:
            transpose(activations, offsets[depth] * stride, stride, widths[depth], samples, logits[client].reshape(-1),
                      0, widths[depth])  # fmt: skip
            source, at = (inputs, offsets[depth - 1] * samples) if depth > 1 else (x, first)
            last = features[client].reshape(-1)
            last[:] = source[at : at + len(last)]


@jit
def apply_layer(
    weight: Any, bias: Any, client: int, widths: Any, relu: bool, activations: Any, at: int, out_at: int, stride: int
) -> None:
    """The outputs of one linear layer, and its ReLU if it has one; inputs and outputs lie in `activations`."""
    inputs, outputs = widths
    for unit in range(outputs):
        start = bias[client * outputs + unit] if len(bias) else np.float32(0)
        for index in range(out_at + unit * stride, out_at + (unit + 1) * stride):
            activations[index] = start
    multiply(activations, out_at, stride, outputs, stride, weight, client * outputs * inputs, inputs, 1, activations,
             at, stride, inputs, True)  # fmt: skip
    if relu:
        for index in range(out_at, out_at + outputs * stride):
            activations[index] = np.float32(0) if activations[index] < 0 else activations[index]


@jit
def cross_entropy_grad(logits: Any, stride: int, classes: int, y: Any, share: Any, scale: float, grad: Any) -> Any:
    """Write `scale` times the gradient of the cross-entropy with respect to the logits; return the loss."""
    loss = np.float32(0)
    grad[: classes * stride] = 0
    for sample in range(len(y)):
        if not 0 <= y[sample] < classes:
            raise IndexError("a target is not among the classes that the network has outputs for")
        largest = logits[sample]
        for unit in range(1, classes):
            largest = max(largest, logits[unit * stride + sample])
        total = np.float32(0)
        for unit in range(classes):
            grad[unit * stride + sample] = np.exp(logits[unit * stride + sample] - largest)
            total += grad[unit * stride + sample]
        factor, target = np.float32(scale) * share[sample], y[sample] * stride + sample
        for unit in range(classes):
            grad[unit * stride + sample] *= factor / total
        grad[target] -= factor
        loss += share[sample] * (largest + np.log(total) - logits[target])
    return loss


@jit
def relu_backward(grad: Any, activations: Any, at: int, count: int) -> None:
    """Set the gradient to zero where a ReLU gave zero."""
    for index in range(count):
        grad[index] = np.float32(0) if activations[at + index] <= 0 else grad[index]


@jit
def sum_samples(grad: Any, stride: int, width: int, samples: int, out: Any, at: int, add: bool) -> None:
    """The gradient of a bias, if the layer has one: sums over the samples."""
    for unit in range(width if len(out) else 0):
        total = out[at + unit] if add else np.float32(0)
        for sample in range(samples):
            total += grad[unit * stride + sample]
        out[at + unit] = total
