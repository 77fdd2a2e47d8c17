"""Ctrl-C and SIGTERM: the first is a request, the second takes effect, and an error after a request is no error."""

import os
import signal

import pytest

from idiolect.runs.interrupt import catch_interrupt


def test_the_first_signal_is_a_request_and_handlers_are_put_back(caplog):
    before = signal.getsignal(signal.SIGINT)
    with catch_interrupt() as request:
        assert not request()
        os.kill(os.getpid(), signal.SIGINT)
        assert request()
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping after this round" in caplog.text


def ask(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def work(requests: int) -> None:
    """A piece of work that is asked to stop so often, and then fails."""
    with catch_interrupt():
        ask(requests)
        raise ValueError("a worker process ended unexpectedly")


def test_the_second_takes_effect_at_once():
    with pytest.raises(KeyboardInterrupt), catch_interrupt():
        ask(2)


def test_an_error_after_a_request_is_the_signals():
    """A signal to a group of processes ends the workers, too: a tuning would write that down as a failed trial."""
    with pytest.raises(KeyboardInterrupt):
        work(requests=1)


def test_an_error_without_a_request_stays_one():
    with pytest.raises(ValueError, match="unexpectedly"):
        work(requests=0)
