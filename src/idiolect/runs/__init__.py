"""One run: settings, set-up, the round loop, its store and its result."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import load, resume, run
    from .result import Result, load_model
    from .settings import Config, configure
else:
    from ..core.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__, {"api": "load resume run", "result": "Result load_model", "settings": "Config configure"}
    )

__all__ = ["Config", "Result", "configure", "load", "load_model", "resume", "run"]
