"""One run: settings, set-up, the round loop, its store and its result."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import load, resume, run
    from .reading import RunRecord, read
    from .result import Result, load_model
    from .settings import Config, configure
else:
    from ..core.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "api": "load resume run",
            "reading": "RunRecord read",
            "result": "Result load_model",
            "settings": "Config configure",
        },
    )

__all__ = ["Config", "Result", "RunRecord", "configure", "load", "load_model", "read", "resume", "run"]
