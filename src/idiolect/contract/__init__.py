"""What an author of a method reads, and nothing else."""

from ..core import tree
from ..core.options import option
from .context import Context, Grad, ServerContext
from .method import Download, Method, Paper, Upload, Wrapper, methods, register
from .phase import Phase

__all__ = [
    "Context",
    "Download",
    "Grad",
    "Method",
    "Paper",
    "Phase",
    "ServerContext",
    "Upload",
    "Wrapper",
    "methods",
    "option",
    "register",
    "tree",
]
