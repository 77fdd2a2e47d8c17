"""Layers in which some units are shared and the others personal: which layers, which of their rows, and what a client
makes of them. FedSplit is given the partition, FedFac finds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ...core import tree
from ...core.errors import ModelError, OptionError
from ...core.options import option
from ...core.sums import Sums
from ...core.tree import Slots, Tree
from ...task.task import Batch, Task, Unit
from ..about import Needs, Refuses
from ..context import ClientContext, RoundContext, ServerContext
from ..messages import Uploads
from ..method import Method
from ..phase import Phase
from ..slots import Slot, private

SPLITTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weight has one row of incoming weights per output unit."""


@dataclass(frozen=True)
class SplitLayer:
    """A layer whose units are split: its weight, and what has one entry per unit and follows it."""

    name: str
    weight: str
    followers: tuple[str, ...]
    units: int

    @property
    def leaves(self) -> tuple[str, ...]:
        """All names that are split."""
        return (self.weight, *self.followers)


def split_layer(task: Task, unit: Unit) -> SplitLayer:
    """The rows of a unit; its bias and the normalisation right behind it follow them."""
    module = dict(task.net.module.named_modules()).get(unit.name, task.net.module)
    weight = next((name for name in unit.params if name.split(".")[-1] == "weight"), None)
    if not isinstance(module, SPLITTABLE) or weight is None:
        raise ModelError(
            f"the layer {unit.name!r} ({type(module).__name__}) cannot be split into units; only dense and "
            f"convolutional layers with a weight of their own can: {', '.join(_splittable(task)) or 'none here'}"
        )
    model = {**task.net.params, **task.net.buffers}
    units = len(model[weight])
    behind = task.units[task.units.index(unit) + 1 :][:1]
    names = chain(unit.params, *((norm.params + norm.buffers) for norm in behind if norm.is_norm))
    followers = tuple(name for name in names if name != weight and model[name].shape[:1] == (units,))
    return SplitLayer(unit.name, weight, followers, units)


def _splittable(task: Task) -> Iterator[str]:
    modules = dict(task.net.module.named_modules())
    return (unit.name for unit in task.units if isinstance(modules.get(unit.name), SPLITTABLE))


def find_layer(task: Task, wanted: str | int) -> Unit:
    """The layer with a name or a number, or the one that `last hidden` or `head` stands for."""
    layers = [unit for unit in task.units if unit.params and not unit.is_norm]
    named = {unit.name: unit for unit in layers}
    if wanted in named:
        return named[str(wanted)]
    if wanted == "head":
        return task.head_unit
    if wanted == "last hidden":
        before = [unit for unit in task.units[: task.units.index(task.head_unit)] if unit in layers]
        if before:
            return before[-1]
        raise ModelError(f"the model has no hidden layer to split; its only layers: {', '.join(named)}")
    if isinstance(wanted, int) and 1 <= abs(wanted) <= len(layers):
        return layers[wanted - 1 if wanted > 0 else wanted]
    listing = ", ".join(f"{number} {unit.name}" for number, unit in enumerate(layers, start=1))
    raise ModelError(
        f"the model has no layer {wanted!r} to split; its layers: {listing}; give names, numbers, head or last hidden"
    )


def overlay(model: Slots, rows: Tree, replacement: Tree) -> Slots:
    """A model with some rows of some leaves replaced."""
    return {
        slot: {n: torch.where(rows[n], replacement[n], leaf) if n in rows else leaf for n, leaf in leaves.items()}
        for slot, leaves in model.items()
    }


SHARED, OWN = "split.shared", "split.own"


