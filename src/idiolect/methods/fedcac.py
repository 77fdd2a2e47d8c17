"""FedCAC: the parameters that matter most to a client are averaged only with clients to whom the same ones matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.layers import largest
from ..contract import About, Download, Method, Needs, Refuses, Slots, Sums, Tree, Uploads, option, register, tree
from ..contract.context import ClientContext, ServerContext
from ..contract.parts.collection import gram
from ..contract.slots import Slot, zeros_like_params

CRITICAL = "fedcac.critical"
_TIE = 1e-9


@register("fedcac")
@dataclass(frozen=True)
class FedCAC(Method):
    r"""FedCAC (Wu et al., ICCV 2023): after training from :math:`\theta^0` to :math:`\theta` the :math:`\tau` largest
    sensitivities of each tensor are the client's critical parameters, the mask :math:`M_i`,

    .. math:: \Omega_q = |(\theta_q - \theta_q^0) \, \theta_q|.

    Clients whose masks overlap help each other, fewer and fewer of them as the threshold rises with the round t:

    .. math:: O_{ij} = 1 - \frac{\|M_i - M_j\|_1}{2 \|M_i\|_1}, \qquad
        C_i = \Bigl\{j : O_{ij} \ge \bar O + \frac{t + 1}{\beta} (O_{max} - \bar O)\Bigr\} \cup \{i\},

    with mean and maximum over all pairs; from round :math:`\beta` on a client is alone. The server sends client i the
    plain mean over :math:`C_i` of its critical parameters, and FedAvg's global model of all others; this is also what
    the client predicts with. Run it: ``idiolect run fedcac``.
    """

    about = About(
        "Critical parameters are averaged among clients that share them",
        family="mixtures of models",
        paper="wu2023fedcac",
        reveals="the trained model, and which of its parameters are critical",
        caution="the server keeps every client's newest model, and learns which clients resemble each other",
    )
    needs = Needs(server_models=True)
    presets = {"paper": {"beta": 100}}
    identities = {"fedcac(tau=0)": "fedavg", "fedcac(tau=1, beta=0)": "local"}

    tau: float = option(0.5, min=0.0, max=1.0, help="share of each tensor that is critical")
    beta: int | None = option(
        None, min=0, help="round from which a client's critical parameters are its own alone; none is a share of all"
    )
    until: float = option(0.2, min=0.0, max=1.0, help="that share of the run's rounds")

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """Other networks, sums alone, and more rounds than it was planned for, of which beta is a share."""
        return Refuses(
            other_networks="it compares clients' parameters one by one",
            summing="its server keeps the newest model of every client, and compares which parameters are critical",
            more_rounds="clients help each other in the share `until` of the rounds" if self.beta is None else "",
        )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, and which of its parameters are critical; the server sees both of every client."""
        model = Slot("server", down=True, up="each", holds="model")
        return {"params": model, CRITICAL: Slot("round", zeros_like_params, up="each", holds="parameters")}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Remember where training starts."""
        return {**work, "fedcac.start": work["params"]}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Say which parameters are critical."""
        change = tree.sub(work["params"], work["fedcac.start"])
        return {**work, CRITICAL: tree.map(lambda d, leaf: critical(d * leaf, self.tau), change, work["params"])}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """To each its critical parameters as its helpers have them, all others from the global model."""
        shared, senders = super().download(ctx, server, ids).shared, self.senders(ctx, server)
        models, known = [server[f"fedcac.model@{j}"] for j in senders], [i for i in ids if i in senders]
        messages = {i: {"params": shared["params"]} for i in ids}
        if known:
            helped = tree.means(models, server["fedcac.help"]["from"][[senders.index(i) for i in known]])
            for i, custom in zip(known, helped, strict=True):
                messages[i] = {"params": tree.map(torch.where, server[f"{CRITICAL}@{i}"], custom, shared["params"])}
        return Download({"buffers": shared["buffers"]}, messages)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean, the newest models and masks, and who helps whom."""
        after = super().aggregate(ctx, server, sums, each)
        for i, upload in each.items():
            sent, mask = upload.slots["params"], upload.masks.get("params")
            before = tree.pick(server.get(f"fedcac.model@{i}", ctx.initial["params"]), sent)
            after[f"fedcac.model@{i}"] = Sums.of([(sent, 1.0, mask)]).mean(before)
            after[f"{CRITICAL}@{i}"] = upload.slots[CRITICAL]
        masks = [after[f"{CRITICAL}@{i}"] for i in self.senders(ctx, after)]
        return {**after, "fedcac.help": {"from": helpers(overlaps(masks), ctx.round, self.last_round(ctx))}}

    def last_round(self, ctx: ServerContext) -> int:
        """beta, in rounds."""
        return round(self.until * ctx.rounds) if self.beta is None else self.beta

    def senders(self, ctx: ServerContext, server: Slots) -> list[int]:
        """The clients that have sent something so far."""
        return [i for i in ctx.clients if f"{CRITICAL}@{i}" in server]

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """How many clients, itself included, a client is helped by on average."""
        help = server.get("fedcac.help")
        return {"helpers": float(help["from"].sum(1, dtype=torch.float64).mean())} if help else {}


def critical(values: Tensor, share: float) -> Tensor:
    """True for exactly floor(share d) of the d values, those of largest size.

    >>> critical(torch.tensor([0.1, -3.0, 2.0]), 0.5)
    tensor([False,  True, False])
    """
    return largest(values, math.floor(share * values.numel() + _TIE))


def overlaps(masks: Sequence[Tree]) -> Tensor:
    """O_ij of every two masks, by row; a mask without critical parameters overlaps with none."""
    both = gram(masks, list(masks[0]))
    counts = both.diag()
    apart = counts[:, None] + counts[None, :] - 2 * both
    return torch.where(counts[:, None] > 0, 1 - apart / (2 * counts[:, None]).clamp_min(1), 0.0)


def helpers(overlap: Tensor, round: int, beta: int) -> Tensor:
    """Whether client j is in C_i, by row i."""
    alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
    if round >= beta or len(overlap) == 1:
        return alone
    others = overlap[~alone]
    threshold = others.mean() + (round + 1) / beta * (others.max() - others.mean())
    return alone | (overlap >= threshold - _TIE)
