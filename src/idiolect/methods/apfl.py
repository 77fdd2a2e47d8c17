"""APFL: each client predicts with a mixture of a personal and the global model, and learns how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import About, Batch, ClientContext, Method, Phase, Slots, Tree, Upload, option, register, tree

OWN = ("apfl.own", "apfl.own.buffers")


@register("apfl")
@dataclass(frozen=True)
class APFL(Method):
    r"""APFL (Deng et al., 2020): beside FedAvg's model w each client trains v so that the *mixture*

    .. math:: \bar v = \alpha v + (1 - \alpha) w_i

    has a small loss, and adapts alpha (Algorithm 1; all right-hand sides hold the values before the step),

    .. math:: w_i \leftarrow w_i - \eta \nabla f_i(w_i), \qquad
        v \leftarrow v - \eta \alpha \nabla f_i(\bar v), \qquad
        \alpha \leftarrow \alpha - \eta \langle v - w_i, \nabla f_i(\bar v) \rangle,

    with alpha cut to [0, 1]. Both gradients of the mixture follow from the chain rule; v is never trained on its own
    loss. The clients send w_i and predict with the mixture of v and the newest w.

    Hand-worked: f(x) = x^2 / 2 at w = 2, v = 4, alpha = 0.5 and rate 0.1. The mixture is 3, its gradient 3. So w
    becomes 2 - 0.2 = 1.8, v becomes 4 - 0.1 * 0.5 * 3 = 3.85 and alpha 0.5 - 0.1 (4 - 2) 3 = -0.1, which is cut to 0.
    """

    about = About(
        "A learned mixture of a personal and the global model",
        paper="deng2020apfl",
        reveals="the shared model as trained",
        stays="the personal model and the mixing weight",
    )
    identities: ClassVar[dict[str, str]] = {
        "apfl(alpha=0, adaptive=false)": "fedavg",
        "apfl(alpha=1, adaptive=false)": "local",
    }

    alpha: float = option(0.5, min=0.0, max=1.0, help="share of the personal model, at first or for good")
    adaptive: bool = option(True, help="learn alpha")
    alpha_lr: float | None = option(None, above=0.0, help="rate of alpha; none is the run's")

    def client_init(self, ctx: ClientContext) -> Slots:
        """A place for the personal model, and alpha."""
        own = {OWN[0]: ctx.initial["params"], OWN[1]: ctx.initial["buffers"]}
        return {**super().client_init(ctx), **own, "apfl.share": {"alpha": torch.full_like(ctx.samples, self.alpha)}}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The personal model of a client that trains for the first time starts from the received one."""
        work = super().begin(ctx, client, download)
        own = (
            {OWN[0]: work["params"], OWN[1]: work["buffers"]} if ctx.newcomer else {slot: client[slot] for slot in OWN}
        )
        return {**work, **own, "apfl.share": client["apfl.share"]}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains both models."""
        return (Phase(slots=("params", OWN[0])),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One step of w, v and alpha on one batch."""
        w, v, alpha = work["params"], work[OWN[0]], work["apfl.share"]["alpha"]
        slope = ctx.grad(work, OWN[0], batch, at=tree.mix(v, w, alpha))  # at the mixture
        work = ctx.descend(work, "params", ctx.grad(work, "params", batch), batch)
        work = ctx.descend(work, OWN[0], replace(slope, slots={OWN[0]: tree.scale(slope.tree, alpha)}), batch)
        if not self.adaptive:
            return work
        rate = ctx.rate if self.alpha_lr is None else self.alpha_lr
        moved = alpha - rate * tree.dot(tree.sub(v, w), slope.tree)
        return {**work, "apfl.share": {"alpha": moved.clamp(0.0, 1.0)}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep v and alpha, send w."""
        client, upload = super().end(ctx, client, work)
        return {**client, **{slot: work[slot] for slot in (*OWN, "apfl.share")}}, upload

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The mixture with the newest w; a client that has never trained has no v yet and uses w."""
        shared = super().view(ctx, client, download)
        return shared if ctx.newcomer else mixture(client, shared)

    def after_local(self, ctx: ClientContext, client: Slots, work: Slots) -> Slots:
        """The mixture with the client's own w."""
        return mixture(work, work)

    def records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the personal model."""
        return {"alpha": client["apfl.share"]["alpha"]}


def mixture(own: Slots, shared: Slots) -> Slots:
    """alpha v + (1 - alpha) w of parameters and of running statistics; counters are the client's own."""

    def mixed(v: Tree, w: Tree) -> Tree:
        counters = {name: leaf for name, leaf in v.items() if not leaf.is_floating_point()}
        return {**tree.mix(v, w, own["apfl.share"]["alpha"]), **counters}

    return {"params": mixed(own[OWN[0]], shared["params"]), "buffers": mixed(own[OWN[1]], shared["buffers"])}
