"""LG-FedAvg: the mirror of a private head, a private body under a shared head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..contract import About, ClientContext, Download, OptionError, ServerContext, Slots, Task, Upload, option, register
from .fedavg import FedAvg
from .fedper import PrivateHead


def below(task: Task, layers: int) -> frozenset[str]:
    """The names (parameters and buffers) of all but the last `layers` layers."""
    return task.names_of(task.units) - task.head(layers)


@register("lgfedavg")
@dataclass(frozen=True)
class LGFedAvg(PrivateHead):
    r"""LG-FedAvg (Liang et al., 2020): each client learns its own representation, and the layers above it are averaged
    (Algorithm 1). With local model :math:`\ell(x; \theta_i^\ell)` and global model :math:`g(h; \theta^g)`,

    .. math:: \min f_i = f\bigl(g(\ell(x; \theta_i^\ell); \theta^g)\bigr), \qquad
        \theta^g \leftarrow \sum_i \frac{n_i}{\sum_j n_j} \theta_i^g.

    In the first `pretrain` rounds the whole model is averaged, as by FedAvg; a client's own body starts from the body
    that these rounds ended with when the client first takes part after them, and until then it uses that body.

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

    def private(self, task: Task) -> frozenset[str]:
        """All but the last layers."""
        return below(task, self.layers)

    # -- server ------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model and, with pre-training, which clients have a body of their own by now."""
        server = super().server_init(ctx)
        if not self.pretrain:
            return server
        return {**server, "lgfedavg.parted": {str(i): torch.tensor(False) for i in ctx.clients}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The head; and the body to those who have none of their own after pre-training."""
        if not self.pretrain:
            return super().download(ctx, server, ids)
        head, whole = super().download(ctx, server, ids), FedAvg().download(ctx, server, ids)
        if ctx.round < self.pretrain:
            return whole
        parted = {i for i in ids if bool(server["lgfedavg.parted"].get(str(i), False))}
        return Download({}, {i: (head if i in parted else whole).of(i) for i in ids})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean of what was sent; after pre-training, those who sent it have their own bodies."""
        after = super().aggregate(ctx, server, uploads)
        if ctx.round < self.pretrain or not self.pretrain:
            return after
        parted = {str(i): torch.tensor(True) for i in uploads}
        return {**after, "lgfedavg.parted": {**server["lgfedavg.parted"], **parted}}

    # -- client ------------------------------------------------------------------------------------

    def assemble(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """What was downloaded, and the client's own for the rest."""
        own = client.get("private", {})
        return {
            slot: {n: download[slot][n] if n in download[slot] else own[n] for n in leaves}
            for slot, leaves in ctx.initial.items()
        }

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the body, send the head; during pre-training send all."""
        client, upload = super().end(ctx, client, work)
        return client, FedAvg().end(ctx, {}, work)[1] if ctx.round < self.pretrain else upload
