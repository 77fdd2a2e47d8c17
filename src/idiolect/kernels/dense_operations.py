"""Operations of dense networks that go over all numbers of a value, [units, samples], forward and backward.

They take slices, not an array and offsets: only then does the compiler make vectors of them. Used by `dense_steps.py`.
Needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from .simd import jit


@jit
def relu(x: Any, out: Any) -> None:
    """max(0, x), where what is not a number stays that."""
    for index in range(len(out)):
        out[index] = np.float32(0) if x[index] < 0 else x[index]


@jit
def add_values(x: Any, other: Any, out: Any) -> None:
    """x + other"""
    for index in range(len(out)):
        out[index] = x[index] + other[index]


@jit
def scale_values(x: Any, factor: Any, out: Any) -> None:
    """factor * x"""
    for index in range(len(out)):
        out[index] = factor * x[index]


@jit
def add_scaled(x: Any, factor: Any, to: Any) -> None:
    """Add factor * x."""
    for index in range(len(to)):
        to[index] += factor * x[index]


@jit
def add_flow(grad: Any, to: Any, fresh: bool) -> None:
    """Hand a gradient on to another value; `fresh` if that has none yet."""
    for index in range(len(grad)):
        to[index] = grad[index] + (np.float32(0) if fresh else to[index])


@jit
def relu_backward(grad: Any, out: Any, to: Any, fresh: bool) -> None:
    """Hand a gradient on where a ReLU gave more than zero."""
    for index in range(len(grad)):
        passed = np.float32(0) if out[index] <= 0 else grad[index]
        to[index] = passed + (np.float32(0) if fresh else to[index])


@jit
def normalise(x: Any, normal: Any, factors: Any, eps: float, weight: Any, out: Any) -> None:
    """Values of mean zero and variance one per sample, and the factors that made them so; added to what is there, times
    the weight of their unit."""
    units, stride = len(weight), len(factors)
    means = np.zeros(stride, np.float32)
    factors[:] = 0
    for unit in range(units):
        row = x[unit * stride : (unit + 1) * stride]
        for sample in range(stride):
            means[sample] += row[sample]
    for sample in range(stride):
        means[sample] /= np.float32(units)
    for unit in range(units):
        row, centred = x[unit * stride : (unit + 1) * stride], normal[unit * stride : (unit + 1) * stride]
        for sample in range(stride):
            centred[sample] = row[sample] - means[sample]
            factors[sample] += centred[sample] * centred[sample]
    for sample in range(stride):
        factors[sample] = np.float32(1) / np.sqrt(factors[sample] / np.float32(units) + eps)
    for unit in range(units):
        row, centred = out[unit * stride : (unit + 1) * stride], normal[unit * stride : (unit + 1) * stride]
        for sample in range(stride):
            centred[sample] *= factors[sample]
            row[sample] += weight[unit] * centred[sample]


@jit
def normalise_backward(grad: Any, normal: Any, factors: Any, weight: Any, to: Any, fresh: bool) -> None:
    """Hand a gradient on through a normalisation."""
    units, stride = len(weight), len(factors)
    means, products = np.zeros(stride, np.float32), np.zeros(stride, np.float32)
    for unit in range(units):
        row, centred = grad[unit * stride : (unit + 1) * stride], normal[unit * stride : (unit + 1) * stride]
        factor = weight[unit] / np.float32(units)
        for sample in range(stride):
            means[sample] += factor * row[sample]
            products[sample] += factor * row[sample] * centred[sample]
    for unit in range(units):
        row, centred = grad[unit * stride : (unit + 1) * stride], normal[unit * stride : (unit + 1) * stride]
        handed = to[unit * stride : (unit + 1) * stride]
        for sample in range(stride):
            change = weight[unit] * row[sample] - means[sample] - centred[sample] * products[sample]
            handed[sample] = factors[sample] * change + (np.float32(0) if fresh else handed[sample])


# The error function as a quotient of polynomials in x^2, times x, for |x| <= 4: errors below 2e-7, and it becomes
# vectors, which numba's own does not.
_P = tuple(
    np.float32(c)
    for c in (
        *(-1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05),
        *(-2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10),
    )
)
_Q = tuple(
    np.float32(c)
    for c in (
        -1.42647390514189e-02,
        -7.37332916720468e-03,
        -1.68282697438203e-03,
        -2.13374055278905e-04,
        -1.45660718464996e-05,
    )
)
_HALF, _ONE, _ROOT, _DENSITY = (np.float32(c) for c in (0.5, 1.0, 0.5**0.5, (2 * np.pi) ** -0.5))
_LIMIT = np.float32(4)


@jit
def normal_cdf(x: Any) -> Any:
    """The distribution function of the normal distribution, (1 + erf(x / sqrt(2))) / 2."""
    z = x * _ROOT
    z = _LIMIT if z > _LIMIT else (-_LIMIT if z < -_LIMIT else z)
    s = z * z
    p = _P[0] + s * (_P[1] + s * (_P[2] + s * (_P[3] + s * (_P[4] + s * (_P[5] + s * _P[6])))))
    q = _Q[0] + s * (_Q[1] + s * (_Q[2] + s * (_Q[3] + s * _Q[4])))
    return _HALF + _HALF * z * p / q


@jit
def normal_density(x: Any) -> Any:
    """The density of the normal distribution, by exp(-t) = exp(-t / 32) ** 32."""
    t = _HALF * x * x
    t = np.float32(16) if t > np.float32(16) else t
    u = t * np.float32(-1 / 32)
    e = _ONE + u * (
        _ONE + u * (np.float32(1 / 2) + u * (np.float32(1 / 6) + u * (np.float32(1 / 24) + u * np.float32(1 / 120))))
    )
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    return _DENSITY * e * e


@jit
def gelu(x: Any, out: Any) -> None:
    """x times the distribution function of the normal distribution."""
    for index in range(len(out)):
        out[index] = x[index] * normal_cdf(x[index])


@jit
def gelu_backward(grad: Any, x: Any, to: Any, fresh: bool) -> None:
    """Hand a gradient on through a GELU."""
    for index in range(len(grad)):
        derivative = normal_cdf(x[index]) + x[index] * normal_density(x[index])
        to[index] = grad[index] * derivative + (np.float32(0) if fresh else to[index])


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
