"""Docstrings as Markdown, for the reference of all public names."""

from __future__ import annotations

from typing import Any

import griffe
from markup import from_docstring


class Formulas(griffe.Extension):
    """Formulas and names in docstrings, which are written for Sphinx."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring once it is read."""
        if obj.docstring:
            obj.docstring.value = from_docstring(obj.docstring.value)
