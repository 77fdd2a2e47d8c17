"""A method: FedAvg with a server that goes part of the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from idiolect.contract import About, Method, Refuses, ServerContext, Slots, Sums, Uploads, option, tree


@dataclass(frozen=True)
class HalfStep(Method):
    """The server moves a part of the way from its model to the clients' mean.

    Run it: ``idiolect run half-step``.
    """

    about = About("FedAvg with a server that goes part of the way", kind="global")
    refuses = Refuses(other_networks="the server moves one model")
    identities = {"half-step(part=1)": "fedavg"}

    part: float = option(0.5, above=0.0, max=1.0, help="how much of the way")

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        mean = super().aggregate(ctx, server, sums, each)
        return {**mean, "params": tree.mix(mean["params"], server["params"], self.part)}
