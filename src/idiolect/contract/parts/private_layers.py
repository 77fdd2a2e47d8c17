"""Private layers: methods that keep some layers of the model on the clients. They differ in which layers these are, in
which phases they are trained, and in what is tuned before predicting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.options import option
from ...task.task import Task
from ..context import ClientContext
from ..method import Method
from ..phase import Phase, Step


@dataclass(frozen=True)
class PrivateLayers(Method):
    """A method whose last layers stay on the client; an unseen client trains only what is private."""

    layers: int = option(1, min=0, help="how many of the last layers are private")
    onboard_epochs: int = option(
        10, min=0, tuned="never", help="passes in which an unseen client trains its private layers"
    )

    def private_names(self, task: Task) -> frozenset[str]:
        """The last layers."""
        return task.head(self.layers)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its private layers on the shared ones; where nothing is private, as usual."""
        private = self.private_names(ctx.task)
        if not private:
            return super().onboard(ctx)
        return (Phase(self.adapt_step, "onboard", part=private, epochs=self.onboard_epochs),)


def shared_names(method: Method, task: Task) -> frozenset[str]:
    """The parameters that a method shares."""
    return frozenset(task.names) - method.private_names(task)


def all_but_last(task: Task, layers: int) -> frozenset[str]:
    """The names (parameters and buffers) of all but the last `layers` layers."""
    return task.names_of(task.units) - task.head(layers)


def in_turn(
    step: Step,
    task: Task,
    private: frozenset[str],
    own_epochs: int | None,
    shared_epochs: int | None,
    own_lr: float | None = None,
) -> tuple[Phase, ...]:
    """First what is private, the rest frozen; then the rest, on the same batches. A side without parameters is left
    out; epochs of None are the run's."""
    rest = frozenset(task.names) - private
    phases = (
        Phase(step, "own", part=private, epochs=own_epochs, lr=own_lr),
        Phase(step, "shared", part=rest, epochs=shared_epochs),
    )
    return tuple(phase for phase in phases if phase.part and phase.part & frozenset(task.names))
