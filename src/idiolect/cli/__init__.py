"""The command line: a file for every command, thin over the public functions."""

from .app import main

__all__ = ["main"]
