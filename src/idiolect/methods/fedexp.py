"""FedExP: FedAvg whose server goes further the less the clients' updates agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..contract import About, Download, Method, Refuses, Slots, Sums, Tree, Upload, Uploads, option, register, tree
from ..contract.context import ServerContext
from ..contract.parts.server_step import ServerStep, difference, step_towards, update_of
from ..contract.slots import Slot, scratch, zero

BEFORE, LAST, LENGTH = "fedexp.before", "fedexp.last", "fedexp.length"


@register("fedexp")
@dataclass(frozen=True)
class FedExP(ServerStep):
    r"""FedExP (Jhunjhunwala et al., ICLR 2023): clients train as in FedAvg; with their updates
    :math:`\Delta_i = w_i - w` and the mean :math:`\bar\Delta` of M participants the server extrapolates (Algorithm 1),

    .. math:: \eta_g = \max\Bigl\{1, \frac{\sum_i \|\Delta_i\|^2}{2 M (\|\bar\Delta\|^2 + \epsilon)}\Bigr\},
        \qquad w \leftarrow w + \eta_g \bar\Delta.

    Because the iterates then oscillate, the model that predicts is the average of the last two. Training starts from
    the last iterate itself. That costs no message: at the start of a round the server hands out the iterate, and for
    predictions after the round the average. Run it: ``idiolect run fedexp``.
    """

    about = About(
        "A server that extrapolates", family="one model for all", paper="jhunjhunwala2023fedexp", kind="global"
    )
    refuses = Refuses(other_networks="it compares the updates of one network")
    identities = {"fedexp(eps=inf, average_last=false)": "fedavg"}

    eps: float = option(
        1e-3, above=0.0, max=math.inf, help="added to the squared length of the mean update; inf gives eta_g = 1"
    )
    average_last: bool = option(True, help="predict with the average of the last two iterates")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model and the iterate before it; the server itself adds the length of an update to each upload."""
        slots = super().slots
        length = scratch(zero("squared"), weigh=slots["params"].weigh)
        return {**slots, BEFORE: Slot("server"), LAST: Slot("server", first_facts), LENGTH: length}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The iterate to train on; once this round's is computed, the average of the last two to predict with."""
        if self.average_last and int(server[LAST]["round"]) == ctx.round:
            server = {**server, "params": tree.mix(server["params"], server[BEFORE], 0.5)}
        return super().download(ctx, server, ids)

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """Beside the model, the squared length of the update."""
        if "params" not in upload.slots:
            return upload
        change = update_of(upload, server["params"])
        return replace(upload, slots={**upload.slots, LENGTH: {"squared": tree.dot(change, change)}})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """Extrapolate."""
        mean = Method.aggregate(self, ctx, server, sums, each)
        rate = self.rate(server["params"], mean["params"], float(sums[LENGTH].mean()["squared"]))
        after = step_towards(ctx, server, mean, rate)
        return {**after, BEFORE: server["params"], LAST: facts(rate, ctx.round)}

    def rate(self, before: Tree, mean: Tree, length: float) -> float:
        """eta_g, from the models before and after averaging and the mean squared length of the updates."""
        change = difference(mean, before)
        return max(1.0, length / (2 * (float(tree.dot(change, change)) + self.eps)))

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The server's learning rate."""
        return {"server_rate": float(server[LAST]["rate"])}


def facts(rate: float, round: int) -> Tree:
    """The server's last learning rate, and in which round that was."""
    return {"rate": torch.tensor(rate, dtype=torch.float64), "round": torch.tensor(round)}


def first_facts(ctx: ServerContext) -> Tree:
    """Before the first round there is nothing to average with."""
    return facts(1.0, ctx.round - 1)
