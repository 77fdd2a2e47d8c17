"""What a layer's depth decides: how fast it learns, and which share of its coordinates travels. The
functions of tensors are traceable by `torch.func.vmap`: no choice in them depends on the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, OptionError


def upload_fractions(n_layers: int, low: float = 0.1, high: float = 1.0) -> tuple[float, ...]:
    r"""The share of its coordinates that each layer uploads: little in early layers, all in the last.

    .. math:: UP_i = \min(\max(i / L, low), high), \qquad i = 1 \ldots L

    Args:
        n_layers: the number L of layers.
        low: the least share, in (0, high].
        high: the largest share, in [low, 1].

    Example:
        >>> upload_fractions(4)
        (0.25, 0.5, 0.75, 1.0)

    Reference:
        FLAYER, equation 5.
    """
    if n_layers < 1:
        raise OptionError(f"n_layers is {n_layers}, but a network has at least one layer.")
    if not 0 < low <= high <= 1:
        raise OptionError(f"low is {low} and high is {high}, but shares need 0 < low <= high <= 1.")
    return tuple(min(max(i / n_layers, low), high) for i in range(1, n_layers + 1))


def layer_rates(
    lr: float | Tensor,
    gradient_norms: Sequence[float | Tensor] | Tensor,
    floor: float = 1e-8,
    max_multiplier: float | None = None,
    depth: Sequence[float] | Tensor | None = None,
) -> Tensor:
    r"""A learning rate for each layer: larger for deeper layers and for smaller gradients.

    .. math:: \eta_i = \eta \left(1 + \frac{i}{L} \ln\left(1 + \frac{1}{\|g_i\|_2}\right)\right), \qquad i = 1 \ldots L

    Args:
        lr: the base learning rate.
        gradient_norms: one norm per layer, over all its parameters together, first layer first.
        floor: smaller norms count as this (1e-8 means a multiplier of at most 1 + 18.4 i / L).
        max_multiplier: a cap on the learning rate, in units of ``lr``; none by default.
        depth: each layer's :math:`i / L`, if it is not simply its place in the list.

    Returns:
        ``[L]``, one learning rate per layer.

    Example:
        >>> layer_rates(1.0, [1.0, 1.0])
        tensor([1.3466, 1.6931])

    Reference:
        FLAYER, equation 4.
    """
    if floor <= 0 or (max_multiplier is not None and max_multiplier < 1):
        raise OptionError(
            f"floor is {floor} and max_multiplier is {max_multiplier}, but the floor is above 0 and the multiplier is "
            "at least 1, or None for no cap."
        )
    if isinstance(gradient_norms, Tensor):
        norms = gradient_norms
    else:
        norms = torch.stack([torch.as_tensor(norm) for norm in gradient_norms])
    layers = len(norms)
    share = torch.arange(1, layers + 1) / layers if depth is None else torch.as_tensor(depth)
    if share.shape != norms.shape:
        raise InputError(f"There are {layers} gradient norms and {len(share)} depths: give one depth per layer.")
    multiplier = 1 + share.to(norms) * torch.log1p(1 / norms.clamp(min=floor))
    return lr * multiplier.clamp(max=math.inf if max_multiplier is None else max_multiplier)


def largest(values: Tensor, count: int) -> Tensor:
    """True for exactly so many values, those of largest magnitude; of equal ones the lowest flat indices are taken. By
    partial selection, which takes time in proportion to the number of values; NumPy's is several times as fast as
    PyTorch's.

    >>> largest(torch.tensor([[0.1, -3.0], [2.0, -2.0]]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    if count <= 0 or count >= values.numel():
        return torch.full_like(values, count > 0, dtype=torch.bool)
    magnitude = values.detach().abs().flatten()
    numpy_has_it = magnitude.device.type == "cpu" and magnitude.dtype in (torch.float32, torch.float64)
    return (largest_of_row(magnitude, count) if numpy_has_it else select(magnitude, count)).reshape(values.shape)


def select(magnitude: Tensor, count: int) -> Tensor:
    """`largest` of a vector of magnitudes."""
    threshold = magnitude.kthvalue(len(magnitude) - count + 1).values
    above, tied = magnitude > threshold, magnitude == threshold
    room = count - above.sum()
    return above | (tied & (tied.cumsum(0, dtype=torch.int32) <= room))


@torch.library.custom_op("idiolect::largest", mutates_args=())
def largest_of_row(magnitude: Tensor, count: int) -> Tensor:
    """The same by NumPy."""
    return largest_of_rows(magnitude[None], count)[0]


@largest_of_row.register_vmap
def largest_of_traced(info: Any, in_dims: Any, magnitude: Tensor, count: int) -> tuple[Tensor, int]:
    """The same for all clients that `torch.func.vmap` traces as one."""
    return largest_of_rows(magnitude.movedim(in_dims[0], 0), count), 0


def largest_of_rows(magnitudes: Tensor, count: int) -> Tensor:
    """The same for every row."""
    made = torch.empty(magnitudes.shape, dtype=torch.bool)
    for row, mask in zip(magnitudes.numpy(), made.numpy(), strict=True):
        at = len(row) - count
        threshold = np.partition(row, at)[at]
        np.greater(row, threshold, out=mask)
        mask[np.flatnonzero(row == threshold)[: count - np.count_nonzero(mask)]] = True
    return made


def top_fraction_mask(change: Tensor, fraction: float) -> Tensor:
    r"""True for the coordinates that changed most.

    .. math:: m_j = 1[\,|\Delta_j| \text{ is among the } k \text{ largest}\,], \qquad k = \max(1, \text{round}(fraction
        \cdot d))

    Of equal changes the lowest flat indices are taken. A coordinate that did not change is never True, so that there
    are fewer than ``k`` where fewer changed; unless ``k`` is all of them, or nothing changed at all: then every
    coordinate is True. The values have to be finite.

    Args:
        change: the difference after and before training, of any shape with ``d`` elements.
        fraction: in (0, 1]; ``round`` is Python's, a half goes to the even neighbour.

    Returns:
        A boolean tensor of the same shape.

    Example:
        >>> top_fraction_mask(torch.tensor([[0.1, -3.0], [2.0, -2.0]]), fraction=0.5)
        tensor([[False,  True],
                [ True, False]])

    Reference:
        FLAYER, equations 6 to 8.
    """
    if not 0 < fraction <= 1:
        raise OptionError(f"fraction is {fraction}, but it is a share of the coordinates in (0, 1].")
    count = max(1, round(fraction * change.numel()))
    if count >= change.numel():
        return torch.ones_like(change, dtype=torch.bool)
    return (largest(change, count) & (change != 0)) | ~change.any()


def kernel_mask(change: Tensor, fraction: float) -> Tensor:
    r"""True for the elements that changed most of every kernel of a convolution: of :math:`d` elements at least one is
    kept and, if there are several, at least one left out.

    Args:
        change: the difference after and before training, ``[outputs, inputs, ...]`` with the kernels' elements last.
        fraction: in (0, 1]; :math:`d - \text{round}((1 - fraction) d)` elements are kept.

    Returns:
        A boolean tensor of the same shape.

    Example:
        >>> kernel_mask(torch.tensor([[[[0.1, -3.0], [2.0, -2.5]]]]), fraction=0.5)
        tensor([[[[False,  True],
                  [False,  True]]]])

    Reference:
        The authors' program of FLAYER.
    """
    if not 0 < fraction <= 1:
        raise OptionError(f"fraction is {fraction}, but it is a share of the elements in (0, 1].")
    if change.ndim < 3:
        raise InputError(f"The change has shape {tuple(change.shape)}, but [outputs, inputs, ...] is needed.")
    rows = change.flatten(2).abs()
    size = rows.shape[-1]
    if size == 1:
        return torch.ones_like(change, dtype=torch.bool)
    kept = size - min(max(round((1 - fraction) * size), 1), size - 1)
    chosen = rows.argsort(dim=-1, descending=True, stable=True)[..., :kept]
    return torch.zeros_like(rows, dtype=torch.bool).scatter(-1, chosen, True).reshape(change.shape)
