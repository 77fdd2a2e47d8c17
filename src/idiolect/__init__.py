"""Idiolect: personalized federated learning. Many clients share a model, and each speaks its own version of it."""

import idiolect.methods
import idiolect.wrappers  # noqa: F401  (the two imports fill the registry)

from .advise import advise
from .context import Context, Grad, ServerContext
from .data import Client, Federation
from .errors import IdiolectError, InputError
from .losses import Metric
from .method import Download, Method, Paper, Phase, Upload, Wrapper, register
from .options import option
from .run import Comparison, Config, Result, compare, load, load_model, resume, run
from .task import Batch, Task
from .tune import tune

__version__ = "0.1.0"
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
