"""The compiled steps of dense networks, client by client, so that a client's model stays in the cache for all of its
steps. Values are stored transposed, `[units, samples]`. Used by `dense_compiled.py`. Needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dense_operations import (
    add_flow,
    add_values,
    gelu,
    gelu_backward,
    normalise,
    normalise_backward,
    relu,
    relu_backward,
)
from .dense_reading import ADD, GELU, LINEAR, NORM, RELU
from .matmul import multiply, transpose
from .simd import LANES, jit


@jit
def run_steps(
    params: Any, grads: Any, operations: Any, eps: Any, widths: Any, sizes: Any, places: Any, trained: Any, x: Any,
    tokens: Any, y: Any, share: Any, scale: float, add: bool, losses: Any, scores: Any, scores_at: int,
) -> None:  # fmt: skip
    """Forward and backward passes of many clients' networks, several steps one after another.

    Args:
        params: per parameter one flat array with those of all clients.
        grads: where the gradients are written, times `scale`. To make an SGD step, they are the parameters themselves,
            and the scale is minus the learning rate.
        operations, eps, widths, sizes, places: the network; see `dense_compiled.describe`.
        trained: per parameter, whether it gets a gradient.
        x, tokens: inputs, flat: numbers, or tokens whose embeddings are averaged; the other is empty.
        y, share: targets and normalised sample weights, [steps, clients, samples].
        scale: the factor of the gradients.
        add: whether gradients are added to what is there.
        losses: [steps, clients], written.
        scores, scores_at: where the last step's loss, logits and features are written, as far from client to client as
            gradients; not if the array is empty.
    """
    steps, clients, samples = y.shape
    depth, stride = len(operations), -(-samples // LANES) * LANES
    n_tokens = len(tokens) // max(1, steps * clients * samples)
    offsets, needed = np.zeros(depth + 2, np.int64), np.zeros(depth + 1, np.bool_)
    offsets[1:] = np.cumsum(widths) * stride
    for at in range(depth):
        kind, first, second, weight, bias = operations[at]
        own = (weight >= 0 and trained[weight]) or (bias >= 0 and trained[bias])
        needed[at + 1] = own or needed[first] or needed[second]
    values = np.zeros(offsets[-1], np.float32)  # of the input and all operations, [units, samples]
    normal, factors = np.zeros(offsets[-1], np.float32), np.zeros((depth, stride), np.float32)  # of normalisations
    flowing, written = np.zeros(offsets[-1], np.float32), np.zeros(depth + 1, np.bool_)  # gradients of all values
    rows = np.zeros(max(1, widths.max() * stride), np.float32)  # one value, [samples, units]
    for client in range(clients):
        for step in range(steps):
            at_sample = (step * clients + client) * samples
            if len(x):
                transpose(x, at_sample * widths[0], widths[0], samples, widths[0], values, 0, stride)
            for at in range(depth):
                kind, first, second, weight, bias = operations[at]
                source, to, n_out = offsets[first], offsets[at + 1], widths[at + 1]
                if kind == LINEAR:
                    start_rows(values, to, n_out, stride, params[max(0, bias)], client * n_out, bias >= 0)
                    multiply(values, to, stride, n_out, stride, params[weight], client * sizes[weight], widths[first],
                             1, values, source, stride, widths[first], True)  # fmt: skip
                elif kind == RELU:
                    relu(values[source : source + n_out * stride], values[to : offsets[at + 2]])
                elif kind == GELU:
                    gelu(values[source : source + n_out * stride], values[to : offsets[at + 2]])
                elif kind == NORM:
                    start_rows(values, to, n_out, stride, params[max(0, bias)], client * n_out, bias >= 0)
                    own = params[weight][client * n_out : (client + 1) * n_out]
                    normalise(values[source : source + n_out * stride], normal[to : offsets[at + 2]], factors[at],
                              eps[at], own, values[to : offsets[at + 2]])  # fmt: skip
                elif kind == ADD:
                    other = offsets[second]
                    add_values(values[source : source + n_out * stride], values[other : other + n_out * stride],
                               values[to : offsets[at + 2]])  # fmt: skip
                else:
                    average_embeddings(params[weight], client * sizes[weight], sizes[weight], n_out, tokens,
                                       at_sample * n_tokens, n_tokens, samples, rows)  # fmt: skip
                    transpose(rows, 0, n_out, samples, n_out, values, to, stride)
            to, classes = offsets[depth], widths[depth]
            losses[step, client] = cross_entropy_grad(values[to:], stride, classes, y[step, client],
                                                      share[step, client], scale, flowing[to:])  # fmt: skip
            written[:] = False
            for at in range(depth - 1, -1, -1):
                kind, first, second, weight, bias = operations[at]
                source, to, n_out, n_in = offsets[first], offsets[at + 1], widths[at + 1], widths[first]
                if not needed[at + 1] or (at + 1 < depth and not written[at + 1]):
                    continue
                out, given = flowing[to : offsets[at + 2]], flowing[source : source + n_in * stride]
                if needed[first]:
                    fresh = not written[first]
                    if kind == LINEAR:
                        multiply(flowing, source, stride, n_in, stride, params[weight], client * sizes[weight], 1, n_in,
                                 flowing, to, stride, n_out, not fresh)  # fmt: skip
                    elif kind == RELU:
                        relu_backward(out, values[to : offsets[at + 2]], given, fresh)
                    elif kind == GELU:
                        gelu_backward(out, values[source : source + n_in * stride], given, fresh)
                    elif kind == NORM:
                        own = params[weight][client * n_out : (client + 1) * n_out]
                        normalise_backward(out, normal[to : offsets[at + 2]], factors[at], own, given, fresh)
                    elif kind == ADD:
                        add_flow(out, given, fresh)
                    written[first] = True
                if kind == ADD and needed[second]:
                    other = offsets[second]
                    add_flow(out, flowing[other : other + n_out * stride], not written[second])
                    written[second] = True
                if weight >= 0 and trained[weight]:
                    place = places[weight, 0] + client * places[weight, 1]
                    if kind == LINEAR:
                        if first > 0:
                            transpose(values, source, stride, n_in, samples, rows, 0, n_in)
                            multiply(grads[weight], place, n_in, n_out, n_in, flowing, to, stride, 1, rows, 0, n_in,
                                     samples, add)  # fmt: skip
                        else:
                            multiply(grads[weight], place, n_in, n_out, n_in, flowing, to, stride, 1, x,
                                     at_sample * n_in, n_in, samples, add)  # fmt: skip
                    elif kind == NORM:
                        sum_products(flowing, to, normal, to, stride, n_out, samples, grads[weight], place, add)
                    else:
                        transpose(flowing, to, stride, n_out, samples, rows, 0, n_out)
                        add_to_embeddings(grads[weight], place, sizes[weight], n_out, tokens, at_sample * n_tokens,
                                          n_tokens, samples, rows, add)  # fmt: skip
                if bias >= 0 and trained[bias]:
                    sum_samples(flowing, to, stride, n_out, samples, grads[bias],
                                places[bias, 0] + client * places[bias, 1], add)  # fmt: skip
        if len(scores):
            first = operations[depth - 1, 1]
            to, classes, width = scores_at + client * places[0, 1], widths[depth], widths[first]
            scores[to] = losses[steps - 1, client]
            transpose(values, offsets[depth], stride, classes, samples, scores, to + 1, classes)
            transpose(values, offsets[first], stride, width, samples, scores, to + 1 + samples * classes, width)


@jit
def start_rows(values: Any, at: int, units: int, stride: int, bias: Any, bias_at: int, use: bool) -> None:
    """Write a bias, or zero if there is none, into the row of every unit."""
    for unit in range(units):
        start = bias[bias_at + unit] if use else np.float32(0)
        for index in range(at + unit * stride, at + (unit + 1) * stride):
            values[index] = start


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
def sum_samples(grad: Any, grad_at: int, stride: int, width: int, samples: int, out: Any, at: int, add: bool) -> None:
    """The gradient of a bias: sums over the samples."""
    for unit in range(width):
        total = out[at + unit] if add else np.float32(0)
        for sample in range(samples):
            total += grad[grad_at + unit * stride + sample]
        out[at + unit] = total


@jit
def sum_products(
    grad: Any, grad_at: int, other: Any, other_at: int, stride: int, width: int, samples: int, out: Any, at: int,
    add: bool,
) -> None:  # fmt: skip
    """The gradient of a normalisation's weight: sums of products over the samples."""
    for unit in range(width):
        total = out[at + unit] if add else np.float32(0)
        for sample in range(samples):
            total += grad[grad_at + unit * stride + sample] * other[other_at + unit * stride + sample]
        out[at + unit] = total


