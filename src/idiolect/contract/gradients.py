"""How gradients are computed: the reference way. Engines have others, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core import tree
from ..core.tree import Slots, Tree
from ..task.task import Batch, Scored

if TYPE_CHECKING:
    from .context import ClientContext

LossFn = Callable[[Slots], Scored]


@dataclass(frozen=True)
class Grad:
    """Gradients slot by slot, and the loss and forward pass they came from."""

    slots: Slots
    scored: Scored

    @property
    def tree(self) -> Tree:
        """The gradient, where there is one slot only."""
        (only,) = self.slots.values()
        return only

    def plus(self, extra: Mapping[str, Tensor], scale: float | Tensor = 1.0) -> Grad:
        """The gradient of the one slot plus `scale * extra`; names that are not trained are left out."""
        ((slot, leaves),) = self.slots.items()
        return replace(self, slots={slot: tree.add(leaves, extra, scale)})


class Autograd:
    """Plain `torch.autograd.grad`. It counts the gradients of the model: `taken` so far, and the forward `passes` that
    they went through, fewer where an engine writes gradients out."""

    taken: int = 0
    passes: int = 0

    def count(self, taken: int, passes: int) -> None:
        """Count gradients of the model, and the forward passes that they went through."""
        self.taken += taken
        self.passes += passes

    def of_loss(self, loss: LossFn, leaves: Slots) -> tuple[Slots, Scored]:
        """The gradient of a loss, a function of slots, at `leaves`."""
        leaves = {
            slot: {name: leaf.detach().requires_grad_() for name, leaf in values.items()}
            for slot, values in leaves.items()
        }
        with torch.enable_grad():
            scored = loss(leaves)
        flat = [leaf for values in leaves.values() for leaf in values.values()]
        gradients = iter(torch.autograd.grad(scored.loss, flat, allow_unused=True, materialize_grads=True))
        grads = {slot: {name: next(gradients) for name in values} for slot, values in leaves.items()}
        value, outputs, features, buffers = scored
        return grads, Scored(value.detach(), outputs.detach(), features.detach(), tree.map(torch.detach, buffers))

    def of_task(self, ctx: ClientContext, slot: str, params: Tree, buffers: Tree, batch: Batch) -> Grad:
        """The gradient of the task's own loss with respect to what the phase trains of a model."""
        frozen = ctx.task.frozen(ctx.phase.part)

        def loss(part: Slots) -> Scored:
            return ctx.task.loss({**params, **part[slot]}, buffers, batch, frozen=frozen)

        return Grad(*self.of_loss(loss, {slot: pick_trained(ctx, params)}))

    def hessian_product(self, loss: Callable[[Tree], Tensor], leaves: Tree, vector: Tree) -> Tree:
        """The Hessian of a loss at `leaves` times a vector: the gradient of their gradient's product with it."""
        leaves = tree.map(lambda leaf: leaf.detach().requires_grad_(), leaves)
        flat = list(leaves.values())
        with torch.enable_grad():
            first = torch.autograd.grad(
                loss(leaves), flat, create_graph=True, allow_unused=True, materialize_grads=True
            )
            product = tree.dot(dict(zip(leaves, first, strict=True)), vector)
        if not product.requires_grad:  # a loss that is linear in all of them
            return tree.zeros_like(vector)
        second = torch.autograd.grad(product, flat, allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, second, strict=True))


def pick_trained(ctx: ClientContext, leaves: Mapping[str, Tensor]) -> Tree:
    """What the phase trains of a tree: `Phase.part` of the model's parameters, all of any other tree."""
    part = ctx.phase.part
    return {n: leaf for n, leaf in leaves.items() if part is None or n in part or n not in ctx.task.net.params}
