"""What steps of training make of a client's slots, found by carrying them out on symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ..contract.context import ClientContext
from ..contract.gradients import Grad
from ..core.tree import Slots, Tree
from ..task.task import Batch, Scored
from .symbols import Symbol, Terms, make_symbol

GRADIENT, LOSS = "the gradient", "the loss"
Leaf = tuple[str, str]
"""A slot and the name of a leaf."""


class NotLinear(Exception):
    """A step does something else than sums."""


@dataclass(frozen=True)
class LinearContext(ClientContext):
    """A context whose gradients, of the task's own loss, come from elsewhere."""

    give: Callable[..., Grad] | None = None

    def grad(self, work: Slots, slots: Any, batch: Batch, loss: Any = None, at: Any = None) -> Grad:
        """The gradient that is given."""
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        if loss is not None or len(names) > 1 or self.give is None:
            raise NotLinear
        return self.give(self, work, names[0], work[names[0]] if at is None else dict(at))

    def hessian_product(self, *args: Any, **kwargs: Any) -> Tree:
        """None is known."""
        raise NotLinear


def with_gradients(ctx: ClientContext) -> LinearContext:
    """A context whose gradients are those that `give` returns for (ctx, work, slot, values), once it is given."""
    return LinearContext(**{each.name: getattr(ctx, each.name) for each in fields(ClientContext)})


@dataclass
class Recording:
    """What steps make of slots.

    Attributes:
        params: the network's parameters; leaves of their names and shapes may be changed.
        scores: outputs and features of a batch, without values.
        live: the newest name of every leaf that may be changed: slot, leaf, and how often it has been changed.
        gradients: for each gradient the step that it is of, and what becomes of leaves after it.
        slot: the model that gradients are taken of.
        trained: the parameters that have a gradient.
    """

    params: Tree
    scores: tuple[Tensor, Tensor]
    live: dict[Leaf, tuple[str, str, int]] = field(default_factory=dict)
    gradients: list[tuple[int, dict[Leaf, Terms]]] = field(default_factory=list)
    slot: str = ""
    trained: set[str] = field(default_factory=set)

    def start(self, work: Slots) -> Slots:
        """Slots before the first step; numbers are known, and all other values are not."""
        return {slot: {n: self._start(slot, n, leaf) for n, leaf in leaves.items()} for slot, leaves in work.items()}

    def _start(self, slot: str, name: str, leaf: Tensor) -> Tensor:
        if (slot, name) == ("log", "loss"):
            return make_symbol(leaf, {LOSS: 1.0}, {slot})
        if leaf.ndim == 0:
            return leaf
        if name in self.params and leaf.shape == self.params[name].shape:
            self.live[slot, name] = (slot, name, 0)
            return make_symbol(leaf, {(slot, name, 0): 1.0}, {slot})
        return make_symbol(leaf, None, {slot})

    def take_gradient(self, step: int, ctx: ClientContext, work: Slots, slot: str, values: Tree) -> Grad:
        """A gradient without values."""
        self.note_changes(work)
        if self.slot not in ("", slot) or set(values) != set(self.params):
            raise NotLinear
        for name, leaf in values.items():
            if not isinstance(leaf, Symbol) or leaf.terms != {self.live.get((slot, name)): 1.0}:
                raise NotLinear
        self.slot, number, part = slot, len(self.gradients), ctx.phase.part
        self.gradients.append((step, {}))
        trained = [name for name in values if part is None or name in part]
        self.trained |= set(trained)
        grads: Tree = {name: make_symbol(values[name], {(GRADIENT, name, number): 1.0}, {GRADIENT}) for name in trained}
        outputs, features = (make_symbol(leaf, None, ()) for leaf in self.scores)
        return Grad({slot: grads}, Scored(make_symbol(torch.zeros(()), {number: 1.0}, ()), outputs, features, {}))

    def note_changes(self, work: Slots) -> None:
        """Note what has become of leaves since the last gradient."""
        changed = dict[Leaf, Symbol]()
        for (slot, name), newest in self.live.items():
            leaf = work[slot][name]
            if not isinstance(leaf, Symbol) or leaf.terms is None:
                raise NotLinear
            if leaf.terms != {newest: 1.0}:
                now = (GRADIENT, name, len(self.gradients) - 1)
                if any(term != now and (self.live.get(term[:2]) != term or term[1] != name) for term in leaf.terms):
                    raise NotLinear
                changed[slot, name] = leaf
        if changed and not self.gradients:
            raise NotLinear
        for (slot, name), leaf in changed.items():
            self.gradients[-1][1][slot, name] = dict(leaf.terms or {})
        for (slot, name), leaf in changed.items():
            self.live[slot, name] = newest = (slot, name, self.live[slot, name][2] + 1)
            leaf.terms, leaf.needs = {newest: 1.0}, frozenset({slot})

    def check(self, start: Slots, after: Slots) -> None:
        """See that what else the steps change depends on nothing that they make sums of."""
        names = [{slot: set(leaves) for slot, leaves in slots.items()} for slots in (start, after)]
        log = after["log"]["loss"]
        if names[0] != names[1] or not isinstance(log, Symbol) or log.terms is None or log.terms.get(LOSS) != 1.0:
            raise NotLinear
        _, seen = self.sort(start, after)
        sums = {GRADIENT, "log", *self.changed_slots}
        if any(leaf.needs & sums for leaf in seen.values()):
            raise NotLinear

    @property
    def changed_slots(self) -> set[str]:
        """The slots with leaves that the steps make sums of."""
        return {slot for _, changes in self.gradients for slot, _ in changes}

    def sort(self, start: Slots, after: Slots) -> tuple[dict[Leaf, Tensor], dict[Leaf, Symbol]]:
        """What has changed of all that is not a sum: leaves that are known, and those that are not."""
        known, seen = dict[Leaf, Tensor](), dict[Leaf, Symbol]()
        for slot, leaves in after.items():
            for name, leaf in leaves.items():
                if leaf is start[slot][name] or (slot, name) in self.live or (slot, name) == ("log", "loss"):
                    continue
                if isinstance(leaf, Symbol):
                    seen[slot, name] = leaf
                else:
                    known[slot, name] = leaf
        return known, seen
