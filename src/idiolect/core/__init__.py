"""What everything stands on: errors, trees, randomness, options, expressions, files. Nothing here knows of learning."""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    from .lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__, {})
