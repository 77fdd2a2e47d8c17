"""What comes of runs and of personal models: how soon a curve reaches a target, who wins against whom, and how far
personal models are from a common one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, OptionError


class Record(NamedTuple):
    """How many pairs were won, tied and lost."""

    wins: int
    ties: int
    losses: int


def target_score(best: float, share: float, higher_is_better: bool = True) -> float:
    r"""The score that counts as a share of the best one.

    .. math:: share \cdot best, \qquad \text{or } best / share \text{ where lower is better}

    Example:
        >>> target_score(0.9, 0.8), target_score(0.4, 0.8, higher_is_better=False)
        (0.7200000000000001, 0.5)
    """
    if not 0 < share <= 1:
        raise OptionError(f"the share {share} of the best score is not allowed; it must lie in (0, 1], as 0.9 does")
    return share * best if higher_is_better else best / share


def first_reaching(values: Sequence[float], target: float, higher_is_better: bool = True) -> int | None:
    """The position of the first value that reaches a target; None if none does.

    Example:
        >>> first_reaching([0.5, 0.8, 0.7, 0.9], 0.75)
        1
    """
    reached = (value >= target if higher_is_better else value <= target for value in values)
    return next((place for place, there in enumerate(reached) if there), None)


def best_window(values: Sequence[float], window: int = 10, higher_is_better: bool = True) -> tuple[float, int]:
    """The best mean of so many consecutive values, and the position of the last of them; of equal ones the first.

    Papers report test accuracies so, chosen after the fact. A run's rule `select=last10` chooses by validation instead,
    with the mean of the last ten evaluated rounds, and then scores the models of the selected round alone.

    Example:
        >>> best_window([0.2, 0.6, 0.8, 0.7, 0.1], window=2)
        (0.75, 3)

    Reference:
        FedFac, section 5.2 (table 2).
    """
    if not 1 <= window <= len(values):
        raise InputError(
            f"there are {len(values)} values and the window is {window}, but it must lie in [1, {len(values)}]; give"
            " a smaller window, or evaluate more rounds"
        )
    means = np.lib.stride_tricks.sliding_window_view(np.asarray(values, float), window).mean(1)
    best = int(np.argmax(means) if higher_is_better else np.argmin(means))
    return float(means[best]), best + window - 1


def win_tie_loss(a: Sequence[float], b: Sequence[float], higher_is_better: bool = True, margin: float = 0.0) -> Record:
    """How often `a` beats `b`, pair by pair; differences of at most `margin` are ties.

    Example:
        >>> win_tie_loss([0.9, 0.5, 0.7], [0.8, 0.5, 0.9])
        Record(wins=1, ties=1, losses=1)
    """
    if len(a) != len(b):
        raise InputError(f"there are {len(a)} and {len(b)} values, but they are compared pair by pair; give as many")
    gains = (np.asarray(a, float) - np.asarray(b, float)) * (1 if higher_is_better else -1)
    return Record(int((gains > margin).sum()), int((np.abs(gains) <= margin).sum()), int((gains < -margin).sum()))


def effective_classes(counts: Sequence[float] | Tensor) -> float:
    r"""How many classes a client has in effect: the exponential of the entropy of its labels.

    .. math:: \exp\left(-\sum_c q_c \ln q_c\right), \qquad q_c = n_c / n

    Equal shares of c classes give c; a rare class adds little. Without samples it is 0.

    Example:
        >>> effective_classes([10, 10, 0]), round(effective_classes([99, 1]), 3)
        (2.0, 1.058)
    """
    numbers = np.asarray(counts, float)
    shares = numbers[numbers > 0] / numbers.sum()
    return float(np.round(np.exp(-(shares * np.log(shares)).sum()), 12)) if len(shares) else 0.0


def unit_distances(
    model: Mapping[str, Tensor], reference: Mapping[str, Tensor], units: Mapping[str, Iterable[str]]
) -> dict[str, float]:
    r"""How far a model is from another, unit by unit, relative to the length of the other.

    .. math:: \|w_u - v_u\|_2 / \|v_u\|_2

    Args:
        model: the parameters w.
        reference: the parameters v; a unit whose v is zero gives infinity, or 0 if w is zero too.
        units: the names of the parameters of each unit; names that either model lacks are left out.

    Example:
        >>> unit_distances({"w": torch.tensor([3.0, 5.0])}, {"w": torch.tensor([3.0, 4.0])}, {"first": ["w"]})
        {'first': 0.2}
    """
    distances = {}
    for unit, names in units.items():
        shared = [n for n in names if n in model and n in reference and model[n].shape == reference[n].shape]
        if shared:
            apart = torch.cat([(model[n].double() - reference[n].double()).flatten() for n in shared]).norm()
            length = torch.cat([reference[n].double().flatten() for n in shared]).norm()
            distances[unit] = float(apart / length) if length > 0 else float("inf") if apart > 0 else 0.0
    return distances
