"""Cutting parameters into blocks and choosing the blocks that fit a budget. What a chosen block is
multiplied with, and where the scores come from, is the gate's affair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError, OptionError

Solver = Literal["greedy", "density", "exact"]


def block_sizes(d: int, factor: int, min_share: float, equal: bool = False) -> tuple[int, ...]:
    r"""The sizes of the consecutive blocks of one flattened tensor; its first block is always active.

    .. math:: b_1 = \max(1, \lfloor d \, s_{min} \rfloor), \qquad b_2 = b_3 = \ldots = \lceil (d - b_1) / (B - 1) \rceil

    The last block may be shorter, and where elements run out there are fewer blocks.

    Args:
        d: the number of elements.
        factor: the split factor B, at least 2.
        min_share: the share :math:`s_{min}` of the first block, in (0, 1].
        equal: cut B chunks of :math:`\lceil d / B \rceil` instead, the first one included.

    Example:
        >>> block_sizes(100, factor=5, min_share=0.2)
        (20, 20, 20, 20, 20)
        >>> block_sizes(25, factor=10, min_share=0.1, equal=True)
        (3, 3, 3, 3, 3, 3, 3, 3, 1)

    Reference:
        pFedGate, section 5.2.2.
    """
    if d < 1:
        raise InputError(f"A tensor of {d} elements cannot be cut into blocks: it needs at least one element.")
    if factor < 2:
        raise OptionError(f"The split factor is {factor}, but a tensor is cut into at least 2 blocks: 5 is usual.")
    if not 0 < min_share <= 1:
        raise OptionError(f"min_share is {min_share}, but the first block's share of a tensor lies in (0, 1].")
    first = 0 if equal else max(1, math.floor(d * min_share + 1e-9))  # 0.29 * 100 is meant to be 29
    chunk = max(1, math.ceil((d - first) / (factor if equal else factor - 1)))
    rest = tuple(min(chunk, d - start) for start in range(first, d, chunk))
    return rest if equal else (first, *rest)


def select_blocks(
    scores: Tensor,
    sizes: Sequence[int] | Tensor,
    budget: int | Tensor,
    mandatory: Tensor,
    solver: Solver = "greedy",
) -> Tensor:
    r"""The blocks that a sparse model keeps: high scores within a budget of parameters.

    .. math:: \max_I \; I \cdot G \quad \text{s.t.} \quad I \cdot W \le budget, \qquad I_j = 1 \text{ where mandatory}

    =========== ====================================================================================
    solver      takes
    =========== ====================================================================================
    ``greedy``  optional blocks by decreasing score, each that still fits; one that does not is skipped
    ``density`` the same, by decreasing score per parameter
    ``exact``   the best choice of all; of equally good ones, one with the fewest parameters
    =========== ====================================================================================

    Of equal scores the lower index comes first. When the mandatory blocks alone exceed the budget, they alone are kept.
    ``greedy`` and ``density`` do not solve the problem: their sum of scores may be lower than the best, as in the
    example. All are traceable by ``torch.func.vmap``; ``exact`` then solves one problem after another.

    Args:
        scores: the importance G of each block, ``[L]``, not negative.
        sizes: the number W of parameters of each block.
        budget: how many parameters may be active, the mandatory ones included.
        mandatory: boolean, ``[L]``, True for blocks that are always active.
        solver: ``"greedy"``, ``"density"`` or ``"exact"``.

    Returns:
        A boolean tensor ``[L]``.

    Example:
        >>> scores, none = torch.tensor([0.6, 0.5, 0.4]), torch.tensor([False, False, False])
        >>> select_blocks(scores, (3, 2, 2), budget=4, mandatory=none).tolist()
        [True, False, False]
        >>> select_blocks(scores, (3, 2, 2), budget=4, mandatory=none, solver="exact").tolist()
        [False, True, True]

    Reference:
        pFedGate, equation 6.
    """
    sizes = torch.as_tensor(sizes, device=scores.device)
    if not scores.shape == sizes.shape == mandatory.shape or scores.ndim != 1:
        raise InputError(
            f"There are scores of shape {tuple(scores.shape)}, sizes of shape {tuple(sizes.shape)} and mandatory flags "
            f"of shape {tuple(mandatory.shape)}, but all three need one entry per block."
        )
    room = budget - (sizes * mandatory).sum()
    if solver == "exact":
        return _choose_exactly(scores.detach(), sizes, torch.as_tensor(room, device=scores.device), mandatory)
    if solver == "greedy":
        return mandatory | _greedy(scores, sizes, room, mandatory)
    if solver == "density":
        return mandatory | _greedy(scores / sizes, sizes, room, mandatory)
    raise OptionError(f"The solver {solver!r} is not known: choose one of {', '.join(get_args(Solver))}.")


def _greedy(value: Tensor, sizes: Tensor, room: Tensor, mandatory: Tensor) -> Tensor:
    order = value.argsort(descending=True, stable=True)
    taken = []
    for size, fixed in zip(sizes[order].unbind(), mandatory[order].unbind(), strict=True):
        fits = (size <= room) & ~fixed
        room = room - size * fits
        taken.append(fits)
    return torch.stack(taken)[order.argsort()]


class _Exact(torch.autograd.Function):
    """The exact choice as one operation, so that it can be traced for many clients, who are then served in turn."""

    @staticmethod
    def forward(scores: Tensor, sizes: Tensor, room: Tensor, mandatory: Tensor) -> Tensor:
        """The blocks that are kept."""
        optional = (~mandatory).nonzero().flatten()
        chosen = _exact(scores[optional].cpu().double().numpy(), sizes[optional].cpu().numpy(), int(room))
        return mandatory.index_fill(0, optional[torch.from_numpy(chosen).to(optional.device)], True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """A choice has no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        """One client after another."""
        rows = [
            each.movedim(dim, 0) if dim is not None else each.expand(info.batch_size, *each.shape)
            for each, dim in zip(inputs, in_dims, strict=True)
        ]
        return torch.stack([_choose_exactly(*each) for each in zip(*rows, strict=True)]), 0


def _choose_exactly(scores: Tensor, sizes: Tensor, room: Tensor, mandatory: Tensor) -> Tensor:
    chosen: Tensor = _Exact.apply(scores, sizes, room, mandatory)  # type: ignore[no-untyped-call]
    return chosen


def _exact(scores: NDArray[np.float64], sizes: NDArray[np.int64], room: int) -> NDArray[np.bool_]:
    """Dynamic programming over the choices that no lighter choice beats, whose number depends little on the sizes."""
    weight, value = np.zeros(1, dtype=np.int64), np.zeros(1)
    history = []
    for score, size in zip(scores, sizes, strict=True):
        states = len(weight)
        weight, value = np.append(weight, weight + size), np.append(value, value + score)  # without and with the block
        order = np.lexsort((-value, weight))
        order = order[weight[order] <= max(room, 0)]
        best = np.maximum.accumulate(value[order])
        better = order[np.append(True, value[order][1:] > best[:-1])]
        weight, value = weight[better], value[better]
        history.append((better, states))
    chosen = np.zeros(len(scores), dtype=np.bool_)
    state = len(weight) - 1
    for block in reversed(range(len(scores))):
        better, states = history[block]
        chosen[block], state = divmod(int(better[state]), states)
    return chosen
