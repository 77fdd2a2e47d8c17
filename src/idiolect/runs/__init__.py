"""One run: settings, set-up, the round loop, its store and its result."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import load, resume, run
    from .model_card import load_model, read_card
    from .reading import RunRecord, read
    from .result import Result
    from .settings import Config, configure
else:
    from ..core.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "api": "load resume run",
            "model_card": "load_model read_card",
            "reading": "RunRecord read",
            "result": "Result",
            "settings": "Config configure",
        },
    )

__all__ = ["Config", "Result", "RunRecord", "configure", "load", "load_model", "read", "read_card", "resume", "run"]
