"""Running statistics of normalisation layers, computed anew from a client's data."""

from __future__ import annotations

import torch

from ...core import tree
from ...core.tree import Slots, Tree
from ...task.task import Batch
from ..context import ClientContext
from ..slots import buffers_of


def recompute_statistics(ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
    """A step of a phase that trains nothing: the buffers of all models after one more batch of a pass in which all
    batches of the client count alike."""
    models = [slot for slot in model if buffers_of(slot) in model]
    after = {buffers_of(m): running_statistics(ctx, model[m], model[buffers_of(m)], batch) for m in models}
    return {**model, **after}


def running_statistics(ctx: ClientContext, params: Tree, buffers: Tree, batch: Batch) -> Tree:
    """One model's buffers after one more batch."""
    momentum = ctx.task.stat_momentum
    blank = {n: torch.zeros_like(leaf) if n in momentum else leaf for n, leaf in buffers.items()}
    after = ctx.task.forward(params, blank, batch.x, train=True).buffers
    share = 1.0 / (ctx.step + 1)
    means = {n: tree.mix({n: after[n] / factor}, buffers, share)[n] for n, factor in momentum.items() if n in buffers}
    return {**buffers, **means}
