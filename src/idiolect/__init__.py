"""Idiolect: personalized federated learning. Many clients share a model, and each speaks its own version of it.

Everything is loaded on first use, so that importing the package costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import advise
    from .comparison import Comparison, compare
    from .contract import (
        Context,
        Download,
        Grad,
        Method,
        Paper,
        Phase,
        ServerContext,
        Upload,
        Wrapper,
        option,
        register,
    )
    from .core.errors import IdiolectError, InputError
    from .data import Client, Federation
    from .runs import Config, Result, load, load_model, resume, run
    from .task import Batch, Metric, Task
    from .tuning import tune

__version__ = "0.1.0"

_NAMES = {
    "advice": ("advise",),
    "comparison": ("Comparison", "compare"),
    "contract": (
        "Context",
        "Download",
        "Grad",
        "Method",
        "Paper",
        "Phase",
        "ServerContext",
        "Upload",
        "Wrapper",
        "option",
        "register",
    ),
    "core.errors": ("IdiolectError", "InputError"),
    "data": ("Client", "Federation"),
    "runs": ("Config", "Result", "load", "load_model", "resume", "run"),
    "task": ("Batch", "Metric", "Task"),
    "tuning": ("tune",),
}
_HOME = {name: room for room, names in _NAMES.items() for name in names}
_ROOMS = (
    "advice", "analysis", "cli", "comparison", "contract", "core", "data", "engines", "flower", "kernels", "methods",
    "models", "report", "runs", "task", "testing", "tuning",
)  # fmt: skip

__all__ = [
    "Batch",
    "Client",
    "Comparison",
    "Config",
    "Context",
    "Download",
    "Federation",
    "Grad",
    "IdiolectError",
    "InputError",
    "Method",
    "Metric",
    "Paper",
    "Phase",
    "Result",
    "ServerContext",
    "Task",
    "Upload",
    "Wrapper",
    "advise",
    "compare",
    "load",
    "load_model",
    "option",
    "register",
    "resume",
    "run",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_ROOMS})
