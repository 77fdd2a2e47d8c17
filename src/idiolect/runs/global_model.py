"""The shared model itself, out of the server's slots: what `global` scores and what is exported as such."""

from __future__ import annotations

from ..core.tree import Slots
from ..engines import Plan


def find_global_model(plan: Plan, server: Slots, round: int) -> Slots | None:
    """The shared model itself in the server's slots, where there is one."""
    ctx = plan.server(round)
    return plan.method.global_model(ctx, plan.method.download(ctx, server, plan.data.seen).shared)


def explain_no_global_model(plan: Plan) -> str:
    """Why there is no shared model, in words."""
    return (
        f"{plan.method.name} has none here, since no client gets a whole model that is the same for all; some of it is "
        "private, or each client has its own"
    )