@dataclass(frozen=True)
class SplitUnits(Method):
    """Layers of which some units are shared and averaged, and the others stay each client's own.

    The server keeps a whole model and, per split layer, which units are shared (slot `split.shared`); both go down.
    A client keeps what it trained of the split layers (`split.own`) and uses it where a unit is personal.
    """

    refuses = Refuses(other_networks="it splits the layers of one network")

    layers: str | int | tuple[str | int, ...] = option(
        "last hidden",
        tuned="last hidden,1,2,3,4,5",
        help="layers to split: names, numbers (1 is the first, -1 the last, without normalisation), head, last hidden",
    )
    bias: str = option(
        "follow",
        choices=("follow", "all_local"),
        help="bias and normalisation of a split layer: follow their unit, or all personal",
    )

    server_lr: float = option(1.0, above=0.0, help="server's learning rate: how far what is shared moves to the mean")
    replace_units: str = option(
        "none",
        choices=("none", "shared", "personal"),
        help="put random values into these units of the split layers, to see what they hold",
    )
    replace_when: str = option(
        "predict", choices=("predict", "train"), help="do so in predictions only, or whenever a client begins to train"
    )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Where everything around the units is personal, so are all running statistics, as in the authors' code."""
        return Needs(norm_stats="local" if self.bias == "all_local" else "average")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model and which units are shared; a client keeps its own split layers."""
        partition = Slot("server", self.first_shared, down=True)
        return {**super().slots, SHARED: partition, OWN: private(self.first_own)}

    @property
    def wanted(self) -> tuple[Any, ...]:
        """The layers, one or several."""
        return self.layers if isinstance(self.layers, tuple) else (self.layers,)

    @property
    def shares_all(self) -> bool:
        """Whether no unit can be personal, which is FedAvg."""
        return False

    def split(self, task: Task) -> tuple[SplitLayer, ...]:
        """The layers that are split."""
        layers = tuple(split_layer(task, find_layer(task, name)) for name in self.wanted)
        if not layers or len(layers) > len({layer.name for layer in layers}):
            raise OptionError(f"{self.name}: layers={self.layers!r} must name at least one layer, and each only once")
        return layers

    def check(self, task: Task) -> None:
        """The split must fit the model."""
        super().check(task)
        self.split(task)

    def split_leaves(self, ctx: RoundContext) -> dict[str, SplitLayer]:
        """What is split, by name, but for what the run keeps local altogether."""
        layers = self.split(ctx.task)
        return {name: layer for layer in layers for name in layer.leaves if name not in ctx.private_names}

    def spread(self, ctx: RoundContext, units: Tree, alone: Tensor) -> Tree:
        """A value per unit, laid out over all leaves that carry units; `alone` for those that follow none."""
        values = {}
        for name, layer in self.split_leaves(ctx).items():
            apart = self.bias == "all_local" and name != layer.weight
            rows = alone.expand(layer.units) if apart else units[layer.name]
            leaf = (ctx.initial["params"] if name in ctx.initial["params"] else ctx.initial["buffers"])[name]
            values[name] = rows.reshape(-1, *[1] * (leaf.dim() - 1))
        return values

    def shared_rows(self, ctx: RoundContext, shared: Tree) -> Tree:
        """Which rows of the split leaves are shared, from which units are."""
        no = torch.zeros((), dtype=torch.bool, device=next(iter(shared.values())).device)
        return self.spread(ctx, shared, no)

    def first_shared(self, ctx: RoundContext) -> Tree:
        """The partition before the first round."""
        device = ctx.training.device
        return {layer.name: self.first_partition(ctx, at).to(device) for at, layer in enumerate(self.split(ctx.task))}

    def first_partition(self, ctx: RoundContext, at: int) -> Tensor:
        """Which units of the `at`-th split layer are shared at first: all."""
        return torch.ones(self.split(ctx.task)[at].units, dtype=torch.bool)

    def first_own(self, ctx: RoundContext) -> Tree:
        """A client's own split layers: initial values."""
        return tree.pick({**ctx.initial["params"], **ctx.initial["buffers"]}, self.split_leaves(ctx))

    # -- client ------------------------------------------------------------------------------------

    def own_rows(self, ctx: ClientContext, work: Slots) -> Tree:
        """Which rows the client takes from its own model: the personal ones."""
        return tree.map(torch.logical_not, self.shared_rows(ctx, work[SHARED]))

    def assemble(self, ctx: ClientContext, work: Slots) -> Slots:
        """The server's model with the client's own rows over it."""
        model = {slot: work[slot] for slot in ("params", "buffers")}
        return {**work, **overlay(model, self.own_rows(ctx, work), work[OWN])}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Start from the client's own rows."""
        return self.replace_rows(ctx, self.assemble(ctx, work), "train")

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the split layers as trained; send the model with all its rows."""
        return {**work, OWN: tree.pick({**work["params"], **work["buffers"]}, self.split_leaves(ctx))}

    # -- server and prediction -----------------------------------------------------------------------

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean, towards which parameters that were shared move by the server's learning rate; personal rows have no
        common value to move from."""
        after = super().aggregate(ctx, server, sums, each)
        if self.server_lr == 1 or ctx.round < 0:
            return after
        moved = tree.mix(after["params"], server["params"], self.server_lr)
        shared = self.shared_rows(ctx, server[SHARED])
        rows = {n: torch.where(shared[n], leaf, after["params"][n]) for n, leaf in moved.items() if n in shared}
        return {**after, "params": {**moved, **rows}}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """How many units of each split layer are shared."""
        return {f"shared_units/{name}": float(rows.sum()) for name, rows in server[SHARED].items()}

    def global_model(self, ctx: RoundContext, common: Slots) -> Slots | None:
        """None unless all units are shared: personal rows have no common value that anybody predicts with."""
        return super().global_model(ctx, common) if self.shares_all else None

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model with the client's own rows, and the partition."""
        work = self.replace_rows(ctx, self.assemble(ctx, work), "predict")
        return {slot: work[slot] for slot in ("params", "buffers", SHARED)}

    def replace_rows(self, ctx: ClientContext, work: Slots, when: str) -> Slots:
        """At its time, normal noise as wide as the initial values in the weights of one group of units (table 8 A)."""
        if self.replace_units == "none" or self.replace_when != when:
            return work
        shared, params = self.shared_rows(ctx, work[SHARED]), dict(work["params"])
        for layer in self.split(ctx.task):
            first, rows = ctx.initial["params"][layer.weight], shared[layer.weight]
            drawn = torch.from_numpy(ctx.rng(f"replace {layer.name}").standard_normal(tuple(first.shape)))
            noise = drawn.to(first) * first.std(correction=0)
            gone = rows if self.replace_units == "shared" else ~rows
            params[layer.weight] = torch.where(gone, noise, params[layer.weight])
        return {**work, "params": params}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its personal rows; what is shared is frozen (`fix-tune`)."""
        if self.shares_all:
            return super().onboard(ctx)
        part = frozenset(self.split_leaves(ctx)) | ctx.private_names
        return (Phase(self.train_personal_rows, "personal rows", part=part),)

    def train_personal_rows(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step on the split layers, after which the shared rows are put back."""
        shared = self.shared_rows(ctx, model[SHARED])
        grad = ctx.grad(model, "params", batch)
        masked = {n: torch.where(shared[n], 0.0, leaf) if n in shared else leaf for n, leaf in grad.tree.items()}
        after = ctx.apply(model, "params", replace(grad, slots={"params": masked}))
        # Weight decay and running statistics would move shared rows even without a gradient.
        network = {slot: after[slot] for slot in ("params", "buffers")}
        return {**after, **overlay(network, shared, {**model["params"], **model["buffers"]})}
