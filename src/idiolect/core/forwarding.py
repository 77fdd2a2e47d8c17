"""What a process logs, said by another one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress


class Forward(logging.Handler):
    """Sends warnings, as text, to where they are said; nowhere once nobody listens."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a text."""
        with suppress(OSError):
            self.send(record.getMessage())
