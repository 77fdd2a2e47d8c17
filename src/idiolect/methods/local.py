"""Local: no federation at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract import About, Method, Refuses, Slot, Task, register


@register("local")
@dataclass(frozen=True)
class Local(Method):
    """Local training: each client trains its own model on its own data, and nothing is sent.

    A client trains only when it is sampled, so that its compute equals that of the federated methods.
    Run it: ``idiolect run local``.
    """

    about = About(
        "No federation: each client trains alone",
        family="one model for all",
        kind="local",
        reveals="nothing",
        stays="the model",
    )
    refuses = Refuses(wrapping="it shares nothing, so there is no federated model to act on")

    def private_names(self, task: Task) -> frozenset[str]:
        """Everything is private."""
        return frozenset(task.net.params) | frozenset(task.net.buffers)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The initial model comes down, nothing goes up."""
        return {"params": Slot("server", down=True, holds="model")}
