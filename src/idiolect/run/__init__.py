"""Runs: configuration, the round loop, results."""

from .api import load, resume, run
from .compare import compare
from .config import Config, configure
from .leaderboard import Comparison
from .result import Result, load_model

__all__ = ["Comparison", "Config", "Result", "compare", "configure", "load", "load_model", "resume", "run"]
