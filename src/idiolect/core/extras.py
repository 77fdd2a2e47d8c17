"""Packages that are not always installed."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtraError


def import_extra(package: str, extra: str, what: str) -> Any:
    """A package of an extra, or one sentence that says who needs it and how to install it.

    >>> import_extra("yaml", "base", "a test needs").__name__
    'yaml'
    >>> import_extra("no_such_package", "none", "a test needs")
    Traceback (most recent call last):
    idiolect.core.errors.MissingExtraError: a test needs the package no_such_package: pip install idiolect[none]
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"{what} the package {package}: pip install idiolect[{extra}]") from error
