"""Engines: ways to carry out the same clients' work. `make_engine` chooses one by name."""

from __future__ import annotations

from ..errors import UnknownNameError
from ..options import did_you_mean
from .loop import Engine, Loop
from .plan import Plan

ENGINES = {"loop": Loop}


def make_engine(name: str, plan: Plan) -> Engine:
    """The engine called `name`, ready to carry out a plan."""
    if name not in ENGINES:
        raise UnknownNameError(
            f"there is no engine {name!r}.{did_you_mean(name, ENGINES)} Known: {', '.join(ENGINES)}."
        )
    return ENGINES[name](plan)


__all__ = ["ENGINES", "Engine", "Loop", "Plan", "make_engine"]
