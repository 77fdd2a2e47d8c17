"""How many clients go into a stack: what fits the caches of a processor, or the free memory of a GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import codec
from ..data.pool_clients import distinct
from ..task.task import Task
from .machine import free_memory
from .plan import Plan, late_size
from .slots import first_client, first_server, gather

CACHES = 64 << 20
"""Bytes that a stack of models may have on a processor, whose caches are a part of it."""
MOST, MOST_ON_GPU = 32, 256
"""The most clients of a stack."""
SHARE = 0.8
"""The share of a GPU's free memory that a stack may take; kernels and what PyTorch keeps need some."""
COPIES = 4
"""How often a client's slots are there in a step: as they are, their gradients, as they will be, and in between."""


def fit_chunk(plan: Plan) -> int:
    """How many clients to stack: on a GPU as many as its memory has room for, else as many as keep a stack of models
    within a few caches."""
    late = next((client for client in distinct(plan.data.clients) if client.late), None)
    most = MOST_ON_GPU if late is None else 4 * late_size(late) // plan.training.batch_size
    free = free_memory(plan.device)
    if free is not None:
        return max(1, min(most, fit_memory(free, client_bytes(plan))))
    size = 4 * sum(leaf.numel() for leaf in plan.tasks[0].net.params.values())
    return max(1, min(MOST, most, math.floor(CACHES / max(1, size))))


def limit_chunk(plan: Plan, chunk: int, share: float = 1.0) -> int:
    """So many clients, or fewer where the GPU of this process, of which a share is its own, has no room for them."""
    free = free_memory(plan.device) if chunk else None
    return chunk if free is None else min(chunk, fit_memory(int(free * share), client_bytes(plan)))


def fit_memory(free: int, each: int) -> int:
    """How many clients of so many bytes each go into a stack, where so many are free.

    >>> fit_memory(8 << 30, 100 << 20), fit_memory(1 << 20, 100 << 20), fit_memory(80 << 30, 1 << 10)
    (65, 1, 256)
    """
    return max(1, min(MOST_ON_GPU, int(SHARE * free / max(1, each))))


def client_bytes(plan: Plan) -> int:
    """About the most bytes that one client of a stack needs in a step: its slots, and what a batch leaves between the
    layers until the gradient is known, and as much again for the gradients of that."""
    index = plan.data.seen[0]
    ctx, server = plan.context(index, 0), plan.server(0)
    download = plan.method.download(server, first_server(server), [index]).of(index)
    kept = max(saved_bytes(task) for task in plan.tasks)
    return COPIES * codec.size(gather(ctx, first_client(ctx), download)) + 2 * plan.training.batch_size * kept


def saved_bytes(task: Task) -> int:
    """The bytes per sample that a forward pass keeps for the gradient, beside the parameters.

    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)),
    ...             (torch.ones(2, 6), torch.tensor([0, 1])), classes=2)
    >>> saved_bytes(task) == 4 * (6 + 8)
    True
    """
    params = {name: leaf.detach().requires_grad_(leaf.is_floating_point()) for name, leaf in task.net.params.items()}
    own, kept, passes = {leaf.data_ptr() for leaf in params.values()}, dict[int, int](), task.net.passes

    def keep(leaf: Tensor) -> Tensor:
        if leaf.data_ptr() not in own:
            kept[leaf.data_ptr()] = leaf.nbytes
        return leaf

    x = task.example[0][:2].to(next(iter(params.values())).device)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda leaf: leaf):
        task.forward(params, task.net.buffers, x, train=True)
    task.net.passes = passes  # a look at sizes is no part of anybody's training
    return sum(kept.values()) // len(x)
