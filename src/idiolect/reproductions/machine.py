"""On what a result was computed: equal descriptions of two machines mean that their numbers may be equal to the bit."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NUMERIC = ("torch", "numpy", "numba", "scipy")
"""The packages on whose versions the last bits of results depend."""


def describe_machine() -> dict[str, str]:
    """The processor, the system, Python and the packages that compute."""
    return {"processor": processor(), "system": platform.system(), "python": platform.python_version()} | {
        name: find_version(name) for name in NUMERIC
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def find_version(package: str) -> str:
    """A package's version; `none` where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
