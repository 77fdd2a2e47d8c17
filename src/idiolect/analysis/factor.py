"""Which units of a layer speak a common language: factor analysis of the clients' stacked weights,
communalities and the split into shared and personal units. Gathering the weights is done elsewhere."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, OptionError

Estimator = Literal["paf", "pc", "eigvec"]

_BLOCK = 2**23  # entries of Z that are standardised at a time
_CONSTANT = 1e-7  # a unit varies when its deviation exceeds this share of its mean, the resolution of float32
_FLOOR = 1e-6  # the least unique variance: a Heywood case is held here
_TOLERANCE = 1e-6  # of the iteration, and hence of every comparison of communalities
_SHARE_TOLERANCE = 1e-9  # of the explained share: kappa = 1 must be reachable
# A few leading eigenvectors of a wide matrix come faster from a Lanczos iteration than from a full decomposition.
_WIDE, _FEW = 512, 16


def correlation(Z: Tensor) -> Tensor:
    r"""The correlation matrix of the columns of ``Z``.

    .. math:: R = \tilde Z^\top \tilde Z / n, \qquad \tilde Z = \text{columns of } Z \text{ with mean 0 and variance 1}

    A constant column (deviation at most 1e-7 of its mean) correlates with nothing: its row, its column and its
    diagonal entry are zero, so that it takes no part in the analysis.

    Args:
        Z: ``[samples, units]``; float32 is multiplied as float32 and summed in float64.

    Returns:
        A symmetric float64 matrix ``[units, units]``.

    Example:
        >>> correlation(torch.tensor([[1.0, 2.0, 7.0], [2.0, 4.0, 7.0], [3.0, 6.0, 7.0]])).round(decimals=6).tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]

    Reference:
        FedFac, section 4.1 (the matrix :math:`R_l`).
    """
    if Z.ndim != 2 or not Z.numel():
        raise InputError(
            f"Z has shape {tuple(Z.shape)}, but at least one sample and one unit are needed, [samples, units]: "
            "stack each unit's weights over the clients as one column."
        )
    samples, units = Z.shape
    blocks = torch.split(Z, max(1, _BLOCK // units))
    mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / samples
    if not mean.isfinite().all():
        raise InputError("Z holds values that are not finite: leave the clients that sent them out of the analysis.")
    dtype = torch.promote_types(Z.dtype, torch.float32)
    covariance = torch.zeros(units, units, dtype=torch.float64, device=Z.device)
    for block in blocks:
        centred = (block - mean).to(dtype)
        covariance += centred.T @ centred
    deviation = (covariance.diagonal() / samples).sqrt()
    varies = deviation > _CONSTANT * mean.abs()
    scale = torch.where(varies, deviation, torch.inf)
    R = covariance / samples / scale / scale[:, None]
    R = ((R + R.T) / 2).clamp(-1, 1)
    R.diagonal().copy_(varies)
    return R


def factor_count(eigenvalues: Tensor, kappa: float) -> int:
    r"""How many factors explain the share ``kappa`` of the variance.

    .. math:: G = \min\{m : \sum_{j \le m} \gamma_j \big/ \sum_j \gamma_j \ge \kappa\}

    Negative eigenvalues are round-off and count as 0; a share within 1e-9 of ``kappa`` reaches it. At least one.

    Args:
        eigenvalues: of the correlation matrix, in any order.
        kappa: the share, in (0, 1].

    Example:
        >>> gamma = torch.tensor([2.3335, 0.9427, 0.4542, 0.2696])
        >>> [factor_count(gamma, kappa) for kappa in (0.5, 0.75, 0.85, 0.9, 0.95)]
        [1, 2, 3, 3, 4]

    Reference:
        FedFac, section 4.1 (the numbers :math:`r_{lm}` and :math:`G_l`).
    """
    if not 0 < kappa <= 1:
        raise OptionError(f"kappa is {kappa}, but it is a share of the variance in (0, 1]: 0.85 is the usual choice.")
    explained = eigenvalues.double().clamp(min=0).sort(descending=True).values.cumsum(0)
    enough = (kappa - _SHARE_TOLERANCE) * explained[-1]
    return int(((explained < enough).sum() + 1).clamp(max=len(eigenvalues)))


class Factors(NamedTuple):
    """A factor analysis: the communality of each unit, how many factors there are, how many steps the estimator took,
    and whether it converged."""

    communalities: Tensor
    factors: int
    steps: int
    converged: bool


def communalities(
    Z: Tensor, kappa: float = 0.85, estimator: Estimator = "paf", *, fewer: int = 0, iterations: int = 100
) -> Tensor:
    r"""The share of each unit's variance that the common factors explain.

    .. math:: \nu_j = \sum_{m \le G} a_{jm}^2

    with the loadings :math:`a` of the factor model :math:`R = A A^\top + \Psi` of the columns of ``Z``.

    Args:
        Z: ``[samples, units]``: column j holds unit j's incoming weights at all clients, one after another.
        kappa: the share of the variance that fixes the number G of factors, in (0, 1].
        estimator: of the loadings, see :func:`communalities_from_correlation`.
        fewer: take so many factors fewer than G, but at least one.
        iterations: at most so many steps of ``"paf"``.

    Returns:
        ``[units]`` in float64, values in [0, 1]; 0 for a unit whose weights are all equal.

    Example:
        >>> common = torch.tensor([1.0, -1.0, 1.0, -1.0])
        >>> Z = torch.stack([common, -2 * common, torch.tensor([1.0, 1.0, -1.0, -1.0])], dim=1)
        >>> communalities(Z, kappa=0.5).round(decimals=3).tolist()
        [1.0, 1.0, 0.0]

    Reference:
        FedFac (FedSplit), section 4.1, equations 6 and 7.
    """
    return communalities_from_correlation(correlation(Z), kappa, estimator, fewer=fewer, iterations=iterations)


def communalities_from_correlation(
    R: Tensor, kappa: float = 0.85, estimator: Estimator = "paf", *, fewer: int = 0, iterations: int = 100
) -> Tensor:
    r"""The communalities when the correlation matrix is known already.

    ========== ========================================================================================
    estimator  communality, with eigenvalues :math:`\gamma_m` and eigenvectors :math:`u_m`, m up to G
    ========== ========================================================================================
    ``paf``    principal factors: repeat :math:`\psi \leftarrow \text{clip}(\text{diag}(R - A A^\top), 10^{-6}, 1)`
               and A from the positive part of the leading eigenpairs of :math:`R - \text{diag}(\psi)`
    ``pc``     principal components, one pass: :math:`\sum_m \gamma_m u_{jm}^2`
    ``eigvec`` without the eigenvalues: :math:`\sum_m u_{jm}^2`
    ========== ========================================================================================

    ``paf`` stops when no :math:`\psi` changes by 1e-6, after ``iterations`` steps, or when no eigenvalue is positive.
    Each step costs one eigen-decomposition of a ``[units, units]`` matrix (of its G leading pairs only, when there are
    few); with many factors the iteration seldom converges, so for thousands of units prefer ``pc`` or few iterations.
    The paper writes the residual as a full matrix, with which the iteration would stand still; it has to be diagonal.

    Args:
        R: symmetric ``[units, units]``; a zero row means a unit without variance, whose communality is 0.
        kappa: the share of the variance that fixes the number G of factors, in (0, 1].
        estimator: ``"paf"``, ``"pc"`` or ``"eigvec"``.
        fewer: take so many factors fewer than G, but at least one.
        iterations: at most so many steps of ``"paf"``.

    Returns:
        ``[units]`` in float64, values in [0, 1].

    Example:
        >>> loadings = torch.tensor([0.9, 0.8, 0.7, 0.2], dtype=torch.float64)
        >>> R = torch.outer(loadings, loadings).fill_diagonal_(1)
        >>> communalities_from_correlation(R, kappa=0.5).round(decimals=4).tolist()
        [0.81, 0.64, 0.49, 0.04]
        >>> communalities_from_correlation(R, kappa=0.5, estimator="pc").round(decimals=4).tolist()
        [0.8079, 0.7531, 0.6753, 0.0972]

    Reference:
        FedFac (FedSplit), section 4.1, equation 7 and the iteration below it.
    """
    return analyse_factors(R, kappa, estimator, fewer=fewer, iterations=iterations).communalities


def analyse_factors(
    R: Tensor, kappa: float = 0.85, estimator: Estimator = "paf", *, fewer: int = 0, iterations: int = 100
) -> Factors:
    """The factor analysis of a correlation matrix; see :func:`communalities_from_correlation` for the arguments.

    Only ``paf`` iterates: it has converged when no unique variance changes by 1e-6 any more.

    Example:
        >>> loadings = torch.tensor([0.9, 0.8, 0.7, 0.2], dtype=torch.float64)
        >>> R = torch.outer(loadings, loadings).fill_diagonal_(1)
        >>> analyse_factors(R, kappa=0.5).converged, analyse_factors(R, kappa=0.5, iterations=2).converged
        (True, False)
    """
    R = _check_correlation(R, estimator, fewer, iterations)
    values, vectors = _eigenpairs(R)
    count = max(1, factor_count(values, kappa) - fewer)
    values, vectors = values[:count], vectors[:, :count]
    if estimator == "eigvec":
        nu = vectors.square().sum(1)
    else:
        nu = _communalities(values, vectors)
    steps, converged = 0, True
    if estimator == "paf":
        nu, steps, converged = _principal_factors(R, nu, count, iterations)
    return Factors(torch.where(R.diagonal() > 0, nu.clamp(0, 1), 0), count, steps, converged)


def shared_units(communalities: Tensor, tau: float = 0.5) -> Tensor:
    r"""Which units are shared: those that the common factors explain best.

    .. math:: \zeta_j = 1[\nu_j \ge \text{quantile}_\tau(\nu)]

    A unit within 1e-6 of the threshold is shared; so when all units are equal, all are shared.

    Args:
        communalities: ``[units]``.
        tau: a quantile in [0, 1]; ``inf`` makes every unit personal, ``-inf`` every unit shared.

    Returns:
        A boolean tensor ``[units]``, True where the unit is shared.

    Example:
        >>> shared_units(torch.tensor([0.81, 0.64, 0.49, 0.04]), tau=0.5).tolist()
        [True, True, False, False]

    Reference:
        FedFac, section 4.1 (the indicators :math:`\zeta_{lj}`), and section 5.1 for quantiles as thresholds.
    """
    if math.isinf(tau):
        return torch.full_like(communalities, tau < 0, dtype=torch.bool)
    if not 0 <= tau <= 1:
        raise OptionError(
            f"tau is {tau}, but it is a quantile in [0, 1]: give 0.5 to share the better half, "
            "inf to make every unit personal or -inf to share them all."
        )
    nu = communalities.double()
    return nu >= nu.quantile(tau) - _TOLERANCE


def _principal_factors(R: Tensor, nu: Tensor, count: int, iterations: int) -> tuple[Tensor, int, bool]:
    variance = R.diagonal()
    unique = (variance - nu).clamp(_FLOOR, 1)
    for step in range(1, iterations + 1):
        values, vectors = _leading(R - torch.diag(unique), count)
        if values[0] <= 0:
            return nu, step, False
        nu = _communalities(values, vectors)
        previous, unique = unique, (variance - nu).clamp(_FLOOR, 1)
        if (unique - previous).abs().max() < _TOLERANCE:
            return nu, step, True
    return nu, iterations, False


def _communalities(values: Tensor, vectors: Tensor) -> Tensor:
    return vectors.square() @ values.clamp(min=0)


def _eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if len(matrix) >= _WIDE and count * _FEW <= len(matrix):
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh  # which take long to import

        start = np.random.default_rng(0).standard_normal(len(matrix))  # fixed, so that the result is reproducible
        try:
            values, vectors = eigsh(matrix.cpu().numpy(), k=count, which="LA", v0=start, tol=_SHARE_TOLERANCE)
        except ArpackNoConvergence:
            pass
        else:
            largest_first = np.argsort(-values)
            leading = torch.from_numpy(values[largest_first]), torch.from_numpy(vectors[:, largest_first])
            return leading[0].to(matrix.device), leading[1].to(matrix.device)
    values, vectors = _eigenpairs(matrix)
    return values[:count], vectors[:, :count]


def _check_correlation(R: Tensor, estimator: str, fewer: int, iterations: int) -> Tensor:
    known = get_args(Estimator)
    if estimator not in known:
        raise OptionError(f"The estimator {estimator!r} is not known: choose one of {', '.join(known)}.")
    if fewer < 0 or iterations < 1:
        raise OptionError(f"fewer is {fewer} and iterations is {iterations}, but they are at least 0 and 1.")
    if R.ndim != 2 or R.shape[0] != R.shape[1] or not R.numel():
        raise InputError(f"R has shape {tuple(R.shape)}, but a correlation matrix is square: give [units, units].")
    if not R.isfinite().all() or not torch.allclose(R, R.T, atol=1e-6):
        raise InputError("R is not a symmetric matrix of finite numbers: correlation(Z) computes it from the weights.")
    return R.double()
