"""How much of a client's own update to trust: the share of the local model in the sum of the local and the
global model's feature traces. The traces and ratios are traceable by `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from .tangent import gram_matrix

# A centred trace below this share of the raw one is round-off (float32 resolves 1e-7 of a feature): nothing varies.
_NO_SPREAD = 1e-12


def trace(features: Tensor, weight: Tensor | None = None, centered: bool = False) -> Tensor:
    r"""The trace of the feature matrix, without forming the matrix.

    .. math:: \text{tr} \sum_i w_i h(x_i) h(x_i)^\top = \sum_i w_i \|h(x_i)\|^2

    Args:
        features: ``[n, m]``, or dense ``[n, c, ...]``, which is averaged over its positions to one vector per
            sample. To count every position as a sample, give ``features.movedim(1, -1).flatten(0, -2)``.
        weight: ``[n]``, for instance 0 for the samples that pad a batch; by default 1.
        centered: subtract the (weighted) mean feature first. Then features that do not vary, up to round-off,
            have trace exactly 0.

    Returns:
        A 0-d tensor.

    Example:
        >>> trace(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
        tensor(26.)
        >>> trace(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), centered=True)
        tensor(10.)

    Reference:
        LG-Mix, equation 5.
    """
    if features.ndim < 2:
        raise InputError(
            f"The features have shape {tuple(features.shape)}, but one row per sample is needed, [n, m] or [n, c, ...]."
        )
    if features.ndim > 2:
        features = features.flatten(2).mean(2)
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    weight = features.new_ones(len(features)) if weight is None else weight.to(features.dtype)
    raw = weight @ features.square().sum(1)
    if not centered:
        return raw
    mean = weight @ features / weight.sum().clamp(min=torch.finfo(features.dtype).tiny)
    spread = weight @ (features - mean).square().sum(1)
    return torch.where(spread > _NO_SPREAD * raw, spread, 0)


def ratio_of_traces(local: Tensor, global_: Tensor, fallback: Tensor | float = 0.5) -> Tensor:
    r"""The mixing ratio from two traces, for instance from sums over many batches.

    .. math:: \lambda = \frac{T_{local}}{T_{local} + T_{global}}

    Two zero traces give 0.5.

    Args:
        local: trace of the local model's features.
        global_: trace of the global model's features on the same data.
        fallback: what to use when a trace is not finite, for instance the mean of the earlier ratios.

    Example:
        >>> ratio_of_traces(torch.tensor(4.0), torch.tensor(1.0))
        tensor(0.8000)

    Reference:
        LG-Mix, equations 4 and 6.
    """
    total = local + global_
    ratio = torch.where(total > 0, local / torch.where(total > 0, total, 1), 0.5)
    return torch.where(total.isfinite(), ratio, fallback)


def mixing_ratio(local_features: Tensor, global_features: Tensor, centered: bool = False) -> Tensor:
    r"""The weight of a client's own update, from the features of its own and of the global model on its data.

    .. math:: \lambda = \frac{\text{tr} \Sigma_c}{\text{tr} \Sigma_c + \text{tr} \Sigma},
        \qquad \Sigma_c = \sum_i h_c(x_i) h_c(x_i)^\top, \quad \Sigma = \sum_i h(x_i) h(x_i)^\top

    The scales of the two models' features are meant to matter and are not normalised. Without any activity (or, when
    centred, without any variation, as with one sample) the ratio is 0.5; so it is when a feature is not finite.

    Args:
        local_features: ``[n, m]``, or dense ``[n, c, ...]``, which is averaged over its positions.
        global_features: the same samples' features from the global model.
        centered: subtract each model's mean feature first (the trace of the covariance).

    Returns:
        A 0-d tensor in [0, 1].

    Example:
        >>> mixing_ratio(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
        tensor(0.8000)

    Reference:
        LG-Mix, equations 4 to 6.
    """
    if local_features.shape[:1] != global_features.shape[:1]:
        raise InputError(
            f"The local features have shape {tuple(local_features.shape)} and the global ones "
            f"{tuple(global_features.shape)}, but both must come from the same samples: compute them on one batch."
        )
    return ratio_of_traces(trace(local_features, centered=centered), trace(global_features, centered=centered))


def kernel_ratio(
    function: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    local: Mapping[str, Tensor],
    global_: Mapping[str, Tensor],
    x: Tensor,
) -> Tensor:
    r"""The mixing ratio by the traces of whole tangent kernels, for which those of features stand in.

    .. math:: \lambda = \frac{\text{tr} H_c}{\text{tr} H_c + \text{tr} H}

    It takes the gradient of every output on every sample, so it is for checks on a few samples. For the parameters of a
    linear head without bias and one output it equals :func:`mixing_ratio`.

    Args:
        function: ``(params, x) -> [n]`` or ``[n, outputs]``, as for :func:`gram_matrix`.
        local: the local model's parameters.
        global_: the global model's.
        x: ``[n, ...]``.

    Example:
        >>> two, one = ({"w": torch.tensor(scale)} for scale in (2.0, 1.0))
        >>> kernel_ratio(lambda p, x: p["w"] ** 2 * x, two, one, torch.ones(3))
        tensor(0.8000, dtype=torch.float64)

    Reference:
        LG-Mix, equation 4.
    """
    traces = [gram_matrix(function, params, x).diagonal().sum() for params in (local, global_)]
    return ratio_of_traces(*traces)


class FeatureValues(NamedTuple):
    """How a model's features are distributed: the share of values that are active, and of those the 10th, 25th, 50th,
    75th and 90th percentile; not a number where none is."""

    active: float
    percentiles: tuple[float, float, float, float, float]


def feature_values(features: Tensor, threshold: float = 0.0) -> FeatureValues:
    """The distribution of feature values over samples and features; active are those above a threshold.

    After a ReLU, high values of many active features are read as confidence of the representation.

    Args:
        features: values of any shape, such as ``[n, m]``.
        threshold: the activation's own, 0 for a ReLU.

    Example:
        >>> feature_values(torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])).percentiles[2]
        3.0

    Reference:
        LG-Mix, section 5.3 and figure 2 (b).
    """
    values = features.detach().double().flatten()
    if not values.numel():
        raise InputError("There are no features: give those of one sample or more.")
    active = values[values > threshold].numpy(force=True)
    points = np.percentile(active, (10, 25, 50, 75, 90)) if len(active) else np.full(5, np.nan)
    low, first, middle, third, high = map(float, points)
    return FeatureValues(len(active) / values.numel(), (low, first, middle, third, high))
