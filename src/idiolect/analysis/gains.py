"""What FedLAG's theory says of a personal layer, as functions of the clients' updates of it. The docstrings say what
the numbers cannot be used for: neither tells which layers to personalize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import InputError, OptionError


def personal_gains(updates: Tensor | Sequence[Tensor], lr: float = 1.0) -> Tensor:
    r"""By how much, to first order, each client's loss is lower if a layer keeps its own update than if it takes the
    mean one.

    .. math:: g_u = \frac{\eta}{U} \sum_v \|h_u\| \left(\|h_u\| - \cos(h_u, h_v) \|h_v\|\right)
        = \eta \left(\|h_u\|^2 - h_u^\top \bar h\right)

    The paper states that this is positive for every client. It is so where all updates oppose each other; a client
    whose update is short and points where the others' do gains by averaging. The formula holds for gradients and their
    learning rate. The paper's h are updates, which hold the rate already (equation 2): of updates in T steps, the loss
    that is gained to first order has the factor :math:`1 / (T \eta)`.

    Args:
        updates: one row per client, ``[clients, d]``, or a list of rows: gradients, or updates.
        lr: the factor: the learning rate of gradients; of updates 1 / (steps times the learning rate), or 1 where only
            the sizes of layers are compared.

    Returns:
        ``[clients]``, in float64.

    Example:
        >>> personal_gains(torch.tensor([[2.0], [-1.0]])).tolist()
        [3.0, 1.5]
        >>> personal_gains(torch.tensor([[3.0], [1.0]])).tolist()
        [3.0, -1.0]

    Reference:
        FedLAG, Lemma 5.1 and equations 23 and 24.
    """
    rows = _rows(updates)
    return lr * (rows.square().sum(1) - rows @ rows.mean(0))


def gains_of_angles(cosines: Tensor, norms: Tensor) -> Tensor:
    r"""The gains of :func:`personal_gains`, without its factor, from cosines and lengths, as the lemma writes them.

    .. math:: g_u = \frac{1}{U} \sum_v \|h_u\| \left(\|h_u\| - \cos(h_u, h_v) \|h_v\|\right)

    Args:
        cosines: what :func:`cosine_matrix` returns, ``[clients, clients]``.
        norms: the lengths of the updates, ``[clients]``.

    Example:
        >>> gains_of_angles(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.tensor([2.0, 1.0])).tolist()
        [3.0, 1.5]

    Reference:
        FedLAG, Lemma 5.1.
    """
    if cosines.ndim != 2 or cosines.shape != (len(norms), len(norms)):
        raise InputError(
            f"There are cosines of shape {tuple(cosines.shape)} and {len(norms)} lengths, but every two clients have a "
            "cosine, and every client a length: [clients, clients] and [clients] are needed."
        )
    lengths = norms.to(torch.float64)
    return lengths * (lengths - cosines.to(torch.float64) @ lengths / len(lengths))


def mean_gain(updates: Tensor | Sequence[Tensor], lr: float = 1.0) -> float:
    r"""The mean of all clients' first-order gains by a personal layer.

    .. math:: g = \frac{\eta}{U^2} \left(U \sum_u \|h_u\|^2 - \left\|\sum_u h_u\right\|^2\right)
        = \frac{\eta}{U} \sum_u \|h_u - \bar h\|^2 \ge 0

    The paper takes its sign for a reason to personalize layers in conflict. But it is the spread of the updates: it is
    never negative, whatever the layer and its conflicts, and zero only where all clients move alike. It says that to
    first order on the training data everybody is best off alone, and not which layers to personalize.

    Args:
        updates: one row per client, ``[clients, d]``, or a list of rows.
        lr: the factor :math:`\eta`, as in :func:`personal_gains`.

    Example:
        >>> mean_gain(torch.tensor([[3.0], [1.0]]))
        1.0

    Reference:
        FedLAG, Lemma 5.2 and equation 25.
    """
    return float(personal_gains(updates, lr).mean())


class Convergence(NamedTuple):
    """The quantities of FedLAG's Theorem 5.3, without the constants that its O(...) hides.

    Attributes:
        rates: the open interval of learning rates that the theorem admits; empty where its first end is not below its
            second.
        is_admissible: whether the learning rate lies in it.
        start: the term of the distance from the optimum at the start.
        noise: the term of the noise at the optimum.
        drift: the term of the clients' drift.
        constant: the factor A of the sum of gains.
        gain: A times that sum, which the theorem subtracts.
    """

    rates: tuple[float, float]
    is_admissible: bool
    start: float
    noise: float
    drift: float
    constant: float
    gain: float


def convergence_terms(
    lr: float, epochs: int, rounds: int, smoothness: float, distance: float, noise: float, gain: float = 0.0
) -> Convergence:
    r"""The terms of the bound on the loss after R rounds of E local epochs, for an L-smooth loss.

    .. math:: \frac{\|w^{(0)} - w^*\|^2}{R \eta E}, \quad \eta \sigma_*^2, \quad \eta^2 E (E - 1) L \sigma_*^2, \quad
        A \sum_{u, v, l} \ldots, \qquad A = 24 E^2 (E - 1) \eta^4 L^2 - \eta^2 E

    for :math:`\frac{1}{2 \sqrt 6 E^2 L} < \eta < \frac{1}{6 E L}`. The paper says that A > 0. It is negative for every
    admissible learning rate, as :math:`24 E (E - 1) \eta^2 L^2 < \frac{2 (E - 1)}{3 E} < 1`; so the theorem's last
    term raises the bound by what it is said to lower it. With E = 1 no learning rate is admissible.

    Args:
        lr, epochs, rounds: learning rate :math:`\eta`, local epochs E and rounds R.
        smoothness: the constant L of the loss.
        distance: squared distance of the first model from the optimum.
        noise: the variance :math:`\sigma_*^2` of gradients at the optimum.
        gain: the sum over clients, pairs and personal layers in the last term: U^2 times :func:`mean_gain` of each
            personal layer with ``lr=1``, added up.

    Example:
        >>> terms = convergence_terms(0.07, epochs=2, rounds=10, smoothness=1.0, distance=4.0, noise=1.0, gain=5.0)
        >>> terms.is_admissible, terms.constant < 0, terms.gain < 0
        (True, True, True)

    Reference:
        FedLAG, Theorem 5.3 and equation 6.
    """
    if min(lr, smoothness) <= 0 or min(epochs, rounds) < 1:
        raise OptionError(
            f"lr is {lr}, smoothness {smoothness}, epochs {epochs} and rounds {rounds}, but the first two must be "
            "above 0 and the others at least 1."
        )
    low, high = 1 / (2 * math.sqrt(6) * epochs**2 * smoothness), 1 / (6 * epochs * smoothness)
    constant = 24 * epochs**2 * (epochs - 1) * lr**4 * smoothness**2 - lr**2 * epochs
    return Convergence(
        (low, high),
        low < lr < high,
        distance / (rounds * lr * epochs),
        lr * noise,
        lr**2 * epochs * (epochs - 1) * smoothness * noise,
        constant,
        constant * gain,
    )


def constant_range(lr: float, epochs: int) -> tuple[float, float]:
    r"""Between which values the constant A of Theorem 5.3 lies, if the learning rate is admissible, whatever L is.

    .. math:: -\eta^2 E \left(1 - \tfrac{E - 1}{E^3}\right) < A < -\eta^2 \tfrac{E + 2}{3}

    follows from the ends of :attr:`Convergence.rates`. So what the theorem's last term adds to the bound is known
    without the loss's L, from a run's updates alone.

    Args:
        lr, epochs: learning rate :math:`\eta` and local epochs E. With E = 1 no learning rate is admissible, and A is
            :math:`-\eta^2`.

    Example:
        >>> constant_range(0.1, epochs=2)
        (-0.0175, -0.013333333333333336)

    Reference:
        FedLAG, Theorem 5.3.
    """
    if lr < 0 or epochs < 1:
        raise OptionError(f"lr is {lr} and epochs {epochs}, but lr must be at least 0 and epochs at least 1.")
    return -(lr**2) * epochs * (1 - (epochs - 1) / epochs**3), -(lr**2) * (epochs + 2) / 3


def _rows(updates: Tensor | Sequence[Tensor]) -> Tensor:
    rows = updates if isinstance(updates, Tensor) else torch.stack([row.flatten() for row in updates])
    if rows.ndim != 2 or not len(rows):
        raise InputError(f"The updates have shape {tuple(rows.shape)}, but one row per client is needed: [clients, d].")
    return rows.to(torch.float64)
