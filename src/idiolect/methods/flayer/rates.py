"""FLAYER's learning rates: one per layer, set by the layer's first gradient of every epoch (eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import analysis
from ...contract import Slots, Tree, tree
from ...contract.context import ClientContext, RoundContext
from ...task.optimizers import Optimizer
from ...task.task import Task

RATES = "flayer.rates"


@dataclass(frozen=True)
class RateRule:
    """How eq. 4 is read.

    Attributes:
        floor: smaller gradient norms count as this.
        largest: the largest multiple of the run's learning rate, or none.
        per_batch: measured anew for every batch instead of every epoch.
        zero_based: depth is (i - 1) / (L - 1) instead of i / L.
        factor: multiplies every layer's rate.
        first, last: fixed multiples of the first and of the last layer, or none.
        private: whether what the inner method keeps private has such rates, too.
    """

    floor: float
    largest: float | None
    per_batch: bool
    zero_based: bool
    factor: float
    first: float | None
    last: float | None
    private: bool


def unit_ones(ctx: RoundContext) -> Tree:
    """A one for every unit."""
    one = torch.ones((), device=ctx.training.device)
    return {unit.name: one for unit in ctx.task.units if unit.params}


def unit_zeros(ctx: RoundContext) -> Tree:
    """A zero for every unit."""
    return tree.map(torch.zeros_like, unit_ones(ctx))


@dataclass(frozen=True, kw_only=True)
class LayerWise(Optimizer):
    """The run's optimiser with a learning rate per unit, which is part of its state."""

    base: Optimizer
    rule: RateRule
    ctx: ClientContext

    def step(
        self, params: Tree, grads: Tree, state: Slots, lr: float, rates: Mapping[str, Tensor] | None = None
    ) -> tuple[Tree, Slots]:
        """A step with the units' rates, measured at the first batch of an epoch; slots but `params` have none."""
        if RATES not in state:
            return self.base.step(params, grads, state, lr, rates)
        rated = grads if self.rule.private else tree.drop(grads, self.ctx.private_names)
        units = {unit.name: leaves for unit in self.ctx.task.units if (leaves := tree.pick(rated, unit.params))}
        unit_rates = state[RATES]
        if units and (self.ctx.step == 0 or self.rule.per_batch):
            unit_rates = {**unit_rates, **self.measure_rates(units)}
        outer = rates or {}
        leaf_rates = {n: unit_rates[unit] * outer.get(n, 1.0) for unit, leaves in units.items() for n in leaves}
        rest = {key: slot for key, slot in state.items() if key != RATES}
        moved, rest = self.base.step(params, grads, rest, lr, {**outer, **leaf_rates})
        return moved, {**rest, RATES: unit_rates}

    def measure_rates(self, grads: Mapping[str, Tree]) -> Tree:
        """Eq. 4 for the units that have gradients."""
        rule, numbers = self.rule, layer_numbers(self.ctx.task)
        last, start = max(numbers.values()), int(rule.zero_based)
        depth = [(numbers[unit] - start) / max(1, last - start) for unit in grads]
        norms = [tree.norm(leaves).to(self.ctx.samples.dtype) for leaves in grads.values()]
        rates = rule.factor * analysis.layer_rates(1.0, norms, rule.floor, depth=depth)
        rates = rates.clamp(max=rule.largest) if rule.largest is not None else rates
        fixed = {1: rule.first, **({last: rule.last} if last > 1 or rule.first is None else {})}
        given = [fixed.get(numbers[unit]) for unit in grads]
        return {
            unit: rate if multiple is None else torch.full_like(rate, multiple)
            for unit, rate, multiple in zip(grads, rates, given, strict=True)
        }


def layer_numbers(task: Task) -> dict[str, int]:
    """The layer i = 1 ... L of each unit; a normalisation belongs to the layer before it, or else to the first.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    >>> layer_numbers(Task(model, (torch.zeros(2, 2), torch.tensor([0, 1])), classes=2))
    {'0': 1, '1': 1, '2': 2}
    """
    numbers, layer = {}, 0
    for unit in task.units:
        if unit.params:
            layer += not unit.is_norm
            numbers[unit.name] = max(1, layer)
    return numbers
