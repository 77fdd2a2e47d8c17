"""One run: settings, set-up, the round loop, its store and its result."""

from .api import load, resume, run
from .result import Result, load_model
from .settings import Config, configure

__all__ = ["Config", "Result", "configure", "load", "load_model", "resume", "run"]
