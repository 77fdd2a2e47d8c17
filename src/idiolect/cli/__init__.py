"""The command line: thin commands over `idiolect.run`, `idiolect.data` and the registries."""

from .app import main

__all__ = ["main"]
