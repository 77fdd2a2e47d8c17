"""LG-FedAvg: the mirror of a private head, a private body under a shared head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..contract import About, Download, OptionError, Refuses, Slots, Sums, Task, Tree, Uploads, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.parts.private_layers import PrivateLayers, all_but_last
from ..contract.slots import Slot, nothing

BODY, PARTED = "lgfedavg.body", "lgfedavg.parted"


@register("lgfedavg")
@dataclass(frozen=True)
class LGFedAvg(PrivateLayers):
    r"""LG-FedAvg (Liang et al., 2020): each client learns its own representation, and the layers above it are averaged
    (Algorithm 1). With local model :math:`\ell(x; \theta_i^\ell)` and global model :math:`g(h; \theta^g)`,

    .. math:: \min f_i = f\bigl(g(\ell(x; \theta_i^\ell); \theta^g)\bigr), \qquad
        \theta^g \leftarrow \sum_i \frac{n_i}{\sum_j n_j} \theta_i^g.

    In the first `pretrain` rounds the whole model is averaged, as by FedAvg; a client's own body starts from, and until
    it takes part is, the body that these rounds ended with. Run it: ``idiolect run lgfedavg``.
    """

    about = About(
        "Private body under a shared head",
        family="private layers",
        paper="liang2020lgfedavg",
        reveals="the last layers",
        stays="the body (during pretrain it is sent, too)",
    )
    identities = {"lgfedavg(layers=0)": "local", "lgfedavg(pretrain=1000)": "fedavg"}

    layers: int = option(1, min=0, help="how many of the last layers are shared")
    pretrain: int = option(0, min=0, help="rounds of the run, the first, in which the whole model is averaged")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrain and not self.layers:
            raise OptionError(
                f"lgfedavg: pretrain={self.pretrain} is not allowed with layers=0, which shares nothing afterwards; "
                "choose layers=1 or more, or finetune(fedavg)"
            )

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """With pre-training the server has to know who took part after it."""
        return Refuses(summing="the server notes which clients have a body of their own" if self.pretrain else "")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model; with pre-training also the body before it becomes private, and who has one of their own by now."""
        body = Slot("server", self.body, down=True, up="each", holds="parameters")
        return {**super().slots, **({BODY: body, PARTED: Slot("server", nothing)} if self.pretrain else {})}

    def private_names(self, task: Task) -> frozenset[str]:
        return all_but_last(task, self.layers)

    def body(self, ctx: RoundContext, work: Slots | None = None) -> Tree:
        """The body of a model (of the initial one), under names of its own, since the model's are private."""
        model, names = work or ctx.initial, self.private_names(ctx.task) - ctx.local_names
        return {f"body {n}": leaf for slot in ("params", "buffers") for n, leaf in model[slot].items() if n in names}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Put the body that came with the other slots, if one did, into the model."""
        body, slots = work.get(BODY, {}), ("params", "buffers")
        return {**work, **{slot: {n: body.get(f"body {n}", x) for n, x in work[slot].items()} for slot in slots}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """During pre-training the body is sent, too."""
        return {**work, BODY: self.body(ctx, work)} if ctx.round < self.pretrain else tree.drop(work, {BODY})

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The head; and the body to those who have none of their own after pre-training."""
        sent = super().download(ctx, server, ids)
        if ctx.round < self.pretrain or not self.pretrain:
            return sent
        return Download({}, {i: tree.drop(sent.of(i), {BODY} if server[PARTED].get(str(i)) else ()) for i in ids})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean of what was sent; after pre-training, those who sent it have their own bodies."""
        after = super().aggregate(ctx, server, sums, each)
        if ctx.round < self.pretrain or not self.pretrain:
            return after
        return {**after, PARTED: {**server[PARTED], **{str(i): torch.tensor(True) for i in each}}}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own body, or the one that pre-training ended with, under the shared head."""
        return super().personal_model(ctx, self.prepare(ctx, work))
