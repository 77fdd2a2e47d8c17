"""How far two samples are from coming from one distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def discrepancy(a: Tensor, b: Tensor, weight: Tensor, bandwidths: Sequence[float]) -> Tensor:
    r"""The squared maximum mean discrepancy of two weighted samples in the same order, as a biased estimate, with the
    shares p of the weights and a sum of Gaussian kernels (Gretton et al., 2012).

    .. math:: \sum_{l, m} p_l p_m \bigl(k(a_l, a_m) + k(b_l, b_m) - 2 k(a_l, b_m)\bigr), \qquad
        k(x, y) = \sum_s \exp\bigl(-\|x - y\|^2 / 2 s\bigr)

    Args:
        a: one sample [n, d].
        b: the other [n, d].
        weight: the weights of the rows of both [n].
        bandwidths: the values of s.

    >>> discrepancy(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1), [10.0])
    tensor(0.)
    """

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        square = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
        return torch.stack([torch.exp(-square / (2 * bandwidth)) for bandwidth in bandwidths]).sum(0)

    share = weight / weight.sum()
    return share @ (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)) @ share
