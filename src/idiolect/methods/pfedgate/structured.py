"""pFedGate's structured split: a gate is an output row of a hidden layer, and a row that is left out is not computed.
The model itself runs, on gathered tensors that are smaller; nothing here knows of the gating network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...contract import ModelError, Task, Tree, tree
from ...task.task import Unit

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Layer:
    """A layer of the chain and the norms after it: the rows it has, how many of them stay, which gates are theirs.
    The output layer keeps all rows and has no gates."""

    unit: Unit
    rows: int
    rows_kept: int
    gates: slice
    norms: tuple[Unit, ...] = ()

    @property
    def gated(self) -> bool:
        """Whether it is a hidden layer."""
        return bool(self.gates.start < self.gates.stop)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters and buffers that have its rows."""
        return self.unit.params + tuple(name for norm in self.norms for name in norm.params + norm.buffers)


@dataclass(frozen=True)
class Rows:
    """A chain of layers, of which each hidden one keeps a fixed number of rows, the next one's inputs to match."""

    task: Task
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, task: Task, s: float) -> Rows:
        """The chain in which hidden layers keep max(1, floor(s x rows)) rows; `ModelError` for what is no chain."""
        named = dict(task.net.module.named_modules())
        modules = {unit: named.get(unit.name, task.net.module) for unit in task.units}
        owners = [unit for unit, module in modules.items() if isinstance(module, LAYERS)]
        layers: list[Layer] = []
        for unit, module in modules.items():
            start = layers[-1].gates.stop if layers else 0
            if unit in owners:
                rows, hidden = len(task.net.params[unit.params[0]]), unit is not owners[-1]
                rows_kept = max(1, math.floor(s * rows + 1e-9)) if hidden else rows  # 0.29 x 100 is meant to be 29
                layers.append(Layer(unit, rows, rows_kept, slice(start, start + rows * hidden)))
            elif layers and isinstance(module, NORMS):
                layers[-1] = replace(layers[-1], norms=(*layers[-1].norms, unit))
            else:
                raise ModelError(
                    "split=structured leaves out rows of a chain of Linear and Conv layers, with batch normalisation"
                    f" after them, but {unit.name} is a {type(module).__name__}; use split=blocks for this model"
                )
        if len(layers) < 2:
            raise ModelError(
                "split=structured leaves out rows of hidden layers, but the model has none; use split=blocks"
            )
        return cls(task, tuple(layers))

    @property
    def count(self) -> int:
        """How many gates there are."""
        return int(self.layers[-1].gates.stop)

    @property
    def hidden(self) -> tuple[Layer, ...]:
        """The layers that have gates."""
        return self.layers[:-1]

    @property
    def groups(self) -> dict[str, slice]:
        """The gates of each hidden layer."""
        return {layer.unit.name: layer.gates for layer in self.hidden}

    def select(self, scores: Tensor) -> Tensor:
        """The rows that stay: in each layer those with the highest scores; of equal scores the lower index."""
        orders = [(scores[layer.gates].argsort(descending=True, stable=True), layer) for layer in self.hidden]
        best = torch.cat([order[: layer.rows_kept] + layer.gates.start for order, layer in orders])
        return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, best, True)

    def open_gates(self, active: Tensor) -> Tensor:
        """The indices of the gates that are open, in their order."""
        return (
            active.logical_not().to(torch.uint8).argsort(stable=True)[: sum(layer.rows_kept for layer in self.hidden)]
        )

    def by_layer(self, opened: Tensor) -> tuple[Tensor, ...]:
        """What belongs to open gates, layer by layer; the output layer has nothing."""
        return torch.split(opened, [layer.rows_kept * layer.gated for layer in self.layers])

    def stay(self, opened: Tensor) -> list[Tensor | None]:
        """For each layer the indices of the rows that stay; None where all do."""
        pairs = zip(self.layers, self.by_layer(opened), strict=True)
        return [here - layer.gates.start if layer.rows_kept < layer.rows else None for layer, here in pairs]

    def thin(self, params: Tree, buffers: Tree, scale: Tensor, active: Tensor) -> tuple[Tree, Tree]:
        """The tensors that the model runs on: gathered, rows times their gates."""
        small, rows_before, chosen_before = {**params, **buffers}, 0, None
        opened = self.open_gates(active)
        gates = self.by_layer(scale.index_select(0, opened))
        for layer, chosen, layer_gates in zip(self.layers, self.stay(opened), gates, strict=True):
            for name in layer.names:
                small[name] = _gather(small[name], chosen)
            for name in layer.unit.params:
                leaf = small[name]
                if leaf.ndim > 1 and chosen_before is not None:  # channels that were flattened stay together
                    apart = leaf.reshape(len(leaf), rows_before, -1, *leaf.shape[2:])
                    leaf = apart.index_select(1, chosen_before).flatten(1, 2)
                small[name] = leaf * _as_rows(layer_gates.to(leaf.dtype), leaf) if layer.gated else leaf
            rows_before, chosen_before = layer.rows, chosen
        return {name: small[name] for name in params}, {name: small[name] for name in buffers}

    def restore(self, stats: Tree, buffers: Tree, active: Tensor) -> Tree:
        """The statistics of channels that were computed, back in their places among all channels."""
        if not buffers:
            return stats
        full = dict(stats)
        for layer, chosen in zip(self.layers, self.stay(self.open_gates(active)), strict=True):
            for name in layer.names:
                if chosen is not None and name in buffers and buffers[name].ndim:
                    full[name] = buffers[name].scatter(0, chosen, stats[name])
        return full

    def marks(self, active: Tensor) -> Tree:
        """Of each vector the rows that stay; of matrices and kernels, too, which inputs each of them has."""
        marks, columns = Tree(), active.new_ones(1)
        for layer in self.layers:
            rows = active[layer.gates] if layer.gated else active.new_ones(layer.rows)
            for name in (name for name in layer.names if name in self.task.net.params):
                marks[name] = rows if self.task.net.params[name].ndim == 1 else rows[:, None] & columns
            columns = rows
        return marks

    def masks(self, marks: Tree) -> Tree:
        """Every mark as often as there are numbers between one row and one input."""
        leaves = self.task.net.params
        expanded = {
            n: mark[..., None].expand(*mark.shape, leaves[n].numel() // mark.numel()) for n, mark in marks.items()
        }
        return {name: mask.reshape(leaves[name].shape) for name, mask in expanded.items()}

    def share(self, active: Tensor) -> Tensor:
        """The share of the numbers in rows that stay, and of their inputs in those that do: that of every batch."""
        params, taken, inputs, heeded = self.task.net.params, 0, 1, 1
        for layer in self.layers:
            for leaf in (params[name] for name in layer.names if name in params):
                here = leaf.numel() // layer.rows * layer.rows_kept
                taken += here if leaf.ndim == 1 else here // inputs * heeded
            inputs, heeded = layer.rows, layer.rows_kept
        return torch.full((), taken / tree.size(params), device=active.device)

    def check(self) -> None:
        """Raise `ModelError` unless the model is a chain: without half of a layer's rows it must compute what it
        computes when the next layer ignores them."""
        net = self.task.net
        x = self.task.example[0][:2].to(next(iter(net.params.values())).device)
        for at, (layer, following) in enumerate(pairwise(self.layers)):
            whole = [replace(other, rows_kept=other.rows) for other in self.layers]
            whole[at] = replace(layer, rows_kept=(layer.rows + 1) // 2)
            half, weight = Rows(self.task, tuple(whole)), following.unit.params[0]
            active = torch.ones(self.count, dtype=torch.bool, device=x.device)
            active[layer.gates][1::2] = False
            try:
                heeded = net.params[weight] * half.masks(half.marks(active))[weight]
                wanted = net.apply({**net.params, weight: heeded}, net.buffers, x).outputs
                small = half.thin(net.params, net.buffers, torch.ones(self.count, device=x.device), active)
                outputs = net.apply(*small, x).outputs
            except RuntimeError as error:
                problem = str(error).strip().splitlines()[0]
            else:
                if outputs.shape == wanted.shape and torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-5):
                    continue
                problem = "what lies between mixes rows, or something else uses them too"
            raise ModelError(
                f"split=structured cannot leave out rows of {layer.unit.name}, because the model is no plain chain from"
                f" it to {following.unit.name}: {problem}; use split=blocks for this model"
            )


def _gather(leaf: Tensor, chosen: Tensor | None) -> Tensor:
    return leaf if chosen is None or leaf.ndim == 0 else leaf.index_select(0, chosen)


def _as_rows(values: Tensor, leaf: Tensor) -> Tensor:
    """One value per row, shaped to meet the leaf."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))
