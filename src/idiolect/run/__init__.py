"""Runs: configuration, the round loop, results."""

from .api import load, resume, run
from .config import Config, configure
from .result import Result, load_model

__all__ = ["Config", "Result", "configure", "load", "load_model", "resume", "run"]
