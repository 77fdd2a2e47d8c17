"""Several runs at a time, each in a process of its own. The parent only listens: a run that fails, an interrupt, or
the parent's own end leave every round that was committed, and a resume goes on from there."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..core.allocator import tune_allocator
from ..core.errors import IdiolectError, InputError, TrainingError
from ..core.forwarding import Forward
from ..runs.api import carry_out
from ..runs.interrupt import Interrupt, catch_interrupt
from ..runs.progress import Reporter
from ..runs.round_loop import Progress
from ..runs.settings import Config
from ..runs.setup import make_plan

log = logging.getLogger("idiolect")


GUARD = "under if __name__ == '__main__'"


def require_guard(jobs: int) -> None:
    """Raise `InputError` in a process that a comparison started and that reads the user's script before anything."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(f"with jobs={jobs} every process reads your script first; put the comparison {GUARD}")


@dataclass(frozen=True)
class Job:
    """One run: its label, its configuration, its folder and the round that it starts from."""

    label: str
    config: Config
    folder: Path | None
    first: int


@dataclass(frozen=True)
class Done:
    """The last message of a run: its summary, or None if it was interrupted."""

    summary: dict[str, Any] | None


class ProcessRunner:
    """Carries out jobs, each in a process of its own, at most `limit` at a time."""

    def __init__(self, jobs: Sequence[Job], limit: int, reporter: Reporter) -> None:
        self.waiting, self.limit, self.reporter = list(jobs), limit, reporter
        self.running: dict[Connection, tuple[Job, BaseProcess]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.warnings: set[str] = set()
        self.is_stopping: Callable[[], bool] = lambda: False
        # A fork server imports everything once; its children start at once and inherit no threads.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])

    def run(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """The summaries by label; and, by method, why some learned nothing. The first Ctrl-C or SIGTERM lets every run
        finish its round and then takes effect."""
        wanted, passed_on, request = list(self.waiting), False, Interrupt()
        try:
            with catch_interrupt() as request:
                self.is_stopping = request
                while self.waiting or self.running:
                    if self.is_stopping() and not passed_on:
                        passed_on = True
                        self.waiting.clear()
                        self.interrupt()
                    while self.waiting and len(self.running) < self.limit:
                        self.start(self.waiting.pop(0))
                    for pipe in wait(list(self.running), timeout=0.2):
                        assert isinstance(pipe, Connection)
                        self.listen(pipe)
        finally:
            self.stop()
        request.pass_on()
        if any(job.label not in self.summaries and job.config.method not in self.failed for job in wanted):
            raise KeyboardInterrupt
        return self.summaries, self.failed

    def start(self, job: Job) -> None:
        """Start a job."""
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(job, sender), name=job.label)
        process.start()
        sender.close()  # so that the end of the process ends the pipe
        self.running[receiver] = (job, process)
        self.reporter.start(job.label, job.config.rounds, job.first)

    def listen(self, pipe: Connection) -> None:
        """Take one message of a run."""
        job, process = self.running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            if not self.is_stopping():
                raise IdiolectError(
                    f"the process of {job.label} ended with exit code {process.exitcode}; was there enough memory, and"
                    f" is the call {GUARD}, where it is in a script? What was committed is safe and can be continued"
                ) from None
            message = Done(None)  # it was interrupted before it could begin
        if isinstance(message, Progress):
            self.reporter.step(job.label, message)
        elif isinstance(message, Done):
            process.join()
            del self.running[pipe]
            pipe.close()
            if message.summary is not None:
                self.summaries[job.label] = message.summary
                self.reporter.end(job.label, message.summary)
        elif isinstance(message, TrainingError):
            self.fail(pipe, str(message))
        elif isinstance(message, Exception):
            raise message
        elif message not in self.warnings:
            self.warnings.add(message)
            log.warning("%s", message)

    def fail(self, pipe: Connection, reason: str) -> None:
        """Note that a run learned nothing, and start no other run of its method."""
        job, process = self.running.pop(pipe)
        process.join()
        pipe.close()
        self.failed[job.config.method] = reason
        self.waiting = [other for other in self.waiting if other.config.method != job.config.method]
        log.warning("%s: %s", job.label, reason)
        self.reporter.fail(job.label, reason)

    def interrupt(self) -> None:
        """Ask all runs to stop after their round; asked twice, they stop at once."""
        for _, process in self.running.values():
            if process.pid is not None and process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)

    def stop(self) -> None:
        """End what is still running; without a listener a run ends after its round at the latest."""
        self.interrupt()
        for pipe in self.running:
            pipe.close()
        for _, process in self.running.values():
            process.join()


def work(job: Job, pipe: Connection) -> None:
    """Carry out one job in its own process; progress, warnings and the end go through the pipe."""
    os.setpgrp()  # Ctrl-C in the terminal reaches the parent alone, which passes it on
    log.addHandler(Forward(pipe.send))
    log.propagate = False
    tune_allocator()
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
    try:
        result = carry_out(make_plan(job.config, {}), job.config, job.folder, pipe.send)
        summary = result.summary if result.complete else None
        result.store.close()
        pipe.send(Done(summary))
    except BrokenPipeError:
        pass  # the parent is gone; what was committed stays
    except KeyboardInterrupt:
        with suppress(OSError):
            pipe.send(Done(None))
    except Exception as error:
        with suppress(OSError):
            pipe.send(error)
