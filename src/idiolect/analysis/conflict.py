"""How much clients pull a layer in opposing directions: pairwise cosines of their updates, conflict
scores and the units that should stay personal. Where the updates come from is not decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError, OptionError

# Gram matrices are summed in float64 over blocks of this many float32 columns: the cosines of a layer of
# millions of parameters are then exact to about 2e-7, at the speed of one matrix product.
_COLUMNS = 2**18
# What round-off may decide nothing about: cosines this close to the threshold are not conflicts.
_TOLERANCE = 1e-6


def cosine_matrix(updates: Tensor | Sequence[Tensor], chunk: int | None = None) -> Tensor:
    r"""The cosine between every two clients' updates, from one Gram matrix.

    .. math:: \rho(u, v) = \frac{\langle h_u, h_v \rangle}{\|h_u\| \, \|h_v\|}

    A zero update has cosine 0 with everything, itself included; so has one whose square underflows.

    Args:
        updates: one row per client, ``[clients, d]``, which may be memory-mapped, or a list of rows; or sketches of
            them (:func:`sketch`).
        chunk: columns that are in use at a time (by default 262,144). It bounds the working memory.

    Returns:
        A symmetric float64 matrix ``[clients, clients]`` with values in [-1, 1].

    Example:
        >>> cosine_matrix(torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])).tolist()
        [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]

    Reference:
        FedLAG, section 4.1; the updates are its equation 2.
    """
    return _cosines(updates, chunk, "updates")


def sketch(updates: Tensor, size: int) -> Tensor:
    r"""Updates folded to ``size`` numbers each, between which cosines are about the same.

    Every coordinate gets a random sign, the same for all clients, and coordinate q is added to number q mod ``size``.
    Inner products are right in the mean; the cosine of two updates of many coordinates is off by about
    :math:`\sqrt{(1 - \rho^2) / \text{size}}` (0.03 at 1,024 and :math:`\rho = 0`). It takes one pass over the numbers
    instead of a product of all with all, and clients can be folded one at a time.

    Args:
        updates: ``[d]`` or ``[clients, d]``. What has no more than ``size`` coordinates is returned as it is.
        size: how many numbers stand for an update.

    Example:
        >>> a, b = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
        >>> exact, about = cosine_matrix([a, a + b]), cosine_matrix([sketch(a, 4096), sketch(a + b, 4096)])
        >>> bool((exact - about).abs().max() < 0.05)
        True
    """
    if size < 1:
        raise OptionError(f"size is {size}, but it is how many numbers stand for an update: give at least 1.")
    length = updates.shape[-1]
    if length <= size:
        return updates
    signs = torch.randint(0, 2, (length,), generator=torch.Generator().manual_seed(0), dtype=torch.int8) * 2 - 1
    signed = updates * signs.to(updates.device)
    whole = length // size * size
    folded: Tensor = signed[..., :whole].reshape(*signed.shape[:-1], -1, size).sum(-2)
    folded[..., : length - whole] += signed[..., whole:]
    return folded


def count_conflicts(cosines: Tensor, xi: float) -> int:
    r"""The conflict score of one unit from its matrix of cosines.

    .. math:: GC_\xi = \tfrac{1}{2} \sum_u \sum_{v \neq u} 1[\rho(u, v) < \xi]

    A pair conflicts when its cosine is below ``xi`` by more than 1e-6, so that orthogonal updates never conflict
    at ``xi = 0``, whatever the round-off.

    Args:
        cosines: what :func:`cosine_matrix` returns.
        xi: the threshold, in (-1, 0].

    Example:
        >>> count_conflicts(torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]), xi=0.0)
        2

    Reference:
        FedLAG, equation 3.
    """
    if not -1 < xi <= 0:
        raise OptionError(
            f"The conflict threshold xi is {xi}, but it is a cosine in (-1, 0]: use 0 to count every pair of updates "
            "that point apart, or a value such as -0.1 to count only clear conflicts."
        )
    return int((cosines.triu(1) < xi - _TOLERANCE).sum())  # triu leaves zeros, which are never conflicts


def conflict_scores(
    updates: Mapping[str, Tensor | Sequence[Tensor]], xi: float, chunk: int | None = None
) -> dict[str, int]:
    r"""For each unit, how many pairs of clients update it in conflicting directions.

    .. math:: GC_\xi(l) = \tfrac{1}{2} \sum_u \sum_{v \neq u} 1[\cos(h_{l,u}, h_{l,v}) < \xi]

    Units are taken from the mapping one at a time, so a mapping that loads on access keeps one unit in memory.

    Args:
        updates: for each unit the clients' updates of it, ``[clients, d]``.
        xi: the threshold, in (-1, 0]; a cosine conflicts when it is below it by more than 1e-6.
        chunk: columns that are in use at a time (by default 262,144).

    Returns:
        A count between 0 and ``clients * (clients - 1) / 2`` for each unit, in the order given.

    Example:
        >>> e = torch.eye(3)
        >>> conflict_scores({"A": torch.stack([e[0], e[0], -e[0]]), "B": e}, xi=0.0)
        {'A': 2, 'B': 0}

    Reference:
        FedLAG, equations 2 and 3.
    """
    return {unit: count_conflicts(_cosines(updates[unit], chunk, f"updates of {unit!r}"), xi) for unit in updates}


def rank_units(
    scores: Mapping[str, float],
    cosines: Mapping[str, Tensor],
    k: int,
    tie: Literal["last", "first"] = "last",
    allow_zero: bool = False,
) -> tuple[str, ...]:
    """The ``k`` units with the most conflicts, worst first: the personal units.

    Sorted by conflict score; then by how strongly the opposing clients oppose each other (the mean size of the
    negative cosines, rounded to six decimals so that round-off breaks no tie); then the later unit first.

    Args:
        scores: conflict score of each unit, in the order of the network; sums over rounds will do.
        cosines: for each unit its cosines, as a matrix or as any tensor of pairwise values.
        k: how many units may be personal.
        tie: which of two equal units comes first, the ``"last"`` or the ``"first"`` of the network.
        allow_zero: also take units without any conflict. Otherwise there may be fewer than ``k`` personal units.

    Example:
        >>> apart, close = torch.tensor([-0.9]), torch.tensor([-0.2])
        >>> rank_units({"a": 1, "b": 1, "c": 0}, {"a": apart, "b": close, "c": close}, k=3)
        ('a', 'b')

    Reference:
        FedLAG, algorithm 2 and remark 5.4 (no conflict, no personal layer).
    """
    _check_ranking(scores, cosines, k, tie)
    later_first = 1 if tie == "last" else -1
    place = {unit: (scores[unit], _opposition(cosines[unit]), later_first * i) for i, unit in enumerate(scores)}
    candidates = [unit for unit in scores if allow_zero or scores[unit] > 0]
    return tuple(sorted(candidates, key=place.__getitem__, reverse=True)[:k])


def _cosines(updates: Tensor | Sequence[Tensor], chunk: int | None, name: str) -> Tensor:
    if isinstance(updates, Tensor) and updates.ndim != 2:
        raise InputError(
            f"The {name} have shape {tuple(updates.shape)}, but one row per client is needed, [clients, d]: "
            "flatten each client's update and stack them."
        )
    gram = _gram(updates, chunk)
    unusable = (~gram.diagonal().isfinite()).nonzero().flatten().tolist()
    if unusable:
        raise InputError(
            f"The {name} of the clients in rows {unusable} are not finite or too large to square: "
            "leave these clients out of the scores."
        )
    norms = gram.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, torch.inf)
    return (gram / norms / norms[:, None]).clamp(-1, 1)


def _gram(rows: Tensor | Sequence[Tensor], chunk: int | None) -> Tensor:
    if chunk is not None and chunk < 1:
        raise OptionError(f"chunk is {chunk}, but it is a number of columns: give at least 1, or None.")
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows[0].device)
    dtype, columns = torch.promote_types(rows[0].dtype, torch.float32), chunk or _COLUMNS
    for start in range(0, rows[0].shape[-1], columns):
        cut = slice(start, start + columns)
        block = rows[:, cut] if isinstance(rows, Tensor) else torch.stack([row[cut] for row in rows])
        block = block.to(dtype)
        gram += block @ block.T
    return gram


def _opposition(cosines: Tensor) -> float:
    opposed = cosines < -_TOLERANCE
    return round(float(-(cosines * opposed).sum() / opposed.sum().clamp(min=1)), 6)


def _check_ranking(scores: Mapping[str, float], cosines: Mapping[str, Tensor], k: int, tie: str) -> None:
    if not 0 <= k <= len(scores):
        raise OptionError(
            f"k is {k}, but there are {len(scores)} units to choose from: give a k between 0 (all shared) "
            f"and {len(scores)} (all personal)."
        )
    if tie not in ("last", "first"):
        raise OptionError(f"tie is {tie!r}, but only 'last' and 'first' are known.")
    missing = [unit for unit in scores if unit not in cosines]
    if missing:
        raise InputError(f"The units {missing} have a score but no cosines: give cosines for every scored unit.")
