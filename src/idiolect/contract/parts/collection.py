"""A collection: the server keeps the latest model of every client, and each client keeps a model of its own. What
methods do with the collection is in their own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import tree
from ...core.sums import Sums
from ...core.tree import Slots, Tree
from ..about import Needs, Refuses
from ..context import ClientContext, RoundContext, ServerContext
from ..messages import Upload, Uploads
from ..method import Method
from ..slots import Slot, keep_model, model_in, private

OWN = "own"


@dataclass(frozen=True)
class Collection(Method):
    """A method whose server keeps every client's latest upload, in the slots `latest@<client>`.

    Each client keeps its own model, in `own` and `own.buffers`, and predicts with it. One that has never trained has
    none, and predicts with `params`, the mean of the newest uploads; so does an unseen one, which then fine-tunes it.
    """

    needs = Needs(server_models=True)
    refuses = Refuses(
        other_networks="it mixes clients' models coordinate by coordinate",
        summing="its server keeps the latest model of every client",
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The mean model, for which the server sees every client's; and the own one, which stays."""
        return {"params": Slot("server", down=True, up="each", holds="model"), OWN: private(holds="model")}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Train the own model; who trains for the first time starts from the received one."""
        return work if ctx.newcomer else {**work, **model_in(work, OWN)}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained model, and send it but for what stays private."""
        return keep_model(work, OWN)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean of this round's models, and beside it each of them, as far as it was sent."""
        trained = {i: upload for i, upload in each.items() if "params" in upload.slots}
        newest = {latest(i): self.update_latest(ctx, server, i, upload) for i, upload in trained.items()}
        return {**super().aggregate(ctx, server, sums, each), **newest}

    def update_latest(self, ctx: ServerContext, server: Slots, index: int, upload: Upload) -> Tree:
        """A client's model after an upload; coordinates that a mask leaves out keep the value they had."""
        sent, mask = (
            {n: leaf for slot in ("params", "buffers") for n, leaf in slots.get(slot, {}).items()}
            for slots in (upload.slots, upload.masks)
        )
        before = server.get(latest(index), tree.pick(join_model(ctx.initial), sent))
        return Sums.of([(sent, 1.0, mask)]).mean(before)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own model; a client that has never trained uses what it is sent."""
        return super().personal_model(ctx, work) if ctx.newcomer else model_in(work, OWN)


def latest(client: int) -> str:
    """The server's slot with a client's latest model.

    >>> latest(3)
    'latest@3'
    """
    return f"latest@{client}"


def known_clients(ctx: ServerContext, server: Slots) -> list[int]:
    """The clients whose models the server has."""
    return [i for i in ctx.clients if latest(i) in server]


def join_model(model: Slots) -> Tree:
    """A model's parameters and buffers as one tree."""
    return {**model["params"], **model["buffers"]}


def split_model(ctx: RoundContext, model: Tree) -> Slots:
    """The inverse of `join_model`, for what is there of a model."""
    return {slot: tree.pick(model, names) for slot, names in ctx.initial.items()}


def gram(models: Sequence[Tree], names: Sequence[str]) -> Tensor:
    """The inner products of every two models over some of their leaves, in double precision.

    >>> gram([{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 3.0])}], ["w"])
    tensor([[5., 6.],
            [6., 9.]], dtype=torch.float64)
    """
    total = torch.zeros(len(models), len(models), dtype=torch.float64, device=models[0][names[0]].device)
    for name in names:
        rows = torch.stack([model[name].flatten() for model in models]).to(torch.float64)
        total = total + rows @ rows.T
    return total
