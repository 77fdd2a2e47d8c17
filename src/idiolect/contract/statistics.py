"""Running statistics of normalisation, computed anew from a client's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..core import tree
from ..core.tree import Slots, Tree
from ..task.task import Batch
from .slots import buffers_of

if TYPE_CHECKING:
    from .context import ClientContext


def recompute_statistics(ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
    """The buffers of all networks in a personal model after one more batch."""
    names = ctx.initial["params"].keys()
    networks = [slot for slot, leaves in model.items() if buffers_of(slot) in model and leaves.keys() == names]
    after = {buffers_of(m): running_statistics(ctx, model[m], model[buffers_of(m)], batch) for m in networks}
    return {**model, **after}


def running_statistics(ctx: ClientContext, params: Tree, buffers: Tree, batch: Batch) -> Tree:
    """One network's buffers after one more batch of a pass in which all batches of the client count alike; a batch of
    one has no variance and does not count."""
    if len(batch.x) < 2 and ctx.task.has_batchnorm:
        return buffers
    momentum = ctx.task.stat_momentum
    blank = {n: torch.zeros_like(leaf) if n in momentum else leaf for n, leaf in buffers.items()}
    after = ctx.task.forward(params, blank, batch.x, train=True).buffers
    share = 1.0 / (ctx.step + 1)
    means = {n: tree.mix({n: after[n] / factor}, buffers, share)[n] for n, factor in momentum.items()}
    return {**buffers, **means}
