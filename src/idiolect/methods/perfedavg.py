"""Per-FedAvg: a global model that is good after one step of adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import About, Batch, ClientContext, Grad, Phase, Slots, Tree, option, register, tree
from ..contract.parts.server_step import ServerStep


@register("perfedavg")
@dataclass(frozen=True)
class PerFedAvg(ServerStep):
    r"""Per-FedAvg (Fallah et al., NeurIPS 2020): minimise the loss after one step of adaptation,
    :math:`F_i(w) = f_i(w - \alpha \nabla f_i(w))`, whose gradient is

    .. math:: \nabla F_i(w) = (I - \alpha \nabla^2 f_i(w)) \, \nabla f_i(w - \alpha \nabla f_i(w)).

    Each local step draws independent batches D, D' and D''. With
    :math:`g = \nabla f_i(w - \alpha \nabla f_i(w; D); D')` the step of learning rate beta (the run's) is along
    :math:`g - \alpha \nabla^2 f_i(w; D'') \, g`, with the product as automatic differentiation gives it
    (`form=exact`). The paper's two approximations leave the second term out (`form=fo`, first order) or take the
    product by differences (`form=hf`, Hessian-free),

    .. math:: g - \alpha \frac{\nabla f_i(w + \delta g; D'') - \nabla f_i(w - \delta g; D'')}{2 \delta}.

    Before predicting, every client, known or new, adapts a copy of the global model by one step of learning rate alpha
    on one batch of its training data. Run it: ``idiolect run perfedavg``.
    """

    about = About(
        "A global model made for one step of adaptation",
        family="a start that adapts",
        paper="fallah2020perfedavg",
        stays="the adapted copy",
    )
    identities = {"perfedavg(alpha=0, form=fo)": "fedavg"}

    form: str = option(
        "exact", choices=("exact", "fo", "hf"), help="second derivatives: exact, left out, or by differences"
    )
    alpha: float | None = option(0.01, min=0.0, help="learning rate of the adaptation step; none is the run's")
    delta: float = option(1e-3, above=0.0, help="length of the differences, in gradients (form=hf)")

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """D', which the step is along, comes first: without adaptation these are FedAvg's batches."""
        streams = ("train", "train 1", "train 2")
        return (Phase(self.meta_step, stream=streams[:2] if self.form == "fo" else streams),)

    def meta_step(self, ctx: ClientContext, work: Slots, batch: tuple[Batch, ...]) -> Slots:
        """One step of the meta-gradient on independent batches."""
        (meta, inner), w = batch[:2], work["params"]
        alpha = self.adaptation_lr(ctx)
        adapted = along(w, ctx.grad(work, "params", inner), -alpha)
        grad = ctx.grad(work, "params", meta, at=adapted)
        if self.form == "exact":
            grad = grad.plus(ctx.hessian_product(work, "params", batch[2], grad.tree), -alpha)
        elif self.form == "hf":
            there, back = (along(w, grad, sign * self.delta) for sign in (1, -1))
            ahead, behind = (ctx.grad(work, "params", batch[2], at=point).tree for point in (there, back))
            grad = grad.plus(tree.sub(ahead, behind), -alpha / (2 * self.delta))
        return ctx.optimize(work, "params", grad, meta)

    def adaptation_lr(self, ctx: ClientContext) -> float:
        """alpha."""
        return ctx.lr if self.alpha is None else self.alpha

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """One step on one batch of the training data."""
        return (Phase(self.one_step, "perfedavg.adapt", steps=1),)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """A new client adapts like all others, and does nothing else."""
        return ()

    def one_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The step of adaptation, plain gradient descent whatever the run's optimiser; its batch enters the running
        statistics as in training."""
        grad = ctx.grad(model, "params", batch)
        adapted = along(model["params"], grad, -self.adaptation_lr(ctx))
        return {**model, "params": adapted, "buffers": grad.scored.buffers}


def along(params: Tree, grad: Grad, length: float) -> Tree:
    """params + length * grad; what has no gradient stays."""
    return {**params, **tree.add(tree.pick(params, grad.tree), grad.tree, length)}
