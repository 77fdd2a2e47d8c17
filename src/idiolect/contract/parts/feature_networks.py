"""Networks on the features, between a shared body and a private output layer; they are averaged like the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...core.options import option
from ...task.task import Task
from ..context import ClientContext
from ..phase import Phase
from ..slots import Slot, shared
from .on_features import OnFeatures, params_of


@dataclass(frozen=True)
class FeatureNets(OnFeatures):
    """A method whose output layer is private, and whose clients share networks on the features beside the body."""

    networks: ClassVar[tuple[str, ...]] = ()
    """Their names, those of `modules` and of their slots."""

    onboard_epochs: int = option(
        10, min=0, tuned="never", help="passes in which an unseen client trains its output layer"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, and the networks."""
        return {**super().slots, **{network: shared(params_of(network)) for network in self.networks}}

    def private_names(self, task: Task) -> frozenset[str]:
        """The output layer."""
        return task.head()

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """One phase that trains the model and the networks."""
        return (Phase(self.step, slots=("params", *self.networks)),)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its output layer, under all that is shared."""
        return (Phase(self.adapt_step, "onboard", part=self.private_names(ctx.task), epochs=self.onboard_epochs),)
