"""FedProx: FedAvg with clients held near the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract.context import Context
from ..contract.method import Method, Paper, register
from ..core import tree
from ..core.options import option
from ..core.tree import Slots
from ..task.task import Batch


@register("fedprox")
@dataclass(frozen=True)
class FedProx(Method):
    r"""FedProx (Li et al., MLSys 2020): each client minimises its loss plus a proximal term (eq. 2),

    .. math:: \min_w f_i(w) + \frac{\mu}{2} \|w - w^t\|^2,

    whose gradient adds :math:`\mu (w - w^t)`.

    Hand-worked: at w = 3 with w^t = 1, loss gradient 2 and mu = 0.5 the step is along 2 + 0.5 (3 - 1) = 3.
    """

    title: ClassVar[str] = "FedAvg with clients held near the global model"
    kind: ClassVar[str] = "global"
    paper: ClassVar[Paper] = Paper(
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith",
        "Federated optimization in heterogeneous networks",
        "MLSys",
        2020,
        "arXiv:1812.06127",
    )
    identities: ClassVar[dict[str, str]] = {"fedprox(mu=0)": "fedavg"}

    mu: float = option(0.1, min=0.0, help="weight of the proximal term")

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """Remember the global model as the anchor."""
        work = super().begin(ctx, client, download)
        return {**work, "fedprox.anchor": work["params"]}

    def step(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """A step on the loss plus the proximal term."""
        grad = ctx.grad(work, "params", batch)
        pull = tree.sub(work["params"], work["fedprox.anchor"])
        return ctx.descend(work, "params", grad.plus(pull, self.mu), batch)
