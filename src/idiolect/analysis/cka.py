"""How alike two networks see the same samples: linear centred kernel alignment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..core.errors import InputError


def cka(x: Tensor, y: Tensor) -> Tensor:
    r"""Linear CKA between two sets of features of the same samples.

    .. math:: \text{CKA}(X, Y) = \frac{\|Y^\top X\|_F^2}{\|X^\top X\|_F \, \|Y^\top Y\|_F}
        \qquad \text{with centred columns}

    1 for features that are equal up to rotation, shift and scale, 0 for unrelated ones. Features that do not vary
    are related to nothing: 0.

    Args:
        x: ``[n, p]``, one row per sample; further dimensions are flattened.
        y: ``[n, q]``, the same samples; ``p`` and ``q`` may differ.

    Returns:
        A 0-d float64 tensor in [0, 1].

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        >>> cka(x, 3 * x.flip(1) + 1).round(decimals=6)
        tensor(1., dtype=torch.float64)

    Reference:
        Kornblith, Norouzi, Lee, Hinton: Similarity of Neural Network Representations Revisited, ICML 2019, section 3.
    """
    _require_rows(x, y)
    return _Centred(x).cka(_Centred(y))


def _require_rows(x: Tensor, y: Tensor) -> None:
    if min(x.ndim, y.ndim) < 2 or len(x) != len(y) or not len(x):
        raise InputError(
            f"The features have shapes {tuple(x.shape)} and {tuple(y.shape)}, but both need one row for each of the "
            "same samples, [n, p] and [n, q]: compute them on one batch."
        )


class _Centred:
    """Centred features, and what their CKA to any others needs, once."""

    def __init__(self, features: Tensor) -> None:
        self.x = _center(features)

    @cached_property
    def gram(self) -> tuple[Tensor, Tensor]:
        """The matrix sample by sample, and its norm."""
        gram = self.x @ self.x.T
        return gram, gram.norm()

    @cached_property
    def spread(self) -> Tensor:
        """The norm of the matrix feature by feature."""
        norm: Tensor = (self.x.T @ self.x).norm()
        return norm

    def cka(self, other: _Centred) -> Tensor:
        """See `cka`."""
        if len(self.x) < min(self.x.shape[1], other.x.shape[1]):  # the same numbers from the smaller matrices
            (k, mine), (m, its) = self.gram, other.gram
            common, own = (k * m).sum(), mine * its
        else:
            common, own = (other.x.T @ self.x).square().sum(), self.spread * other.spread
        return torch.where(own > 0, common / torch.where(own > 0, own, 1), 0).clamp(0, 1)


def cka_matrix(features: Sequence[Tensor]) -> Tensor:
    """Linear CKA between all pairs of models, from their features of the same samples.

    Args:
        features: one tensor ``[n, p]`` per model, see `cka`.

    Returns:
        ``[models, models]``, symmetric; the diagonal is 1 where features vary.

    Example:
        >>> x = torch.eye(3)
        >>> cka_matrix([x, 2 * x]).round(decimals=6)
        tensor([[1., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    matrix = torch.zeros(len(features), len(features), dtype=torch.float64)
    for each in features:
        _require_rows(features[0], each)
    known = [_Centred(each) for each in features]
    for i, first in enumerate(known):
        for j, second in enumerate(known[: i + 1]):
            matrix[i, j] = matrix[j, i] = first.cka(second)
    return matrix


def compress_features(x: Tensor) -> Tensor:
    """Features of the same samples with the same CKA to any others, and no more columns than samples: the centred ones,
    rotated. What a wide layer gives for few samples takes little memory then.

    Args:
        x: ``[n, p]``, see `cka`.

    Returns:
        ``[n, min(n, p)]``, in float64.

    Example:
        >>> x = torch.arange(12.0).reshape(2, 6)
        >>> compress_features(x).shape
        torch.Size([2, 2])
    """
    centred = _center(x)
    if centred.shape[1] <= len(centred):
        return centred
    triangle: Tensor = torch.linalg.qr(centred.T, mode="r").R
    return triangle.T


def _center(features: Tensor) -> Tensor:
    features = features.double().flatten(1)
    centred = features - features.mean(0)
    varies = centred.abs().amax(0) > 1e-7 * features.abs().amax(0)  # else only round-off is left
    return centred * varies
