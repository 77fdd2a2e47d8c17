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


def test_the_second_takes_effect_at_once():
    with pytest.raises(KeyboardInterrupt), catch_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_an_error_after_a_request_is_the_signals():
    """A signal to a whole group of processes ends the workers, too: a tuning would write that down as a failed trial."""
    with pytest.raises(KeyboardInterrupt), catch_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("a worker process ended unexpectedly")


def test_an_error_without_a_request_stays_one():
    with pytest.raises(ValueError, match="unexpectedly"), catch_interrupt():
        raise ValueError("a worker process ended unexpectedly")
