"""A client's personal model as a module that stands alone: networks and values, without data or plan, so that it can be
saved, copied, moved and sent like any other."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import ClientContext, predicts_its_own_way
from ..core.tree import Slots, Tree
from ..task.network import Net
from ..task.optimizers import SGD
from ..task.schedules import Schedule
from ..task.task import Task

MODEL = "model"
"""The name of the model's own network among all that a method has."""


def make_module(ctx: ClientContext, personal: Slots, one_batch: bool = False) -> nn.Module:
    """A personal model as a module in evaluation mode: the network with its weights where that is all, else a
    `Predictor`, which takes one batch at a time if asked to."""
    if not predicts_its_own_way(ctx.method):
        return module_of(ctx.task, personal)
    return Predictor(ctx, personal, None if one_batch else ctx.method.needs.eval_batch).eval()


def module_of(task: Task, personal: Slots) -> nn.Module:
    """A task's network with the weights of a personal model, in evaluation mode; what is tied or frozen stays so."""
    module = copy.deepcopy(task.module)
    set_values(module, {**personal["params"], **personal["buffers"]})
    return module.eval()


def set_values(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set what is named among a module's parameters and buffers."""
    with torch.no_grad():
        for name, leaf in (*module.named_parameters(), *module.named_buffers()):
            if name in values:
                leaf.copy_(values[name])


class Predictor(nn.Module):
    """A personal model that is more than one network's weights: an ensemble or a gated model.

    Its state dict names all that it predicts with: the values of every slot, and what is frozen in the networks. How
    many samples the client has is not among it.

    Args:
        ctx: the client's context.
        personal: the slots of its personal model.
        size: the most inputs that it looks at together; None for all that it is given.
    """

    def __init__(self, ctx: ClientContext, personal: Slots, size: int | None = None) -> None:
        super().__init__()
        self.size = size
        training = replace(ctx.training, optimizer=SGD(), schedule=Schedule())
        task, nets = ctx.task.skeleton(), {name: net.skeleton() for name, net in ctx.nets.items()}
        unknown = torch.tensor(torch.nan)
        self._ctx = replace(ctx, task=task, nets=nets, training=training, samples=unknown, class_counts=unknown)
        constants = {name: net.constants for name, net in {MODEL: ctx.task.net, **ctx.nets}.items()}
        self.values = Values(personal)
        self.constants = Values(constants)

    def personal_slots(self) -> Slots:
        """The slots that it predicts with."""
        return self.values.read()

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Outputs, in the batches that the method declares. Several inputs are given as the network takes them."""
        call = self._ctx.task.net.call
        ctx, personal = self._ctx, self.personal_slots()
        device = next(self.buffers()).device
        x: Tensor = call.pack(inputs, named).to(device) if call else next(iter((*inputs, *named.values())))
        with self._frozen_in_place():
            if self.size is None or x.shape[0] <= self.size:
                return ctx.method.predict(ctx, personal, x)
            return torch.cat([ctx.method.predict(ctx, personal, part) for part in torch.split(x, self.size)])

    @property
    def places(self) -> dict[str, dict[str, str]]:
        """Under which name in the state dict the leaf of a slot is."""
        known = self.values.places
        return {
            slot: {leaf: ".".join(("values", *at)) for leaf, at in leaves.items()} for slot, leaves in known.items()
        }

    @contextmanager
    def _frozen_in_place(self) -> Iterator[None]:
        """Let the networks use what is frozen."""
        nets: Mapping[str, Net] = {MODEL: self._ctx.task.net, **self._ctx.nets}
        with ExitStack() as stack:
            for name, leaves in self.constants.read().items():
                stack.enter_context(nets[name].holding(leaves))
            yield


class Values(nn.Module):
    """Slots as the buffers of a module: the leaf `0.weight` of the slot `params` is called `params.0.weight`."""

    def __init__(self, slots: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.places: dict[str, dict[str, tuple[str, ...]]] = {slot: {} for slot in slots}
        for slot, leaves in slots.items():
            for name, leaf in leaves.items():
                self.places[slot][name] = self._put((slot, *name.split(".")), leaf.detach().clone())

    def _put(self, path: tuple[str, ...], leaf: Tensor) -> tuple[str, ...]:
        """Keep a leaf at a path, or near it where another has its place; where it is now."""
        owner: nn.Module = self
        *owners, last = (f"{part}_" if iskeyword(part) else re.sub(r"\W", "_", part) or "_" for part in path)
        taken = []
        for part in owners:
            while not isinstance(getattr(owner, part, owner), nn.Module):
                part += "_"
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
            taken.append(part)
        while hasattr(owner, last):
            last += "_"
        owner.register_buffer(last, leaf)
        return (*taken, last)

    def read(self) -> Slots:
        """The slots."""

        def find(path: tuple[str, ...]) -> Any:
            found: Any = self
            for part in path:
                found = getattr(found, part)
            return found

        return {slot: Tree({name: find(at) for name, at in places.items()}) for slot, places in self.places.items()}