@jit
def average_embeddings(
    table: Any, table_at: int, size: int, width: int, tokens: Any, tokens_at: int, n_tokens: int, samples: int, out: Any
) -> None:
    """The mean of the embeddings of every sample's tokens, [samples, width]."""
    scale = np.float32(1 / n_tokens)
    for sample in range(samples):
        row = out[sample * width : (sample + 1) * width]
        row[:] = 0
        for index in range(tokens_at + sample * n_tokens, tokens_at + (sample + 1) * n_tokens):
            if not 0 <= tokens[index] * width < size:
                raise IndexError("a token is not among those that the network has embeddings for")
            start = table_at + tokens[index] * width
            for unit in range(width):
                row[unit] += table[start + unit]
        for unit in range(width):
            row[unit] *= scale


@jit
def add_to_embeddings(
    out: Any, at: int, size: int, width: int, tokens: Any, tokens_at: int, n_tokens: int, samples: int, grad: Any,
    add: bool,
) -> None:  # fmt: skip
    """The gradient of embeddings, of which only the rows of tokens that occur are touched if it is added."""
    scale = np.float32(1 / n_tokens)
    if not add:
        out[at : at + size] = 0
    for sample in range(samples):
        for index in range(tokens_at + sample * n_tokens, tokens_at + (sample + 1) * n_tokens):
            start = at + tokens[index] * width
            for unit in range(width):
                out[start + unit] += scale * grad[sample * width + unit]
