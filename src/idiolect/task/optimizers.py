"""Optimisers as pure functions. An optimiser's state is slots, so it can be kept, stacked and stored like everything
else; the run owns the options, methods only call `ctx.optimize` and `ctx.apply`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import tree
from ..core.options import Options, option
from ..core.registry import Registry
from ..core.tree import Slots, Tree


@dataclass(frozen=True)
class Optimizer(Options):
    """The base of all optimisers: `init` makes the state of one tree, `step` changes the tree."""

    weight_decay: float = option(0.0, min=0.0, help="L2 penalty added to the gradient")
    clip: float | None = option(None, above=0.0, help="largest gradient norm; larger ones are scaled down")

    @property
    def needs_gradient(self) -> bool:
        """Whether a coordinate certainly stays where it is while its gradient is zero."""
        return False

    def init(self, params: Mapping[str, Tensor]) -> Slots:
        """The state before the first step: one tree per quantity."""
        return {}

    def direction(self, grads: Tree, state: Slots) -> tuple[Tree, Slots]:
        """What is subtracted, times the learning rate, from the parameters; and the next state."""
        return grads, state

    def step(
        self, params: Tree, grads: Tree, state: Slots, lr: float, rates: Mapping[str, Tensor] | None = None
    ) -> tuple[Tree, Slots]:
        """One step on the leaves that `grads` names; `rates` multiplies the learning rate leaf by leaf."""
        if self.clip is not None:
            factor = (self.clip / (tree.norm(grads) + 1e-6)).clamp_max(1.0)
            grads = tree.scale(grads, factor)
        if self.weight_decay:
            grads = {name: torch.add(leaf, params[name], alpha=self.weight_decay) for name, leaf in grads.items()}
        direction, after = self.direction(grads, {key: tree.pick(leaves, grads) for key, leaves in state.items()})
        if rates is not None:
            direction = {name: leaf * rates[name] if name in rates else leaf for name, leaf in direction.items()}
        changed = {name: torch.add(params[name], leaf, alpha=-lr) for name, leaf in direction.items()}
        return {**params, **changed}, {key: {**state[key], **leaves} for key, leaves in after.items()}


optimizers: Registry[Optimizer] = Registry("optimizer", Optimizer)


@optimizers.register("sgd")
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with PyTorch's momentum: m <- mu m + g, p <- p - lr m."""

    momentum: float = option(0.0, min=0.0, below=1.0, help="share of the last step that is kept")

    @property
    def needs_gradient(self) -> bool:
        """Without momentum and weight decay nothing else changes a coordinate."""
        return not self.momentum and not self.weight_decay

    def init(self, params: Mapping[str, Tensor]) -> Slots:
        """A tree of zeros with momentum, nothing without."""
        return {"momentum": tree.zeros_like(params)} if self.momentum else {}

    def direction(self, grads: Tree, state: Slots) -> tuple[Tree, Slots]:
        """The gradient, or the momentum after it."""
        if not self.momentum:
            return grads, state
        momentum = tree.map(lambda m, g: self.momentum * m + g, state["momentum"], grads)
        return momentum, {"momentum": momentum}


@optimizers.register("adam")
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) as in PyTorch; `amsgrad` keeps the largest second moment."""

    beta1: float = option(0.9, min=0.0, below=1.0, help="decay of the first moment")
    beta2: float = option(0.999, min=0.0, below=1.0, help="decay of the second moment")
    eps: float = option(1e-8, above=0.0, help="added to the root of the second moment")
    amsgrad: bool = option(False, help="use the largest second moment so far")

    def init(self, params: Mapping[str, Tensor]) -> Slots:
        """First and second moments and, per leaf, the number of steps it has taken."""
        counts = {
            name: torch.zeros((), dtype=torch.promote_types(leaf.dtype, torch.float32), device=leaf.device)
            for name, leaf in params.items()
        }
        state = {"first": tree.zeros_like(params), "second": tree.zeros_like(params), "count": counts}
        return state | ({"largest": tree.zeros_like(params)} if self.amsgrad else {})

    def direction(self, grads: Tree, state: Slots) -> tuple[Tree, Slots]:
        """The bias-corrected ratio of the moments."""
        first = tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state["first"], grads)
        second = tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, state["second"], grads)
        count = tree.map(lambda c: c + 1, state["count"])
        after = {"first": first, "second": second, "count": count}
        if self.amsgrad:
            after["largest"] = tree.map(torch.maximum, state["largest"], second)

        def ratio(m: Tensor, v: Tensor, c: Tensor) -> Tensor:
            root = (v.sqrt() / left_after(self.beta2, c).sqrt().to(v.dtype)) + self.eps
            return m / left_after(self.beta1, c).to(m.dtype) / root

        return tree.map(ratio, first, after.get("largest", second), count), after


def left_after(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, Adam's bias correction, without the rounding of beta^count, which for the usual 0.999 is a
    thousand times as large as what is left.

    >>> left_after(0.999, torch.tensor([1.0, 2.0]))
    tensor([0.0010, 0.0020])
    """
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))
