"""Engines: ways to carry out the same clients' work, chosen by an expression such as `workers(count=2)`."""

from .choice import AutoChoice, engines, make_engine, resolve
from .loop import Engine, Loop
from .plan import Plan
from .processes import Workers

__all__ = ["AutoChoice", "Engine", "Loop", "Plan", "Workers", "engines", "make_engine", "resolve"]
