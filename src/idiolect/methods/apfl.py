"""APFL: each client predicts with a mixture of a personal and the global model, and learns how much of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import About, Batch, ClientContext, Method, Phase, Slots, Tree, option, register, tree
from ..contract.slots import Slot, keep_model, model_in, private

OWN, SHARE = "apfl.own", "apfl.share"


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

    Both models have the running statistics of their own forward passes: w_i's travel with it, those of the mixture
    stay, and it predicts with them. (Means of a linear layer mix like its weights, but variances do not.)
    Run it: ``idiolect run apfl``.
    """

    about = About(
        "A learned mixture of a personal and the global model",
        family="a model of one's own",
        paper="deng2020apfl",
        reveals="the shared model as trained",
        stays="the personal model and the mixing weight",
    )
    identities = {"apfl(alpha=0, adaptive=false)": "fedavg", "apfl(alpha=1, adaptive=false)": "local"}

    alpha: float = option(0.5, min=0.0, max=1.0, help="share of the personal model, at first or for good")
    adaptive: bool = option(True, help="learn alpha")
    alpha_lr: float | None = option(None, above=0.0, help="learning rate of alpha; none is the run's")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The shared model; v and alpha stay."""
        return {**super().slots, OWN: private(holds="model"), SHARE: private(self.first_share)}

    def first_share(self, ctx: ClientContext) -> Tree:
        """alpha as it is given."""
        return {"alpha": torch.full_like(ctx.samples, self.alpha)}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The personal model of a client that trains for the first time starts from the received one."""
        return keep_model(work, OWN) if ctx.newcomer else work

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains both models."""
        return (Phase(self.step_both, slots=("params", OWN)),)

    def step_both(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One step of w, v and alpha on one batch."""
        w, v, alpha = work["params"], work[OWN], work[SHARE]["alpha"]
        grad = ctx.grad(work, OWN, batch, at=tree.mix(v, w, alpha))  # at the mixture
        work = ctx.optimize(work, "params", ctx.grad(work, "params", batch), batch)
        work = ctx.optimize(work, OWN, replace(grad, slots={OWN: tree.scale(grad.tree, alpha)}), batch)
        if not self.adaptive:
            return work
        alpha = alpha - ctx.scheduled(self.alpha_lr) * tree.dot(tree.sub(v, w), grad.tree)
        return {**work, SHARE: {"alpha": alpha.clamp(0.0, 1.0)}}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The mixture of v and w, with the statistics of the mixture's own passes; a client that has never trained has
        no v yet and uses w."""
        if ctx.newcomer:
            return super().personal_model(ctx, work)
        return {**model_in(work, OWN), "params": tree.mix(work[OWN], work["params"], work[SHARE]["alpha"])}

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the personal model."""
        return {"alpha": client[SHARE]["alpha"]}
