"""FedEXP: FedAvg whose server goes further the less the clients' updates agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import About, Download, Refuses, ServerContext, Slots, Tree, Upload, option, register, tree
from .scaffold import ServerStep


@register("fedexp")
@dataclass(frozen=True)
class FedExP(ServerStep):
    r"""FedExP (Jhunjhunwala et al., ICLR 2023): clients train as in FedAvg; with their updates
    :math:`\Delta_i = w_i - w` and the mean :math:`\bar\Delta` of M participants the server extrapolates (Algorithm 1),

    .. math:: \eta_g = \max\Bigl\{1, \frac{\sum_i \|\Delta_i\|^2}{2 M (\|\bar\Delta\|^2 + \epsilon)}\Bigr\},
        \qquad w \leftarrow w + \eta_g \bar\Delta.

    Because the iterates then oscillate, the model that predicts is the average of the last two. Training starts
    from the last iterate itself. That costs no message: at the start of a round the server hands out the iterate, and
    for predictions after the round the average.

    Hand-worked: updates (3, 1) and (1, -3) have squared lengths 10 and 10 and the mean (2, -1) of squared length 5.
    With epsilon = 0.5 the rate is 20 / (2 * 2 * 5.5) = 0.909, so 1; updates (3, 1) and (-1, -3) have the mean (1, -1),
    and the rate is 20 / (2 * 2 * 2.5) = 2: w moves by (2, -2), and from w = 0 the average of the last two is (1, -1).
    """

    about = About("A server that extrapolates", paper="jhunjhunwala2023fedexp", kind="global")
    refuses = Refuses(other_networks="it compares the updates of one network")
    identities: ClassVar[dict[str, str]] = {"fedexp(eps=inf, average_last=false, uniform=false)": "fedavg"}

    eps: float = option(1e-3, above=0.0, help="added to the squared length of the mean update; inf gives rate 1")
    average_last: bool = option(True, help="predict with the average of the last two iterates")

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, with nothing to average it with yet."""
        server = super().server_init(ctx)
        facts = {"rate": torch.tensor(1.0, dtype=torch.float64), "round": torch.tensor(ctx.round - 1)}
        return {**server, "fedexp.before": server["params"], "fedexp.last": facts}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The iterate to train on; once this round's is computed, the average of the last two to predict with."""
        if self.average_last and int(server["fedexp.last"]["round"]) == ctx.round:
            server = {**server, "params": tree.mix(server["params"], server["fedexp.before"], 0.5)}
        return super().download(ctx, server, ids)

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """Extrapolate."""
        rate = self.rate(ctx, server, uploads)
        facts = {"rate": torch.tensor(rate, dtype=torch.float64), "round": torch.tensor(ctx.round)}
        after = self.moved(ctx, server, uploads, rate)
        return {**after, "fedexp.before": server["params"], "fedexp.last": facts}

    def rate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> float:
        """eta_g; a coordinate that a client did not send has no update."""
        before = server["params"]
        updates = [update(each, before) for each in uploads.values()]
        lengths = [{"squared": tree.dot(each, each)} for each in updates]
        weights = self.weighed(ctx).weights(uploads)
        mean = tree.sub(wide(self.average(self.weighed(ctx), before, uploads, "params")), wide(before))
        above = tree.mean(lengths, weights)["squared"]
        return max(1.0, float(above / (2 * (tree.dot(mean, mean) + self.eps))))

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The server's rate."""
        return {"server_rate": float(server["fedexp.last"]["rate"])}


def wide(leaves: Mapping[str, Tensor]) -> Tree:
    """A tree in double precision, in which small differences of models keep their length."""
    return tree.map(lambda leaf: leaf.to(torch.float64), leaves)


def update(upload: Upload, before: Tree) -> Tree:
    """What a client sent minus what the server has, zero where it sent nothing."""
    moved = tree.sub(wide(upload.slots["params"]), before)
    masks = upload.masks.get("params", {})
    return {n: torch.where(masks[n], leaf, 0.0) if n in masks else leaf for n, leaf in moved.items()}
