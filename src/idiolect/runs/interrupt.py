"""Ctrl-C and SIGTERM while rounds go on: the first lets the round end before it has its usual effect, the second has it
at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("idiolect")


class Interrupt:
    """A request to stop: whether a signal asked for it, and which one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Whether there was a request."""
        return self.signal is not None

    def pass_on(self) -> None:
        """Let the signal have its usual effect, as far as it came: `KeyboardInterrupt`, the end of the process, or
        whatever the program has arranged."""
        if self.signal is not None:
            signal.raise_signal(self.signal)


@contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the round; a second one takes effect at once.

    Whoever asks for this stops when there is a request, and then calls `pass_on`. An error after a request is not
    the work's (a signal to a group of processes ends the workers, too), so the signal takes its place. The handlers
    before are put back; a thread that is not the main one gets no signals and changes nothing.
    """
    request = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, frame: Any) -> None:
        if request():
            put_back()
            signal.raise_signal(number)
            return
        request.signal = number
        log.warning("stopping after this round; press Ctrl-C again to stop at once")

    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield request
    except Exception:
        put_back()
        request.pass_on()
        raise
    finally:
        put_back()
