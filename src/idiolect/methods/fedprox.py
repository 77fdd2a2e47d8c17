"""FedProx: FedAvg with clients held near the global model."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import About, Batch, ClientContext, Method, Slots, option, register, tree


@register("fedprox")
@dataclass(frozen=True)
class FedProx(Method):
    r"""FedProx (Li et al., MLSys 2020): each client minimises its loss plus a proximal term (eq. 2),

    .. math:: \min_w f_i(w) + \frac{\mu}{2} \|w - w^t\|^2,

    whose gradient adds :math:`\mu (w - w^t)`.

    Run it: ``idiolect run fedprox``.
    """

    about = About(
        "FedAvg with clients held near the global model",
        family="one model for all",
        paper="li2020fedprox",
        kind="global",
    )
    identities = {"fedprox(mu=0)": "fedavg"}

    mu: float = option(0.1, min=0.0, help="weight of the proximal term")

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Remember the global model as the anchor."""
        return {**work, "fedprox.anchor": work["params"]}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss plus the proximal term."""
        grad = ctx.grad(work, "params", batch)
        pull = tree.sub(work["params"], work["fedprox.anchor"])
        return ctx.optimize(work, "params", grad.plus(pull, self.mu), batch)
