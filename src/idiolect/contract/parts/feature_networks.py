"""Networks on the features, between a shared body and a private output layer; they are averaged like the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...task.task import Task
from ..context import ClientContext
from ..phase import Phase
from .on_features import OnFeatures


@dataclass(frozen=True)
class FeatureNets(OnFeatures):
    """A method whose output layer is private, and whose clients share networks on the features beside the body."""

    def private_names(self, task: Task) -> frozenset[str]:
        """The output layer."""
        return task.head()

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its output layer, under all that is shared."""
        return (Phase(self.adapt_step, "onboard", part=self.private_names(ctx.task)),)
