"""LG-FedAvg: the mirror of a private head, a private body under a shared head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..contract import (
    About,
    ClientContext,
    Download,
    OptionError,
    Refuses,
    RoundContext,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Task,
    Tree,
    Upload,
    option,
    register,
)
from ..contract.parts.private_layers import PrivateLayers, all_but_last

BODY, PARTED = "lgfedavg.body", "lgfedavg.parted"


@register("lgfedavg")
@dataclass(frozen=True)
class LGFedAvg(PrivateLayers):
    r"""LG-FedAvg (Liang et al., 2020): each client learns its own representation, and the layers above it are averaged
    (Algorithm 1). With local model :math:`\ell(x; \theta_i^\ell)` and global model :math:`g(h; \theta^g)`,

    .. math:: \min f_i = f\bigl(g(\ell(x; \theta_i^\ell); \theta^g)\bigr), \qquad
        \theta^g \leftarrow \sum_i \frac{n_i}{\sum_j n_j} \theta_i^g.

    In the first `pretrain` rounds the whole model is averaged, as by FedAvg; a client's own body starts from the body
    that these rounds ended with when the client first takes part after them, and until then it uses that body.
    Run it: ``idiolect run lgfedavg``.

    Hand-worked: two clients of equal size train heads 0 to 2 and to 4 and bodies to 5 and to 7; afterwards both hold
    head 3, and bodies 5 and 7.
    """

    about = About(
        "Private body under a shared head",
        paper="liang2020lgfedavg",
        reveals="the last layers",
        stays="the body (during pretrain it is sent, too)",
    )
    identities: ClassVar[dict[str, str]] = {"lgfedavg(layers=0)": "local", "lgfedavg(pretrain=1000)": "fedavg"}

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
        """The model; with pre-training also the body that is averaged before it becomes private, and which clients
        have one of their own by now."""
        if not self.pretrain:
            return super().slots
        body = Slot("server", self.first_body, down=True, up="each", holds="parameters")
        return {**super().slots, BODY: body, PARTED: Slot("server", nobody)}

    def private_names(self, task: Task) -> frozenset[str]:
        """All but the last layers."""
        return all_but_last(task, self.layers)

    def first_body(self, ctx: RoundContext) -> Tree:
        """The initial body."""
        return self.body(ctx, ctx.initial)

    def body(self, ctx: RoundContext, model: Slots) -> Tree:
        """The body of a model without what the run keeps local, under names of its own: the model's are private."""
        local = frozenset(ctx.initial["buffers"]) if ctx.norm_stats == "local" else frozenset[str]()
        local |= ctx.task.norms if ctx.training.norm_affine == "local" else frozenset[str]()
        names, leaves = self.private_names(ctx.task) - local, {**model["params"], **model["buffers"]}
        return {f"body {name}": leaf for name, leaf in leaves.items() if name in names}

    # -- client ------------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """A client that got a body uses it."""
        return use_body(work)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """During pre-training the body is sent, too."""
        if ctx.round < self.pretrain:
            return {**work, BODY: self.body(ctx, work)}
        return without_body(work)

    # -- server ------------------------------------------------------------------------------------

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The head; and the body to those who have none of their own after pre-training."""
        sent = super().download(ctx, server, ids)
        if ctx.round < self.pretrain or not self.pretrain:
            return sent
        parted = {i for i in ids if bool(server[PARTED].get(str(i), False))}
        return Download({}, {i: without_body(sent.of(i)) if i in parted else sent.of(i) for i in ids})

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """The mean of what was sent; after pre-training, those who sent it have their own bodies."""
        after = super().aggregate(ctx, server, sums, each)
        if ctx.round < self.pretrain or not self.pretrain:
            return after
        return {**after, PARTED: {**server[PARTED], **{str(i): torch.tensor(True) for i in each}}}

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own body, or the one that pre-training ended with, under the shared head."""
        return super().personal_model(ctx, use_body(work))


def nobody(ctx: ServerContext) -> Tree:
    """No client has a body of its own."""
    return {str(i): torch.tensor(False) for i in ctx.clients}


def use_body(work: Slots) -> Slots:
    """The slots with the body that came with them, if one did, in the model."""
    body = work.get(BODY, {})
    model = {slot: {n: body.get(f"body {n}", leaf) for n, leaf in work[slot].items()} for slot in ("params", "buffers")}
    return {**work, **model}


def without_body(slots: Slots) -> Slots:
    """All slots but the one with the body."""
    return {slot: leaves for slot, leaves in slots.items() if slot != BODY}
