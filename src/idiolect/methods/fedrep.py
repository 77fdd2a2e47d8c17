"""FedRep: a private head and a shared body, trained in turn."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import About, ClientContext, Phase, option, register
from ..contract.parts.private_layers import PrivateLayers, in_turn


@register("fedrep")
@dataclass(frozen=True)
class FedRep(PrivateLayers):
    """FedRep (Collins et al., ICML 2021): first the head with the body frozen, then the body with the head frozen.

    Normalisation layers of the frozen part stay in evaluation mode. Run it: ``idiolect run fedrep``.
    """

    about = About(
        "Private head and shared body, trained in turn",
        family="private layers",
        paper="collins2021fedrep",
        reveals="the body",
        stays="the head",
    )

    head_epochs: int = option(10, min=0, help="epochs of the head, body frozen")
    body_epochs: int | None = option(
        None, min=0, help="epochs of the body, head frozen; none is the run's local epochs"
    )

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Head, then body, on the same batches."""
        return in_turn(self.step, ctx.task, self.private_names(ctx.task), self.head_epochs, self.body_epochs)
