"""Networks on the features, between a shared body and a private output layer; they are averaged like the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...core.tree import Slots, Tree
from ...task.task import Task
from ..context import Context, ServerContext
from ..method import Download, Phase, Upload
from .on_features import OnFeatures


@dataclass(frozen=True)
class FeatureNets(OnFeatures):
    """A method whose output layer is private, and whose clients share beside the body the slots that `beside` names."""

    beside: ClassVar[tuple[str, ...]] = ()

    def private(self, task: Task) -> frozenset[str]:
        """The output layer."""
        return task.head()

    # -- what is shared ------------------------------------------------------------------------------

    def first(self, ctx: ServerContext, slot: str) -> Tree:
        """What a shared slot starts from: the network of that name."""
        return ctx.nets[slot].params

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, and what is shared beside it."""
        return {**super().server_init(ctx), **{slot: self.first(ctx, slot) for slot in self.beside}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """All that is shared."""
        sent = super().download(ctx, server, ids)
        return sent._replace(shared={**sent.shared, **{slot: server[slot] for slot in self.beside}})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The weighted means of all that is shared."""
        after = super().aggregate(ctx, server, uploads)
        return {**after, **{slot: self.average(ctx, server[slot], uploads, slot) for slot in self.beside}}

    def assemble(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The client's model, and what is shared beside it."""
        return {**super().assemble(ctx, client, download), **{slot: download[slot] for slot in self.beside}}

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Send what is shared."""
        client, upload = super().end(ctx, client, work)
        beside = {slot: work[slot] for slot in self.beside}
        return client, Upload({**upload.slots, **beside, "weight": {"samples": ctx.samples}}, upload.masks)

    def onboard(self, ctx: Context) -> Sequence[Phase]:
        """An unseen client trains its output layer, under all that is shared."""
        return (Phase("onboard", part=self.private(ctx.task)),)
