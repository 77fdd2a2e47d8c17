"""FedFomo: each client tries some of the others' models on held-out data and moves towards those that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import About, Batch, Download, Needs, Phase, Slot, Slots, Sums, Tree, Uploads, option, register, tree
from ..contract.context import ClientContext, ServerContext
from ..contract.parts.collection import Collection, join_model, known_clients, latest, split_model
from ..contract.slots import keep_model, model_in, private

BASE, GAINS, LOSSES = "fedfomo.base", "fedfomo.gains", "fedfomo.losses"
# A smaller share of the own loss is no gain: normalised, round-off would decide whom a client follows.
NO_GAIN = 1e-6


@register("fedfomo")
@dataclass(frozen=True)
class FedFomo(Collection):
    r"""FedFomo (Zhang et al., ICLR 2021): federated first-order model optimization. Run it: ``idiolect run fedfomo``.

    Client i goes on from :math:`\theta_i^{t-1}`, the model that its last training *started* from. The models that it
    may follow are its own as trained and `models` - 1 of the others'. With the loss :math:`L_i` on a part of its
    training data that it sets aside, it weighs each of them

    .. math:: a_n = \frac{L_i(\theta_i^{t-1}) - L_i(\theta_n)}{\|\theta_n - \theta_i^{t-1}\| + \epsilon_0}, \quad
        W_n = \frac{\max(a_n, 0)}{\sum_m \max(a_m, 0)}, \quad
        \theta_i^t = \theta_i^{t-1} + \sum_n W_n (\theta_n - \theta_i^{t-1}),

    is back at :math:`\theta_i^{t-1}` if no :math:`a_n` is positive, and then trains. It predicts with the trained
    model. The server adds what a client found to its affinities, :math:`P_{in} \leftarrow P_{in} + a_n`, and next time
    sends the others of highest affinity; each place goes to a random one with probability :math:`\varepsilon`, which
    falls by `decay` each round.
    """

    about = About(
        "Follow those models of others that help",
        family="mixtures of models",
        paper="zhang2021fedfomo",
        reveals="the client's own model, and how much each received model helped",
        stays="the data set aside",
        caution="other clients receive single models as they are",
    )
    refuses = replace(
        Collection.refuses, wrapping="its clients get several models of others, so there is no one federated model"
    )
    identities = {"fedfomo(models=0)": "local"}

    models: int = option(5, min=0, help="how many models a client may follow, its own among them (M)")
    share: float = option(0.2, above=0.0, below=1.0, help="share of the training data that models are tried on")
    epsilon: float = option(0.3, min=0.0, max=1.0, help="chance that a place goes to a random model at first")
    decay: float = option(0.05, min=0.0, max=1.0, help="how much that chance falls each round")

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Without models to try, all data are trained on."""
        return replace(super().needs, holdout=self.share if self.models else 0.0)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The models, where the last training started, and what the others' models gained."""
        base = {BASE: private(holds="model")} if self.models else {}
        return {**super().slots, **base, GAINS: Slot("round", no_gains, up="each")}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own model, the received ones beside it, and nothing known of any."""
        none = torch.zeros(2 + len(pick_received(work)), device=ctx.samples.device)
        losses = {"sum": none, "samples": torch.zeros_like(ctx.samples)}
        start = super().prepare(ctx, work)
        start = keep_model(start, BASE) if ctx.newcomer and self.models else start
        return {**start, LOSSES: losses, GAINS: {"a": none[2:]}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Try the models on the data set aside, follow those that help, then train."""
        if not self.models:
            return (Phase(self.step),)
        score = Phase(self.score, "score", slots=(), epochs=1, data="holdout", stream="holdout")
        return (score, Phase(self.step, before=self.follow))

    def candidates(self, ctx: ClientContext, work: Slots) -> list[Tree]:
        """What is shared of the models: where the last training started, where it ended, and the received ones."""
        own = [join_model(model_in(work, BASE)), join_model(work)]
        return [*(tree.drop(model, ctx.private_names) for model in own), *pick_received(work).values()]

    def score(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Add up the losses of all models."""
        own_model, count, losses = join_model(work), batch.weight.sum(), list[Tensor]()
        for model in self.candidates(ctx, work):
            slots = split_model(ctx, {**own_model, **model})
            outputs = ctx.task.forward(slots["params"], slots["buffers"], batch.x).outputs
            losses.append(ctx.task.score(outputs, batch) * count)
        return {**work, LOSSES: tree.add(work[LOSSES], {"sum": torch.stack(losses), "samples": count})}

    def follow(self, ctx: ClientContext, work: Slots) -> Slots:
        """Weigh the models by what they gain, and move towards those that gain something; training starts there."""
        base, *others = self.candidates(ctx, work)
        loss = work[LOSSES]["sum"] / work[LOSSES]["samples"].clamp_min(1)
        gained = loss[0] - loss[1:]
        gained = torch.where(gained.abs() > NO_GAIN * loss[0].abs(), gained, 0.0)
        names = tree.pick(base, work["params"])
        apart = torch.stack([tree.norm(tree.sub(names, tree.pick(other, names))) for other in others])
        gains = gained / (apart + 1e-5)
        start = split_model(ctx, {**join_model(work), **move_towards(base, others, gains)})
        return {**keep_model({**work, **start}, BASE), GAINS: {"a": gains[1:]}}

    def choose(self, ctx: ServerContext, server: Slots, client: int) -> list[int]:
        """Whose models a client gets: those of highest affinity, some places given at random; ties are drawn."""
        others = [j for j in known_clients(ctx, server) if j != client]
        draw = ctx.rng(f"fedfomo {client}")
        drawn = [others[k] for k in draw.permutation(len(others))]
        affinity = self.affinity(ctx, server, client)
        ranked = sorted(drawn, key=lambda j: -float(affinity[ctx.clients.index(j)]))
        chance, chosen = max(0.0, self.epsilon - self.decay * ctx.round), list[int]()
        for explores in draw.random(min(max(self.models - 1, 0), len(others))) < chance:
            chosen.append(next(j for j in (drawn if explores else ranked) if j not in chosen))
        return chosen

    def affinity(self, ctx: ServerContext, server: Slots, client: int) -> Tensor:
        """What a client has gained by each other client's models so far."""
        nothing = torch.zeros(len(ctx.clients), dtype=torch.float64)
        return server.get(f"fedfomo.affinity@{client}", {"sum": nothing})["sum"]

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The chosen models, and the mean of the newest ones for those who have none yet; an unseen client gets the
        mean alone."""
        chosen = {i: self.choose(ctx, server, i) for i in ids if i in ctx.clients}
        models = {i: {f"fedfomo.model/{k}": server[latest(j)] for k, j in enumerate(js)} for i, js in chosen.items()}
        return Download(super().download(ctx, server, ids).shared, models)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The new models; what clients gained by the models they were sent enters their affinities."""
        after = super().aggregate(ctx, server, sums, each)
        for client, upload in each.items():
            gains = upload.slots[GAINS]["a"].to(torch.float64)
            places = [ctx.clients.index(j) for j in self.choose(ctx, server, client)]
            at = torch.tensor(places, dtype=torch.long, device=gains.device)
            before = self.affinity(ctx, server, client).to(gains.device)
            after[f"fedfomo.affinity@{client}"] = {"sum": before.index_add(0, at, gains)}
        return after


def no_gains(ctx: ClientContext) -> Tree:
    """What no models gain."""
    return {"a": ctx.samples.new_zeros(0)}


def pick_received(slots: Slots) -> Slots:
    """The others' models, in the order in which they were sent."""
    return {slot: leaves for slot, leaves in slots.items() if slot.startswith("fedfomo.model/")}


def move_towards(base: Tree, models: Sequence[Tree], gains: Tensor) -> Tree:
    """A model moved towards others in proportion to their gains, where these are positive; counters are the first's.

    >>> models = [{"w": torch.tensor(2.0)}, {"w": torch.tensor(4.0)}, {"w": torch.tensor(-1.0)}]
    >>> move_towards({"w": torch.tensor(0.0)}, models, torch.tensor([0.25, 0.25, -2.0]))
    {'w': tensor(3.)}
    """
    gains = gains.clamp_min(0.0)
    weights = gains / gains.sum().clamp_min(torch.finfo(gains.dtype).tiny)

    def towards(leaf: Tensor, *others: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return others[0]
        return leaf + torch.stack([weight * (other - leaf) for weight, other in zip(weights, others, strict=True)]).sum(
            0
        )

    return tree.map(towards, base, *models)
