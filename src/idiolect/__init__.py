"""Idiolect: personalized federated learning. Many clients share a model, and each speaks its own version of it.

Everything is loaded on first use, so that importing the package costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import advice as advice
    from . import analysis as analysis
    from . import cli as cli
    from . import comparison as comparison
    from . import contract as contract
    from . import core as core
    from . import data as data
    from . import engines as engines
    from . import flower as flower
    from . import kernels as kernels
    from . import methods as methods
    from . import models as models
    from . import report as report
    from . import reproductions as reproductions
    from . import runs as runs
    from . import task as task
    from . import testing as testing
    from . import tuning as tuning
    from .advice import advise
    from .comparison import Comparison, compare
    from .contract import Method, Wrapper, option, register
    from .core.errors import IdiolectError, InputError
    from .data import Client, Federation
    from .runs import Config, Result, load, load_model, read, read_card, resume, run
    from .task import Batch, Metric, Task
    from .tuning import compare_tuned, tune
else:
    from .core.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "advice": "advise",
            "comparison": "Comparison compare",
            "contract": "Method Wrapper option register",
            "core.errors": "IdiolectError InputError",
            "data": "Client Federation",
            "runs": "Config Result load load_model read read_card resume run",
            "task": "Batch Metric Task",
            "tuning": "compare_tuned tune",
        },
    )

__version__ = "0.2.0"
__numerics__ = 5  # raised whenever the same run gives other numbers than before
__all__ = [
    "Batch",
    "Client",
    "Comparison",
    "Config",
    "Federation",
    "IdiolectError",
    "InputError",
    "Method",
    "Metric",
    "Result",
    "Task",
    "Wrapper",
    "advise",
    "compare",
    "compare_tuned",
    "load",
    "load_model",
    "option",
    "read",
    "read_card",
    "register",
    "resume",
    "run",
    "tune",
]
