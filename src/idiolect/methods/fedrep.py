"""FedRep: a private head and a shared body, trained in turn."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import About, ClientContext, Phase, option, register
from ..contract.parts.private_layers import PrivateLayers, in_turn


@register("fedrep")
@dataclass(frozen=True)
class FedRep(PrivateLayers):
    """FedRep (Collins et al., ICML 2021): first the head with the body frozen, then the body with the head frozen.

    Hand-worked, one client, one step each, rate 0.1, loss (b h - 1)^2 / 2 at b = 2, h = 0: the head moves along
    (b h - 1) b = -2 to 0.2; then the body along (b h - 1) h = (0.4 - 1) 0.2 = -0.12 to 2.012.
    Normalisation layers of the frozen part stay in evaluation mode.
    """

    about = About(
        "Private head and shared body, trained in turn", paper="collins2021fedrep", reveals="the body", stays="the head"
    )

    head_epochs: int = option(10, min=0, help="epochs of the head, body frozen")
    body_epochs: int | None = option(
        None, min=0, help="epochs of the body, head frozen; none is the run's local epochs"
    )

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Head, then body, on the same batches."""
        return in_turn(self.step, ctx.task, self.private_names(ctx.task), self.head_epochs, self.body_epochs)
