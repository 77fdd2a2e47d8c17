"""Which updates the server compares, what it knows of them, and what a client has to tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...contract import Grad, Method, Phase, Wrapper, tree
from ...contract.context import ClientContext, OptimizerStep, RoundContext, ServerContext
from ...contract.messages import Upload, Uploads
from ...contract.slots import mask_of
from ...core.tree import Slots, Tree
from ...task.task import Batch, Task
from .layers import LayerUnit, divide_layers
from .scores import PERSONAL, Angles, measure_angles

START, UPDATE, RECEIVED, GRAD = "fedlag.start", "fedlag.update", "fedlag.received", "fedlag.grad"


class ComparesUpdates(Wrapper):
    """A wrapper whose server compares the clients' updates of the inner method's layers, or their last gradients."""

    choose: str
    signal: str
    granularity: str
    attach_norm: str
    server_models: bool
    sketch: int | None

    @property
    def compares(self) -> bool:
        """Whether updates are compared to choose layers."""
        return self.choose == "conflicts"

    def units(self, ctx: RoundContext) -> dict[str, LayerUnit]:
        """The layers that may become personal, in the order of the network."""
        return self.divide(ctx.task, ctx.private_names)

    def divide(self, task: Task, private: frozenset[str]) -> dict[str, LayerUnit]:
        """The layers of a model, without what is `private`."""
        return divide_layers(task, private, self.granularity, self.attach_norm)

    def scored_names(self, ctx: RoundContext) -> list[str]:
        """The parameters whose updates are compared."""
        return [name for layer in self.units(ctx).values() for name in layer.params]

    def remember_start(self, ctx: ClientContext, received: Tree, work: Slots) -> Slots:
        """The working slots with what the update is measured from, and what of that the server knows."""
        start = tree.pick(work["params"], self.scored_names(ctx))
        if self.signal == "last_grad":
            return {**work, GRAD: tree.zeros_like(start)}
        return {**work, START: start, RECEIVED: {} if self.is_covered(ctx) else tree.pick(received, start)}

    def is_covered(self, ctx: ClientContext) -> bool:
        """Whether a wrapper around this one may change the model between here and the server."""
        outside = ctx.method
        while outside is not self and isinstance(outside, Wrapper):
            if outside.touches_model:
                return True
            outside = outside.inner
        return False

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's; one that changes `params` before their training (mixing, alignment) moves their start."""
        phases = list(self.inner.phases(ctx))
        first = first_training(phases)
        if first is not None and (first > 0 or phases[first].before is not None):
            phases[first] = replace(phases[first], before=self.start_here)
        return phases

    def start_here(self, ctx: ClientContext, work: Slots) -> Slots:
        """What the inner method does before the first phase that trains `params`; there the update starts."""
        phases = self.inner.phases(ctx)
        before = phases[first_training(phases) or 0].before
        work = work if before is None else before(ctx, work)
        return {**work, START: tree.pick(work["params"], work[START])} if START in work else work

    @property
    def optimizer_step(self) -> OptimizerStep | None:
        """If gradients are compared, one that keeps them; else the inner method's."""
        return self.keep_gradient if self.compares and self.signal == "last_grad" else self.inner.optimizer_step

    def keep_gradient(self, ctx: ClientContext, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float) -> Slots:
        """The inner method's step; the gradient of the model's last one is kept."""
        work = ctx.optimize(work, slot, grad, batch, lr, through=self.inner)
        if slot != "params" or GRAD not in work:
            return work
        return {**work, GRAD: {**work[GRAD], **tree.pick(grad.slots[slot], work[GRAD])}}

    def say_update(self, work: Slots, after: Slots) -> Slots:
        """What is sent, with the update where the server cannot work it out, or with the last gradient."""
        if self.signal == "last_grad":
            return {**after, UPDATE: work[GRAD]}
        update = tree.sub(tree.pick(work["params"], work[START]), work[START])  # eq. 2
        needed = {name: is_unknown(name, work, after).expand_as(leaf) for name, leaf in update.items()}
        return {**after, UPDATE: update, mask_of(UPDATE): needed}

    def compare(self, ctx: ServerContext, server: Slots, each: Uploads) -> dict[str, Angles]:
        """For each layer, the angles between the updates of every two clients."""
        sent, angles = self.inner.download(ctx, server, tuple(each)), {}
        for unit, layer in self.units(ctx).items():
            own = self.server_models and bool(server[PERSONAL][unit])
            starts = {i: server[last_of(i)] if own and last_of(i) in server else sent.of(i)["params"] for i in each}
            rows = (update_of(layer.params, upload, starts[i]) for i, upload in each.items())
            angles[unit] = measure_angles(rows, self.sketch)
        return angles


def first_training(phases: Sequence[Phase]) -> int | None:
    """The position of the first phase that trains `params`."""
    return next((at for at, phase in enumerate(phases) if "params" in phase.slots), None)


def is_unknown(name: str, work: Slots, after: Slots) -> Tensor:
    """Whether the server cannot work out the update of one leaf from what it sent and what it gets."""
    sent, mask = after.get("params", {}).get(name), after.get(mask_of("params"), {}).get(name)
    other = differ(work[START][name], work[RECEIVED].get(name)) | differ(work["params"][name], sent)
    return other if mask is None else other | ~mask.all()


def differ(a: Tensor, b: Tensor | None) -> Tensor:
    """Whether two leaves differ anywhere; yes if there is only one."""
    if b is None or a is b:
        return torch.full((), b is None, dtype=torch.bool, device=a.device)
    return (a != b).any()


def update_of(names: Sequence[str], upload: Upload, start: Tree) -> Tensor:
    """One client's update of one layer (or its gradient): as it says, or else the upload minus its known start."""
    said, masks = upload.slots[UPDATE], upload.masks.get(UPDATE, {})
    leaves = {
        name: said[name] if name not in masks or bool(masks[name].all()) else upload.slots["params"][name] - start[name]
        for name in names
    }
    return tree.flatten(leaves)


def sends_what_it_trains(method: Method) -> bool:
    """Whether clients start from the model that they get, and send the one that they trained."""
    plain = (Method.prepare, Method.finish, Method.download)
    return (type(method).prepare, type(method).finish, type(method).download) == plain


def last_of(client: int) -> str:
    """The server's slot with what a client last sent of the layers that are compared."""
    return f"fedlag.last@{client}"
