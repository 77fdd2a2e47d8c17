"""FedPer, and the idea of a private head that several methods share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..contract.context import Context
from ..contract.method import Method, Paper, Phase, register
from ..core.options import option
from ..task.task import Task


@dataclass(frozen=True)
class PrivateHead(Method):
    """A method whose last layers stay on the client; an unseen client trains only them."""

    layers: int = option(1, min=0, help="how many of the last layers are private")

    def private(self, task: Task) -> frozenset[str]:
        """The last layers."""
        return task.head(self.layers)

    def onboard(self, ctx: Context) -> Sequence[Phase]:
        """An unseen client trains its head on the shared body."""
        head = self.private(ctx.task)
        return (Phase("onboard", part=head or None),)


@register("fedper")
@dataclass(frozen=True)
class FedPer(PrivateHead):
    """FedPer (Arivazhagan et al., 2019): body and private head are trained jointly, the body is averaged.

    Hand-worked: two clients of equal size train body 0 to 2 and to 4 and heads to 5 and to 7; afterwards both hold
    body 3, and heads 5 and 7.
    """

    title: ClassVar[str] = "The head stays private, the body is averaged"
    reveals: ClassVar[str] = "the body (all but the last layers)"
    stays: ClassVar[str] = "the head"
    paper: ClassVar[Paper] = Paper(
        "Arivazhagan, Aggarwal, Singh, Choudhary",
        "Federated learning with personalization layers",
        "arXiv",
        2019,
        "arXiv:1912.00818",
    )
    identities: ClassVar[dict[str, str]] = {"fedper(layers=0)": "fedavg"}
