"""FedRep: a private head and a shared body, trained in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract.context import Context
from ..contract.method import Paper, Phase, register
from ..core.options import option
from ..task.task import Task
from .fedper import PrivateHead


def in_turn(
    task: Task, private: frozenset[str], own: int | None, shared: int | None, own_lr: float | None = None
) -> tuple[Phase, ...]:
    """First what is private, the rest frozen; then the rest, on the same batches. A side without parameters is left
    out; epochs of None are the run's."""
    rest = frozenset(task.names) - private
    phases = (Phase("own", part=private, epochs=own, lr=own_lr), Phase("shared", part=rest, epochs=shared))
    return tuple(phase for phase in phases if phase.part and phase.part & frozenset(task.names))


@register("fedrep")
@dataclass(frozen=True)
class FedRep(PrivateHead):
    """FedRep (Collins et al., ICML 2021): first the head with the body frozen, then the body with the head frozen.

    Hand-worked, one client, one step each, rate 0.1, loss (b h - 1)^2 / 2 at b = 2, h = 0: the head moves along
    (b h - 1) b = -2 to 0.2; then the body along (b h - 1) h = (0.4 - 1) 0.2 = -0.12 to 2.012.
    Normalisation layers of the frozen part stay in evaluation mode.
    """

    title: ClassVar[str] = "Private head and shared body, trained in turn"
    reveals: ClassVar[str] = "the body"
    stays: ClassVar[str] = "the head"
    paper: ClassVar[Paper] = Paper(
        "Collins, Hassani, Mokhtari, Shakkottai",
        "Exploiting shared representations for personalized federated learning",
        "ICML",
        2021,
        "arXiv:2102.07078",
    )

    head_epochs: int = option(10, min=0, help="epochs of the head, body frozen")
    body_epochs: int | None = option(
        None, min=0, help="epochs of the body, head frozen; none is the run's local epochs"
    )

    def phases(self, ctx: Context) -> tuple[Phase, ...]:
        """Head, then body, on the same batches."""
        return in_turn(ctx.task, self.private(ctx.task), self.head_epochs, self.body_epochs)
