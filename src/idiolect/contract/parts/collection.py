"""What methods share whose server keeps the latest model of every client, and whose clients keep a model of their own.
What they do with the collection is in their own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import tree
from ...core.tree import Slots, Tree
from ..about import Needs, Refuses
from ..context import Context, ServerContext
from ..method import Method, Upload


@dataclass(frozen=True)
class Collection(Method):
    """A method whose server keeps every client's latest upload, in the slots `latest@<client>`.

    Each client keeps its own model, in `own` and `own.buffers`, and predicts with it. One that has never trained has
    none, and predicts with `params`, the mean of the newest uploads; so does an unseen one, which then fine-tunes it.
    """

    needs = Needs(server_models=True)
    refuses = Refuses(other_networks="it mixes clients' models coordinate by coordinate")

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean of this round's models, and beside it each of them, as far as it was sent."""
        newest = {f"latest@{i}": self.received(ctx, server, i, each) for i, each in uploads.items()}
        return {**super().aggregate(ctx, server, uploads), **newest}

    def received(self, ctx: ServerContext, server: Slots, index: int, upload: Upload) -> Tree:
        """A client's model after an upload; coordinates that a mask leaves out keep the value they had."""
        sent, mask = (
            {n: leaf for slot in ("params", "buffers") for n, leaf in slots.get(slot, {}).items()}
            for slots in (upload.slots, upload.masks)
        )
        before = server.get(f"latest@{index}", tree.pick(joined(ctx.initial), sent))
        return tree.mean([sent], [1.0], [mask], keep=before)

    def client_init(self, ctx: Context) -> Slots:
        """The own model starts from the common initial one."""
        return {"own": ctx.initial["params"], "own.buffers": ctx.initial["buffers"]}

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """Train the own model."""
        return {"params": client["own"], "buffers": client["own.buffers"]}

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the trained model, and send it but for what stays private."""
        _, upload = super().end(ctx, client, work)
        return {**client, "own": work["params"], "own.buffers": work["buffers"]}, upload

    def view(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The own model; a client that has never trained uses what it is sent."""
        own = {"params": client["own"], "buffers": client["own.buffers"]}
        return {slot: {**each, **download[slot]} for slot, each in own.items()} if ctx.newcomer else own


def known(ctx: ServerContext, server: Slots) -> list[int]:
    """The clients whose models the server has."""
    return [i for i in ctx.clients if f"latest@{i}" in server]


def joined(model: Slots) -> Tree:
    """A model's parameters and buffers as one tree."""
    return {**model["params"], **model["buffers"]}


def parted(ctx: Context | ServerContext, model: Tree) -> Slots:
    """The inverse of `joined`, for what is there of a model."""
    return {slot: tree.pick(model, names) for slot, names in ctx.initial.items()}


def gram(models: Sequence[Tree], names: Sequence[str]) -> Tensor:
    """The inner products of every two models over some of their leaves, in double precision.

    >>> gram([{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 3.0])}], ["w"])
    tensor([[5., 6.],
            [6., 9.]], dtype=torch.float64)
    """
    total = torch.zeros(len(models), len(models), dtype=torch.float64, device=models[0][names[0]].device)
    for name in names:
        rows = torch.stack([each[name].flatten() for each in models]).to(torch.float64)
        total = total + rows @ rows.T
    return total
