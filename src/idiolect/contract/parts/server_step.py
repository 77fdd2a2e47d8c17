"""A server step: the server goes further, or less far, than to the mean of what clients send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...core import tree
from ...core.options import option
from ...core.sums import Sums
from ...core.tree import Slots
from ..context import ServerContext
from ..messages import Upload
from ..method import Method
from ..slots import Slot, slot_of


@dataclass(frozen=True)
class ServerStep(Method):
    """A method whose server weighs its participants alike, as its paper does, and then takes a step towards their
    mean."""

    uniform: bool = option(True, help="weigh participants alike, as in the paper; false is the run's weighting")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, weighed as `uniform` says."""
        model = super().slots["params"]
        return {"params": replace(model, weigh="uniform") if self.uniform else model}

    def server_rate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums]) -> float:
        """How far the server goes: 1 is to the mean."""
        return 1.0

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """x + rate (mean of y_i - x)."""
        mean = super().aggregate(ctx, server, sums, each)
        return step_towards(ctx, server, mean, self.server_rate(ctx, server, sums))


def step_towards(ctx: ServerContext, server: Slots, mean: Slots, rate: float) -> Slots:
    """The server's slots after a step from its models towards the `mean` slots, beyond them where `rate` exceeds 1;
    buffers, which no gradient moves, become the mean itself."""
    models = [slot_of("params", m) for m in range(len(ctx.tasks))]
    # Written as a mixture of models, so that rate 1 gives the mean to the bit.
    return {**mean, **{slot: tree.mix(mean[slot], server[slot], rate) for slot in models}}
