"""Where what claims need lies: folders that are named after what they hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

CACHE = Path("results/reproductions")
"""Runs and tunings, which are not committed."""
RESULTS = "results"
"""The folder beside the claims with their results, which is."""


def digest(*parts: Any) -> str:
    """A short hash of plain values and of the number that is raised when this library's numbers change."""
    from .. import __numerics__

    text = json.dumps([*parts, __numerics__], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cache_of(cache: Path, is_quick: bool) -> Path:
    """Where runs and tunings lie; those of quick versions are kept apart."""
    return cache / "quick" if is_quick else cache
