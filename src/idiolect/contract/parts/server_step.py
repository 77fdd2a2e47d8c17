"""A server step: the server goes further, or less far, than to the mean of what clients send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core import tree
from ...core.options import option
from ...core.sums import Sums
from ...core.tree import Slots, Tree
from ..context import ServerContext
from ..messages import Upload, Uploads
from ..method import Method
from ..slots import Slot, slot_of


@dataclass(frozen=True)
class ServerStep(Method):
    """A method whose server takes a step of its own length towards the participants' mean. Their papers weigh
    participants alike, for clients of equal size; here they weigh as the run says, unless `uniform`."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"uniform": True}}

    uniform: bool = option(False, help="weigh participants alike, as the paper does; false is the run's weighting")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, weighed as `uniform` says."""
        model = super().slots["params"]
        return {"params": replace(model, weigh="uniform") if self.uniform else model}

    @property
    def server_lr(self) -> float:
        """How far the server goes: 1 is to the mean."""
        return 1.0

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """x + server_lr (mean of y_i - x)."""
        mean = super().aggregate(ctx, server, sums, each)
        return step_towards(ctx, server, mean, self.server_lr)


def step_towards(ctx: ServerContext, server: Slots, mean: Slots, step_size: float) -> Slots:
    """The server's slots after a step from its models towards the `mean` slots, beyond them where `step_size` is above
    1; buffers, which no gradient moves, become the mean itself."""
    models = [slot_of("params", m) for m in range(len(ctx.tasks))]
    # Written as a mixture of models, so that a step size of 1 gives the mean to the bit.
    return {**mean, **{slot: tree.mix(mean[slot], server[slot], step_size) for slot in models}}


def update_of(upload: Upload, before: Mapping[str, Tensor]) -> Tree:
    """A client's model minus the server's, in double precision, in which small differences of models keep their length;
    zero where the client sent nothing.

    >>> sent = Upload({"params": {"w": torch.tensor([3.0, 9.0])}}, {"params": {"w": torch.tensor([True, False])}})
    >>> update_of(sent, {"w": torch.tensor([1.0, 1.0])})
    {'w': tensor([2., 0.], dtype=torch.float64)}
    """
    change, masks = difference(upload.slots["params"], before), upload.masks.get("params", {})
    return {n: torch.where(masks[n], leaf, 0.0) if n in masks else leaf for n, leaf in change.items()}


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """a - b, name by name, in double precision."""
    return tree.map(lambda x, y: x.to(torch.float64) - y.to(torch.float64), a, b)
