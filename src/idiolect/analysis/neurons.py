"""How differently clients' models see the same samples, neuron by neuron: mean outputs, and how dispersed they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError, OptionError


def neuron_means(outputs: Tensor) -> Tensor:
    """What each neuron, or channel, gives on average over samples and positions.

    Args:
        outputs: ``[samples, neurons]``, or ``[samples, channels, ...]``.

    Returns:
        ``[neurons]`` in float64.

    Example:
        >>> neuron_means(torch.tensor([[1.0, 0.0], [3.0, 4.0]])).tolist()
        [2.0, 2.0]

    Reference:
        FedFac, figure 1.
    """
    if outputs.ndim < 2 or not len(outputs):
        raise InputError(f"The outputs are {tuple(outputs.shape)}, but samples and neurons are needed, [n, neurons].")
    return outputs.double().transpose(0, 1).flatten(1).mean(1)


def neighbour_entropy(values: Tensor, k: int = 3) -> Tensor:
    r"""The entropy of numbers, estimated by the distances to their nearest neighbours (Kozachenko and Leonenko).

    .. math:: \hat h = \psi(n) - \psi(k) + \ln 2 + \frac{1}{n} \sum_i \ln \epsilon_i

    with the distance :math:`\epsilon_i` from number i to its k-th nearest neighbour and the digamma function. In nats;
    the more dispersed, the larger. Equal numbers have no density: minus infinity.

    Args:
        values: ``[n]``, or ``[n, columns]`` for one estimate per column: a neuron's output at each of n clients.
        k: which neighbour, at most n - 1.

    Returns:
        A number, or one per column, in float64.

    Example:
        >>> round(float(neighbour_entropy(torch.tensor([0.0, 1.0, 3.0]), k=1)), 4)
        2.4242

    Reference:
        FedFac, figure 2.
    """
    if values.ndim not in (1, 2) or not values.isfinite().all():
        raise InputError(f"The values are {tuple(values.shape)}, but finite numbers are needed: [n] or [n, columns].")
    n = len(values)
    if not 1 <= k < n:
        raise OptionError(f"k is {k}, but of {n} numbers each has {max(n - 1, 0)} neighbours: give k in [1, {n - 1}].")
    columns = values.double().reshape(n, -1).T
    gaps = (columns[:, :, None] - columns[:, None, :]).abs().kthvalue(k + 1, dim=2).values  # the nearest is itself
    count, nearest = torch.tensor(float(n)), torch.tensor(float(k))
    found = torch.digamma(count) - torch.digamma(nearest) + math.log(2) + gaps.log().mean(1)
    return found.reshape(values.shape[1:])
