"""Local: no federation at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract.method import Method, register
from ..task.task import Task


@register("local")
@dataclass(frozen=True)
class Local(Method):
    """Local training: each client trains its own model on its own data, and nothing is sent.

    A client trains only when it is sampled, so that its compute equals that of the federated methods.
    """

    title: ClassVar[str] = "No federation: each client trains alone"
    reveals: ClassVar[str] = "nothing"
    stays: ClassVar[str] = "the model"
    kind: ClassVar[str] = "local"
    sends: ClassVar[tuple[str, ...]] = ()
    unwrappable: ClassVar[str] = "it shares nothing, so there is no federated model to act on"

    def private(self, task: Task) -> frozenset[str]:
        """Everything is private."""
        return frozenset(task.net.params) | frozenset(task.net.buffers)
