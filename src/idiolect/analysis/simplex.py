"""Weights that are not negative, sum to one and minimise a quadratic form."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError

# An eigenvalue below zero by no more than this share of the largest is round-off.
_ROUND_OFF = 1e-10


def simplex_weights(matrix: Tensor, floor: float = 0.01) -> Tensor:
    r"""The weights on the simplex that minimise a quadratic form.

    .. math:: \min_\alpha \alpha^\top P \alpha \quad \text{with} \quad \alpha_j \ge 0, \; \sum_j \alpha_j = 1

    This is least squares with weights that are not negative: with :math:`P = A^\top A`, the :math:`\beta \ge 0` that
    minimises :math:`\|A \beta\|^2 + (1^\top \beta - 1)^2` is :math:`\beta = s \alpha` for some s > 0, because for a
    given sum s the first term alone decides, and scales with :math:`s^2`.

    Args:
        matrix: ``[n, n]``, symmetric. If it is not positive semi-definite, beyond round-off, its eigenvalues below
            ``floor`` count as zero.
        floor: see above.

    Returns:
        ``[n]`` in double precision.

    Example:
        >>> simplex_weights(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([0.7500, 0.2500], dtype=torch.float64)

    Reference:
        C. Lawson and R. Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    from scipy.optimize import nnls  # which takes long to import

    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"The matrix has shape {tuple(matrix.shape)}, but a square one of at least one row is needed.")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("The matrix has numbers that are not finite; give finite ones.")
    values, vectors = np.linalg.eigh(matrix.detach().to("cpu", torch.float64).numpy())
    largest = np.abs(values).max() or 1.0
    if values.min() < -_ROUND_OFF * largest:
        values = np.where(values < floor, 0.0, values)
    roots = np.sqrt(values.clip(0.0) / largest)
    count = len(values)
    system = np.vstack([roots[:, None] * vectors.T, np.ones(count)])
    weights, _ = nnls(system, np.eye(count + 1)[count], maxiter=100 * count)
    return torch.from_numpy(weights / weights.sum())
