"""The compiled steps of dense networks, client by client, so that a client's model stays in the cache for all of its
steps. Values are stored transposed, `[units, samples]`. Used by `dense_compiled.py`. Needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dense_operations import (
    add_flow,
    add_scaled,
    add_to_embeddings,
    add_values,
    average_embeddings,
    gelu,
    gelu_backward,
    normalise,
    normalise_backward,
    relu,
    relu_backward,
    scale_values,
)
from .dense_reading import ADD, GELU, LINEAR, NORM, RELU
from .matmul import multiply, transpose
from .simd import LANES, array_at, jit

PART = 1024
"""Numbers of a leaf that are changed at a time."""


@jit
def run_steps(
    params: Any, grads: Any, operations: Any, eps: Any, widths: Any, sizes: Any, places: Any, trained: Any, x: Any,
    tokens: Any, y: Any, share: Any, batch_of: Any, changes: Any, others: Any, losses: Any, scores: Any, scores_at: Any,
) -> None:  # fmt: skip
    """Forward and backward passes of many clients' networks, several steps one after another.

    Args:
        params: per parameter the address of one flat array with those of all clients.
        grads: per parameter the address of the array to which the gradients are written or, with `changes`, of the
            parameters themselves.
        operations, eps, widths, sizes, places: the network; see `dense_compiled.describe`.
        trained: per parameter, whether it gets a gradient.
        x, tokens: inputs, flat: numbers, or tokens whose embeddings are averaged; the other is empty.
        y, share: targets and normalised sample weights, [batches, clients, samples].
        batch_of: per step the batch that it takes.
        changes: what each step adds to the states, of which the parameters are the first, leaf by leaf: the factors of
            a sum of states and, last, of the gradient, [steps, clients, parameters, states, states + 1]. If empty,
            gradients are written and nothing is changed.
        others: the other states, flat, [clients, states - 1, all parameters].
        losses: [steps, clients], written.
        scores, scores_at: where each step's loss, logits and features are written: those of the first, the distance to
            the next client's, and to the next step's; not if the array is empty.
    """
    batches, clients, samples = y.shape
    steps, changing, depth, stride = len(batch_of), changes.size > 0, len(operations), -(-samples // LANES) * LANES
    n_states, total, scale = changes.shape[3], sizes.sum(), np.float32(1)
    gradient = np.empty(sizes.max() if changing else 0, np.float32)  # of a leaf that several states take it from
    scaled = np.empty(widths.max() * stride, np.float32)  # a value's gradient, times a leaf's own factor
    done = np.zeros(len(sizes), np.bool_)  # leaves that have been changed
    starts = np.zeros(len(sizes) + 1, np.int64)
    starts[1:] = np.cumsum(sizes)
    n_tokens = len(tokens) // max(1, batches * clients * samples)
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
            batch = batch_of[step]
            at_sample = (batch * clients + client) * samples
            if changing:  # the factor of the last layer, which most leaves share
                scale = changes[step, client, operations[depth - 1, 3], 0, n_states]
                scale = scale if scale != 0 else np.float32(1)
                done[:] = False
            if len(x):
                transpose(x, at_sample * widths[0], widths[0], samples, widths[0], values, 0, stride)
            for at in range(depth):
                kind, first, second, weight, bias = operations[at]
                source, to, n_out = offsets[first], offsets[at + 1], widths[at + 1]
                own = array_at(params[max(0, weight)], clients * sizes[max(0, weight)])
                own_bias = array_at(params[max(0, bias)], clients * sizes[max(0, bias)])
                if kind == LINEAR:
                    start_rows(values, to, n_out, stride, own_bias, client * n_out, bias >= 0)
                    multiply(values, to, stride, n_out, stride, own, client * sizes[weight], widths[first], 1,
                             values, source, stride, widths[first], True)  # fmt: skip
                elif kind == RELU:
                    relu(values[source : source + n_out * stride], values[to : offsets[at + 2]])
                elif kind == GELU:
                    gelu(values[source : source + n_out * stride], values[to : offsets[at + 2]])
                elif kind == NORM:
                    start_rows(values, to, n_out, stride, own_bias, client * n_out, bias >= 0)
                    normalise(values[source : source + n_out * stride], normal[to : offsets[at + 2]], factors[at],
                              eps[at], own[client * n_out : (client + 1) * n_out],
                              values[to : offsets[at + 2]])  # fmt: skip
                elif kind == ADD:
                    other = offsets[second]
                    add_values(values[source : source + n_out * stride], values[other : other + n_out * stride],
                               values[to : offsets[at + 2]])  # fmt: skip
                else:
                    average_embeddings(own, client * sizes[weight], sizes[weight], n_out, tokens,
                                       at_sample * n_tokens, n_tokens, samples, rows)  # fmt: skip
                    transpose(rows, 0, n_out, samples, n_out, values, to, stride)
            to, classes = offsets[depth], widths[depth]
            losses[step, client] = cross_entropy_grad(values[to:], stride, classes, y[batch, client],
                                                      share[batch, client], scale, flowing[to:])  # fmt: skip
            written[:] = False
            for at in range(depth - 1, -1, -1):
                kind, first, second, weight, bias = operations[at]
                source, to, n_out, n_in = offsets[first], offsets[at + 1], widths[at + 1], widths[first]
                if not needed[at + 1] or (at + 1 < depth and not written[at + 1]):
                    continue
                out, given = flowing[to : offsets[at + 2]], flowing[source : source + n_in * stride]
                own = array_at(params[max(0, weight)], clients * sizes[max(0, weight)])
                if needed[first]:
                    fresh = not written[first]
                    if kind == LINEAR:
                        multiply(flowing, source, stride, n_in, stride, own, client * sizes[weight], 1, n_in,
                                 flowing, to, stride, n_out, not fresh)  # fmt: skip
                    elif kind == RELU:
                        relu_backward(out, values[to : offsets[at + 2]], given, fresh)
                    elif kind == GELU:
                        gelu_backward(out, values[source : source + n_in * stride], given, fresh)
                    elif kind == NORM:
                        normalise_backward(out, normal[to : offsets[at + 2]], factors[at],
                                           own[client * n_out : (client + 1) * n_out], given, fresh)  # fmt: skip
                    elif kind == ADD:
                        add_flow(out, given, fresh)
                    written[first] = True
                if kind == ADD and needed[second]:
                    other = offsets[second]
                    add_flow(out, flowing[other : other + n_out * stride], not written[second])
                    written[second] = True
                for leaf in (weight, bias):
                    if leaf < 0 or not trained[leaf]:
                        continue
                    place, add, factor = places[leaf, 0] + client * places[leaf, 1], False, 1.0
                    out_array = array_at(grads[leaf], place + sizes[leaf])
                    grad_flow, flow_at, spread = flowing, to, False
                    if changing:
                        row, other = changes[step, client, leaf], client * (n_states - 1) * total + starts[leaf]
                        spread, done[leaf] = bool(np.any(row[1:, n_states] != 0)), True
                        if spread:
                            out_array, place, factor = gradient, 0, 1.0
                        else:
                            add, factor = True, row[0, n_states]
                            change(out_array, place, sizes[leaf], others, other, total, row, gradient, False)
                        if factor != scale:
                            scale_values(out, np.float32(factor / scale), scaled[: n_out * stride])
                            grad_flow, flow_at = scaled, 0
                    if leaf == bias:
                        sum_samples(grad_flow, flow_at, stride, n_out, samples, out_array, place, add)
                    elif kind == LINEAR and first > 0:
                        transpose(values, source, stride, n_in, samples, rows, 0, n_in)
                        multiply(out_array, place, n_in, n_out, n_in, grad_flow, flow_at, stride, 1, rows, 0, n_in,
                                 samples, add)  # fmt: skip
                    elif kind == LINEAR:
                        multiply(out_array, place, n_in, n_out, n_in, grad_flow, flow_at, stride, 1, x,
                                 at_sample * n_in, n_in, samples, add)  # fmt: skip
                    elif kind == NORM:
                        sum_products(grad_flow, flow_at, normal, to, stride, n_out, samples, out_array, place, add)
                    else:
                        transpose(grad_flow, flow_at, stride, n_out, samples, rows, 0, n_out)
                        add_to_embeddings(out_array, place, sizes[leaf], n_out, tokens, at_sample * n_tokens, n_tokens,
                                          samples, rows, add)  # fmt: skip
                    if spread:
                        change(array_at(grads[leaf], (client + 1) * sizes[leaf]), client * sizes[leaf], sizes[leaf],
                               others, other, total, row, gradient, True)  # fmt: skip
            if changing:  # what has no gradient
                for leaf in range(len(sizes)):
                    if not done[leaf]:
                        other = client * (n_states - 1) * total + starts[leaf]
                        change(array_at(grads[leaf], (client + 1) * sizes[leaf]), client * sizes[leaf], sizes[leaf],
                               others, other, total, changes[step, client, leaf], gradient, False)  # fmt: skip
            if len(scores):
                first = operations[depth - 1, 1]
                to = scores_at[0] + client * scores_at[1] + step * scores_at[2]
                classes, width = widths[depth], widths[first]
                scores[to] = losses[step, client]
                transpose(values, offsets[depth], stride, classes, samples, scores, to + 1, classes)
                transpose(values, offsets[first], stride, width, samples, scores, to + 1 + samples * classes, width)


@jit
def change(
    params: Any, place: int, size: int, others: Any, other: int, total: int, factors: Any, gradient: Any, use: bool
) -> None:
    """Add to one leaf of all states, at once, the sums that `factors` [states, states + 1] say, with the gradient if it
    is to be used; a part at a time, which stays in the cache. What is added is summed up first, so that a pull
    between equal numbers moves nothing."""
    n_states = len(factors)
    used = factors if use else factors[:, :n_states]
    if not np.any(used != 0):
        return
    made = np.empty((n_states, PART), np.float32)
    for start in range(0, size, PART):
        end = min(size, start + PART)
        for state in range(n_states):
            row = made[state, : end - start]
            row[:] = 0
            for source in range(n_states):
                if factors[state, source] != 0 and not (source == state and factors[state, source] == -1):
                    at = place + start if source == 0 else other + (source - 1) * total + start
                    if source == 0:
                        add_scaled(params[at : at + end - start], factors[state, source], row)
                    else:
                        add_scaled(others[at : at + end - start], factors[state, source], row)
            if use and factors[state, n_states] != 0:
                add_scaled(gradient[start:end], factors[state, n_states], row)
        for state in range(n_states):
            if not np.any(used[state] != 0):
                continue
            leaf = params[place + start : place + end]
            if state > 0:
                at = other + (state - 1) * total
                leaf = others[at + start : at + end]
            if factors[state, state] == -1:
                leaf[:] = made[state, : end - start]
            else:
                leaf += made[state, : end - start]


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
