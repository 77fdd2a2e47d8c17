"""Whole steps of dense networks, compiled: client by client, so that a model stays in the cache for all steps that are
asked for. Activations are kept with one line per unit, `[units, samples]`. Needs numba; `dense.py` says what is
computed, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch as tracing

from ..contract import Grad
from ..core.tree import Tree
from ..task.task import Batch, Scored
from .dense import Dense
from .products import multiply, turn
from .vectors import LANES, kept

NONE = np.empty((0, 0, 0), np.float32)


class CompiledDense(Dense):
    """A dense network whose gradients and steps are compiled."""

    def grad(self, slot: str, params: Mapping[str, Tensor], batch: Batch, part: frozenset[str] | None) -> Grad:
        """The gradient of one client's loss with respect to `part` of its model, for `Context.grad`."""
        weights, biases = self.leaves(params)
        leaves, one = all_clients([*weights, *biases, *batch])
        x, depth = leaves[-3].flatten(2), len(self.layers)
        if not self.fits(params, x) or any(map(tracing.is_batchedtensor, leaves)):
            return super().grad(slot, params, batch, part)
        wanted = [name for name in params if part is None or name in part]
        trained = [layer.weight in wanted or layer.bias in wanted for layer in self.layers]
        found = [
            one(leaf) for leaf in gradients(leaves[:depth], leaves[depth:-3], self.relus, trained, x, *leaves[-2:])
        ]
        names = [layer.weight for layer in self.layers] + [layer.bias for layer in self.layers]
        grads = dict(zip(names, found, strict=False))
        loss, logits, features = found[2 * depth :]
        return Grad({slot: {name: grads[name] for name in wanted}}, Scored(loss, logits, features, {}))

    def descend_(self, params: Tree, batches: Batch, trained: Sequence[bool], rate: float) -> Tensor:
        """Plain SGD steps of a stack, in place; the losses before each."""
        x, (weights, biases) = batches.x.flatten(3), self.leaves(params)
        if not self.fits(params, x):
            return super().descend_(params, batches, trained, rate)
        to, losses = (flat(weights), flat(biases)), torch.empty(batches.y.shape[:2])
        network, drawn = described(weights, self.relus, trained), numbers(x, batches.y, batches.weight)
        dense_steps(*to, *to, *network, *drawn, -rate, True, losses.numpy(), NONE, NONE)
        return losses

    def fits(self, params: Mapping[str, Tensor], x: Tensor) -> bool:
        """Whether inputs are what the network takes; if not, PyTorch says what is wrong."""
        return x.dtype == torch.float32 and x.shape[-1] == params[self.layers[0].weight].shape[-1]

    @property
    def relus(self) -> list[bool]:
        """Which layers a ReLU follows."""
        return [layer.relu for layer in self.layers]

    def leaves(self, params: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and biases; a bias that a layer does not have is empty."""
        weights = [params[layer.weight] for layer in self.layers]
        none = weights[0].new_empty(0)
        return weights, [none if layer.bias is None else params[layer.bias] for layer in self.layers]


def all_clients(leaves: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """What leaves of the one client that `torch.func.vmap` traces stand for: those of all clients, with one more axis
    in front; and the way back. `torch.library.custom_op` would do the same, but takes as long as a step."""
    traced = next((leaf for leaf in leaves if tracing.is_batchedtensor(leaf)), None)
    if traced is None:
        return [leaf[None] for leaf in leaves], lambda leaf: leaf[0]
    clients, level = (
        tracing.get_unwrapped(traced).shape[tracing.maybe_get_bdim(traced)],
        tracing.maybe_get_level(traced),
    )

    def of_all(leaf: Tensor) -> Tensor:
        if not tracing.is_batchedtensor(leaf):
            return leaf.expand(clients, *leaf.shape)
        return tracing.get_unwrapped(leaf).movedim(tracing.maybe_get_bdim(leaf), 0)

    return [of_all(leaf) for leaf in leaves], lambda leaf: tracing._add_batch_dim(leaf, 0, level)


def gradients(
    weights: Sequence[Tensor], biases: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool], x: Tensor,
    y: Tensor, weight: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the weights and of the biases of all clients (empty where they are not trained), their losses, the
    logits, and the features that enter the last layer."""

    def room(leaves: Sequence[Tensor]) -> list[Tensor]:
        return [leaf.new_empty(leaf.shape if each else len(leaf)) for leaf, each in zip(leaves, trained, strict=True)]

    to_weights, to_biases, (outputs, width) = room(weights), room(biases), weights[-1].shape[1:]
    made = x.new_empty(1, len(y)), x.new_empty(*y.shape, outputs), x.new_empty(*y.shape, width)
    given = (flat([leaf.contiguous() for leaf in leaves]) for leaves in (weights, biases, to_weights, to_biases))
    drawn = numbers(x[None], y[None], weight[None])
    dense_steps(*given, *described(weights, relus, trained), *drawn, 1.0, False, *(each.numpy() for each in made))
    return [*to_weights, *to_biases, made[0][0], *made[1:]]


def flat(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """Leaves, each in one piece, as flat arrays that share their memory."""
    return tuple(leaf.view(-1).numpy() for leaf in leaves)


def described(weights: Sequence[Tensor], relus: Sequence[bool], trained: Sequence[bool]) -> tuple[Any, Any, Any]:
    """The widths of a network, and two facts per layer."""
    return np.array([weights[0].shape[-1], *(each.shape[-2] for each in weights)]), np.array(relus), np.array(trained)


def numbers(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Any, Any, Any]:
    """Inputs, targets and weights in the loss, which add up to one per step and client, as arrays."""
    share = weight / weight.sum(2, keepdim=True)
    return x.contiguous().view(-1).numpy(), y.contiguous().numpy(), share.contiguous().numpy()


@kept
def dense_steps(
    weights: Any, biases: Any, to_weights: Any, to_biases: Any, widths: Any, relus: Any, trained: Any, x: Any, y: Any,
    share: Any, scale: float, onto: bool, losses: Any, logits: Any, features: Any,
) -> None:  # fmt: skip
    """Forward and backward passes of n clients' networks, some steps one after another.

    Args:
        weights, biases: per layer one flat array with those of all clients; a bias may be empty.
        to_weights, to_biases: where the gradients go, times `scale`; increased by them, if `onto` (to step, they are
            the weights themselves and the scale is minus the rate), else replaced.
        widths: of the inputs and of every layer.
        relus, trained: per layer, whether a ReLU follows it and whether it gets a gradient.
        x, y, share: inputs (flat), classes and weights in the loss, [steps, clients, samples].
        losses: [steps, clients], to be filled.
        logits, features: [clients, samples, ...], filled with those of the last step; not, if they are empty.
    """
    steps, clients, samples = y.shape
    depth, line, lowest = len(relus), -(-samples // LANES) * LANES, 0
    while lowest < depth and not trained[lowest]:
        lowest += 1
    starts = np.zeros(depth + 2, np.int64)
    starts[1:] = np.cumsum(widths)
    turned = np.zeros(starts[-1] * line, np.float32)  # all activations, [units, samples]
    plain = np.zeros(max(1, starts[-2] * samples), np.float32)  # those that enter layers, [samples, units]
    slopes, before = np.zeros(widths.max() * line, np.float32), np.zeros(widths.max() * line, np.float32)
    for client in range(clients):
        for step in range(steps):
            first = (step * clients + client) * samples * widths[0]
            turn(x, first, widths[0], samples, widths[0], turned, 0, line)
            for layer in range(depth):
                forward(weights[layer], biases[layer], client, widths[layer : layer + 2], relus[layer], turned,
                        starts[layer] * line, starts[layer + 1] * line, line)  # fmt: skip
                if layer + 1 < depth:
                    at = starts[layer + 1]
                    turn(turned, at * line, line, widths[layer + 1], samples, plain, at * samples, widths[layer + 1])
            top = turned[starts[depth] * line :]
            losses[step, client] = slope_of_loss(top, line, widths[depth], y[step, client], share[step, client], scale,
                                                 slopes)  # fmt: skip
            for layer in range(depth - 1, lowest - 1, -1):
                width, inputs = widths[layer + 1], widths[layer]
                if layer > lowest:
                    multiply(before, 0, line, inputs, line, weights[layer], client * width * inputs, 1, inputs, slopes,
                             0, line, width, False)  # fmt: skip
                if trained[layer]:
                    entered, at = (plain, starts[layer] * samples) if layer else (x, first)
                    multiply(to_weights[layer], client * width * inputs, inputs, width, inputs, slopes, 0, line, 1,
                             entered, at, inputs, samples, onto)  # fmt: skip
                    add_sums(slopes, line, width, samples, to_biases[layer], client * width, onto)
                if layer > lowest:
                    if relus[layer - 1]:
                        stop(before, turned, starts[layer] * line, inputs * line)
                    slopes, before = before, slopes
        if logits.size:
            turn(turned, starts[depth] * line, line, widths[depth], samples, logits[client].reshape(-1), 0,
                 widths[depth])  # fmt: skip
            entered, at = (plain, starts[depth - 1] * samples) if depth > 1 else (x, first)
            last = features[client].reshape(-1)
            last[:] = entered[at : at + len(last)]


@kept
def forward(
    weight: Any, bias: Any, client: int, widths: Any, relu: bool, turned: Any, at: int, to_at: int, line: int
) -> None:
    """One layer."""
    inputs, outputs = widths
    for unit in range(outputs):
        start = bias[client * outputs + unit] if len(bias) else np.float32(0)
        for place in range(to_at + unit * line, to_at + (unit + 1) * line):
            turned[place] = start
    multiply(turned, to_at, line, outputs, line, weight, client * outputs * inputs, inputs, 1, turned, at, line, inputs,
             True)  # fmt: skip
    if relu:
        for place in range(to_at, to_at + outputs * line):
            turned[place] = np.float32(0) if turned[place] < 0 else turned[place]


@kept
def slope_of_loss(z: Any, line: int, classes: int, y: Any, share: Any, scale: float, slopes: Any) -> Any:
    """The cross-entropy, and `scale` times its slope in the logits."""
    loss = np.float32(0)
    slopes[: classes * line] = 0
    for sample in range(len(y)):
        if not 0 <= y[sample] < classes:
            raise IndexError("a target is not among the classes that the network has outputs for")
        largest = z[sample]
        for unit in range(1, classes):
            largest = max(largest, z[unit * line + sample])
        total = np.float32(0)
        for unit in range(classes):
            slopes[unit * line + sample] = np.exp(z[unit * line + sample] - largest)
            total += slopes[unit * line + sample]
        factor, target = np.float32(scale) * share[sample], y[sample] * line + sample
        for unit in range(classes):
            slopes[unit * line + sample] *= factor / total
        slopes[target] -= factor
        loss += share[sample] * (largest + np.log(total) - z[target])
    return loss


@kept
def stop(slopes: Any, turned: Any, at: int, count: int) -> None:
    """No slope behind a ReLU that gave zero."""
    for place in range(count):
        slopes[place] = np.float32(0) if turned[at + place] <= 0 else slopes[place]


@kept
def add_sums(slopes: Any, line: int, width: int, samples: int, to: Any, at: int, onto: bool) -> None:
    """The gradient of a bias, if there is one."""
    for unit in range(width if len(to) else 0):
        total = to[at + unit] if onto else np.float32(0)
        for sample in range(samples):
            total += slopes[unit * line + sample]
        to[at + unit] = total
