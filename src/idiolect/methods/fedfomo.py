"""FedFomo: each client tries some of the others' models on held-out data and moves towards those that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Phase,
    Refuses,
    ServerContext,
    Slots,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.collection import Collection, joined, known, parted

# A smaller share of the own loss is no gain: normalised, round-off would decide whom a client follows.
NO_GAIN = 1e-6


@register("fedfomo")
@dataclass(frozen=True)
class FedFomo(Collection):
    r"""FedFomo (Zhang et al., ICLR 2021): federated first-order model optimization.

    With the loss :math:`L_i` on a part of its training data that client i sets aside, it weighs each received model

    .. math:: a_n = \frac{L_i(\theta_i) - L_i(\theta_n)}{\|\theta_n - \theta_i\| + \epsilon_0}, \quad
        W_n = \frac{\max(a_n, 0)}{\sum_m \max(a_m, 0)}, \quad
        \theta_i \leftarrow \theta_i + \sum_n W_n (\theta_n - \theta_i),

    stays where it is if no :math:`a_n` is positive, and then trains. It predicts with the trained model. The server
    adds what a client found to its affinities, :math:`P_{in} \leftarrow P_{in} + a_n`, and next time sends the `models`
    others of highest affinity; each place goes to a random one with probability :math:`\varepsilon`, which falls by
    `decay` each round.

    Hand-worked: at 0 with loss 1, the models 2 (loss 0.5), 4 (loss 0) and -1 (loss 3) have a = 0.25, 0.25 and -2, so
    W = 1/2, 1/2, 0, and training starts from 0 + (2 + 4) / 2 = 3.
    """

    about = About(
        "Follow those models of others that help",
        paper="zhang2021fedfomo",
        reveals="the client's own model, and how much each received model helped",
        stays="the data set aside",
        caution="other clients receive single models as they are",
    )
    refuses = Refuses(wrapping="its clients get several models of others, so there is no one federated model")
    identities: ClassVar[dict[str, str]] = {"fedfomo(models=0)": "local"}

    models: int = option(5, min=0, help="how many of the others' models a client gets each round (M)")
    share: float = option(0.2, above=0.0, below=1.0, help="share of the training data that models are tried on")
    epsilon: float = option(0.3, min=0.0, max=1.0, help="chance that a place goes to a random model at first")
    decay: float = option(0.05, min=0.0, max=1.0, help="how much that chance falls each round")

    @property
    def holdout(self) -> float:  # type: ignore[override]
        """Without models to try, all data are trained on."""
        return self.share if self.models else 0.0

    # -- server ------------------------------------------------------------------------------------

    def choice(self, ctx: ServerContext, server: Slots, client: int) -> list[int]:
        """Whose models a client gets: those of highest affinity, some places given at random; ties are drawn."""
        others = [j for j in known(ctx, server) if j != client]
        draw = ctx.rng(f"fedfomo {client}")
        drawn = [others[k] for k in draw.permutation(len(others))]
        affinity = self.affinity(ctx, server, client)
        ranked = sorted(drawn, key=lambda j: -float(affinity[ctx.clients.index(j)]))
        chance, chosen = max(0.0, self.epsilon - self.decay * ctx.round), list[int]()
        for explores in draw.random(min(self.models, len(others))) < chance:
            chosen.append(next(j for j in (drawn if explores else ranked) if j not in chosen))
        return chosen

    def affinity(self, ctx: ServerContext, server: Slots, client: int) -> Tensor:
        """What a client has gained by each other client's models so far."""
        nothing = torch.zeros(len(ctx.clients), dtype=torch.float64)
        return server.get(f"fedfomo.affinity@{client}", {"sum": nothing})["sum"]

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The chosen models, and the mean of the newest ones for those who have none yet."""
        chosen = {i: self.choice(ctx, server, i) for i in ids}
        models = {
            i: {f"fedfomo.model/{k}": server[f"latest@{j}"] for k, j in enumerate(each)} for i, each in chosen.items()
        }
        return Download(super().download(ctx, server, ids).shared, models)

    def welcome(self, ctx: ServerContext, server: Slots, index: int) -> Slots:
        """An unseen client gets the mean of the newest models alone."""
        return self.download(ctx, server, ()).shared

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The new models; what clients gained by the models they were sent enters their affinities."""
        after = super().aggregate(ctx, server, uploads)
        for client, upload in uploads.items():
            gains = upload.slots["fedfomo.gains"]["a"].to(torch.float64)
            places = torch.tensor(
                [ctx.clients.index(j) for j in self.choice(ctx, server, client)], dtype=torch.long, device=gains.device
            )
            before = self.affinity(ctx, server, client).to(gains.device)
            after[f"fedfomo.affinity@{client}"] = {"sum": before.index_add(0, places, gains)}
        return after

    # -- client ------------------------------------------------------------------------------------

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Try the models on the data set aside, then train."""
        score = (Phase("score", slots=(), epochs=1, data="holdout", stream="holdout"),) if self.models else ()
        return (*score, Phase())

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The own model, the received ones beside it, and nothing known of any."""
        work, others = super().begin(ctx, client, download), received(download)
        none = torch.zeros(1 + len(others), device=ctx.samples.device)
        losses = {"sum": none, "samples": torch.zeros_like(ctx.samples)}
        return {**work, **others, "fedfomo.losses": losses, "fedfomo.gains": {"a": none[1:]}}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add up the losses of all models, the own one first; or train."""
        if ctx.phase.name != "score":
            return super().step(ctx, work, batch)
        own, count, losses = joined(work), batch.weight.sum(), list[Tensor]()
        for model in (own, *received(work).values()):
            slots = parted(ctx, {**own, **model})
            outputs = ctx.task.forward(slots["params"], slots["buffers"], batch.x).outputs
            losses.append(ctx.task.score(outputs, batch) * count)
        found = {"sum": torch.stack(losses), "samples": count}
        return {**work, "fedfomo.losses": tree.add(work["fedfomo.losses"], found)}

    def enter(self, ctx: ClientContext, work: Slots) -> Slots:
        """Before training: weigh the models by what they gain, and move towards those that gain something."""
        others = list(received(work).values())
        if ctx.phase.name == "score" or not others:
            return work
        own = joined(work)
        loss = work["fedfomo.losses"]["sum"] / work["fedfomo.losses"]["samples"].clamp_min(1)
        gained = loss[0] - loss[1:]
        gained = torch.where(gained.abs() > NO_GAIN * loss[0].abs(), gained, 0.0)
        params = tree.pick(work["params"], others[0])
        apart = torch.stack([tree.norm(tree.sub(params, each)) for each in others])
        gains = gained / (apart + 1e-5)
        return {**work, **parted(ctx, moved(own, others, gains)), "fedfomo.gains": {"a": gains}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Send the trained model, and what the received ones gained."""
        client, upload = super().end(ctx, client, work)
        return client, Upload({**upload.slots, "fedfomo.gains": work["fedfomo.gains"]})


def received(slots: Slots) -> Slots:
    """The others' models, in the order in which they were sent."""
    return {slot: each for slot, each in slots.items() if slot.startswith("fedfomo.model/")}


def moved(own: Tree, others: Sequence[Tree], gains: Tensor) -> Tree:
    """The own model moved towards the others in proportion to their gains, where these are positive.

    >>> models = [{"w": torch.tensor(2.0)}, {"w": torch.tensor(4.0)}, {"w": torch.tensor(-1.0)}]
    >>> moved({"w": torch.tensor(0.0)}, models, torch.tensor([0.25, 0.25, -2.0]))
    {'w': tensor(3.)}
    """
    gains = gains.clamp_min(0.0)
    weights = gains / gains.sum().clamp_min(torch.finfo(gains.dtype).tiny)

    def towards(leaf: Tensor, *sent: Tensor) -> Tensor:
        moves = [weight * (each - leaf) for weight, each in zip(weights, sent, strict=True)]
        return leaf + torch.stack(moves).sum(0) if leaf.is_floating_point() else leaf

    return {**own, **tree.map(towards, tree.pick(own, others[0]), *others)}
