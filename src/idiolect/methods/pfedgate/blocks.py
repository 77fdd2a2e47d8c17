"""How pFedGate's gates sit on a model (`Split`), and the paper's own way: consecutive blocks of every tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor, nn

from ...analysis import block_sizes, select_blocks
from ...analysis.blocks import Solver
from ...contract import Task, Tree, tree


class Split(Protocol):
    """Where gates sit: on blocks of tensors (`Blocks`), or on rows of layers (`Rows`)."""

    @property
    def count(self) -> int:
        """How many gates there are."""
        ...

    @property
    def groups(self) -> dict[str, slice]:
        """The gates of each layer."""
        ...

    def select(self, scores: Tensor) -> Tensor:
        """Which gates are open, as truth values."""
        ...

    def thin(self, params: Tree, buffers: Tree, scale: Tensor, active: Tensor) -> tuple[Tree, Tree]:
        """The tensors that the model runs on; `scale` is zero at gates that are closed."""
        ...

    def restore(self, stats: Tree, buffers: Tree, active: Tensor) -> Tree:
        """The buffers after such a run, in the model's own shapes."""
        ...

    def marks(self, active: Tensor) -> Tree:
        """What takes part, in few truth values: of several batches these can be joined by `or`."""
        ...

    def masks(self, marks: Tree) -> Tree:
        """Which of the model's coordinates take part, laid out like the model."""
        ...

    def share(self, active: Tensor) -> Tensor:
        """The share of the model's coordinates that take part."""
        ...


@dataclass(frozen=True)
class Blocks:
    """Every tensor but those of norms, flattened and cut into consecutive blocks; the first one of each always stays.

    Attributes:
        task: the model.
        sizes: the sizes of each gated tensor's blocks.
        s: the largest share of the model's parameters that may be active, those of norms included.
        solver: how blocks are selected.
        reserve: None for one budget, s of the model. Else dense layers and all others have a budget each, the share
            s - `reserve` of their optional blocks.
    """

    task: Task
    sizes: dict[str, tuple[int, ...]]
    s: float
    solver: Solver
    reserve: float | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        s: float,
        factor: int,
        min_share: float,
        equal: bool,
        solver: Solver,
        reserve: float | None = None,
    ) -> Blocks:
        """The blocks of a model (section 5.2.2)."""
        gated = [name for unit in task.units if not unit.is_norm for name in unit.params]
        sizes = {name: block_sizes(task.net.params[name].numel(), factor, min_share, equal) for name in gated}
        return cls(task, sizes, s, solver, reserve)

    @property
    def flat(self) -> list[int]:
        """The sizes of all blocks, in the order of their gates."""
        return [size for blocks in self.sizes.values() for size in blocks]

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.flat)

    @property
    def groups(self) -> dict[str, slice]:
        """The blocks of each layer: those of its weight and of its bias are neighbours."""
        groups: dict[str, slice] = {}
        start = 0
        for unit in self.task.units:
            count = sum(len(self.sizes.get(name, ())) for name in unit.params)
            if count:
                groups[unit.name] = slice(start, start + count)
                start += count
        return groups

    @property
    def ungated(self) -> int:
        """How many parameters have no gate: those of norms."""
        return tree.size(self.task.net.params) - sum(self.flat)

    @property
    def always(self) -> int:
        """How many parameters are always active: those of norms, and first blocks."""
        return self.ungated + sum(blocks[0] for blocks in self.sizes.values())

    @property
    def budget(self) -> int:
        """How many may be active."""
        return math.floor(self.s * tree.size(self.task.net.params) + 1e-9)  # 0.29 x 100 is meant to be 29

    def select(self, scores: Tensor) -> Tensor:
        """Equation 6; with s = 1 there is nothing to select."""
        if self.s == 1:
            return torch.ones_like(scores, dtype=torch.bool)
        first = [at == 0 for blocks in self.sizes.values() for at in range(len(blocks))]
        mandatory = torch.tensor(first, device=scores.device)
        if self.reserve is not None:
            return mandatory | self.select_apart(scores, mandatory)
        return select_blocks(scores, self.flat, self.budget - self.ungated, mandatory, self.solver)

    def select_apart(self, scores: Tensor, mandatory: Tensor) -> Tensor:
        """The optional blocks of dense layers and those of all others, each within a budget of its own."""
        modules = dict(self.task.net.module.named_modules())
        dense_names = {
            name for unit in self.task.units for name in unit.params if isinstance(modules.get(unit.name), nn.Linear)
        }
        dense = torch.tensor(
            [name in dense_names for name, blocks in self.sizes.items() for _ in blocks], device=scores.device
        )
        sizes, kept = torch.tensor(self.flat, device=scores.device), torch.zeros_like(mandatory)
        for group in (dense, ~dense):
            optional = group & ~mandatory
            budget = math.floor((self.s - (self.reserve or 0.0)) * int((sizes * optional).sum()) + 1e-9)
            # Blocks of the other group are larger than the budget, so that none is taken.
            here = torch.where(optional, sizes, budget + 1).tolist()
            kept = kept | (select_blocks(scores, here, budget, torch.zeros_like(mandatory), self.solver) & optional)
        return kept

    def times(self, leaves: Tree, values: Tensor) -> Tree:
        """The gated tensors, each block times its value; the others as they are."""
        gates = torch.split(values, [len(blocks) for blocks in self.sizes.values()])
        pairs = zip(self.sizes.items(), gates, strict=True)
        return {**leaves, **{name: _times(leaves[name], sizes, values) for (name, sizes), values in pairs}}

    def thin(self, params: Tree, buffers: Tree, scale: Tensor, active: Tensor) -> tuple[Tree, Tree]:
        """The block-wise product of model and gates."""
        return self.times(params, scale), buffers

    def restore(self, stats: Tree, buffers: Tree, active: Tensor) -> Tree:
        """The buffers as they are: all channels were computed."""
        return stats

    def marks(self, active: Tensor) -> Tree:
        """The active blocks."""
        return {"blocks": active}

    def masks(self, marks: Tree) -> Tree:
        """The active blocks, and all of the norms."""
        whole = {n: torch.ones_like(leaf, dtype=torch.bool) for n, leaf in self.task.net.params.items()}
        return self.times(whole, marks["blocks"])

    def share(self, active: Tensor) -> Tensor:
        """The share of the active blocks and of the norms."""
        sizes = torch.tensor(self.flat, device=active.device)
        return ((active * sizes).sum() + self.ungated) / tree.size(self.task.net.params)


def _times(leaf: Tensor, sizes: Sequence[int], values: Tensor) -> Tensor:
    """A tensor of blocks, each times its value. Neighbours of one size are the rows of a matrix.

    >>> _times(torch.ones(5), (1, 2, 2), torch.tensor([1.0, 2.0, 3.0]))
    tensor([1., 2., 2., 3., 3.])
    """
    runs = [(len(list(same)), size) for size, same in groupby(sizes)]
    pieces = torch.split(leaf.reshape(-1), [count * size for count, size in runs])
    gates = torch.split(values.to(leaf.dtype), [count for count, _ in runs])
    done = [piece.view(len(gate), -1) * gate[:, None] for piece, gate in zip(pieces, gates, strict=True)]
    return (torch.cat([piece.view(-1) for piece in done]) if len(done) > 1 else done[0]).view(leaf.shape)
