"""The other worker of a cluster: it carries out whole tasks, such as runs, each in a process of its own and in a folder
of its own, whose files it sends to the driver now and then and at the end."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ...core.allocator import tune_allocator
from ...core.errors import DataError
from ...core.files import is_part, write_whole
from ...core.forwarding import Forward
from .connection import ADDRESS, describe_node
from .messages import Reply, guard
from .shipping import Shipped, unship

log = logging.getLogger("idiolect")

SNAPSHOT = 60.0
"""Seconds between copies of a folder that are sent to the driver; at most a twentieth of the time goes into them."""
SHARE = 20
POLL = 0.5
DATABASE, BESIDE, LOCK = ".sqlite", ("-wal", "-shm", "-journal"), "lock"
Files = dict[str, bytes]
Send = Callable[[Any], None]
Target = Callable[[Any, Path, Send], Any]
"""What a task does: (argument, folder, send) -> result; what it sends on its way reaches the driver."""


class Event(NamedTuple):
    """What an actor says of its task: `said` something, sent `files`, is `done` with a result, `failed` with an error,
    was `interrupted`, or `died`."""

    kind: str
    value: Any = None


class TaskActor:
    """Carries out one task at a time."""

    def __init__(self) -> None:
        self.node = describe_node()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])
        self.folder: Path | None = None

    def start(self, environment: Mapping[str, str], where: str) -> Reply:
        """Get ready: what the driver's environment says of data, and its working folder if it is here, too."""
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        os.environ.pop(ADDRESS, None)  # what runs here is to use this node alone
        with suppress(OSError):
            os.chdir(where)
        return Reply(self.node)

    def process(self) -> int:
        """The number of this process."""
        return os.getpid()

    def begin(self, shipped: Shipped, files: Files | None) -> Reply:
        """Begin a task in an empty folder, or one with these files."""
        result, error = guard(lambda: self._begin(shipped, files), self.node.name)
        return Reply(result, error)

    def _begin(self, shipped: Shipped, files: Files | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="idiolect-"))
        self.has_files = files is not None
        write_files(self.folder / "run", files or {})
        self.pipe, sender = self.context.Pipe(duplex=False)
        self.child = self.context.Process(target=work, args=(shipped, self.folder / "run", sender))
        self.child.start()
        sender.close()  # so that the end of the process ends the pipe
        self.next = time.monotonic() + SNAPSHOT

    def poll(self) -> list[Event]:
        """What has happened since the last time, or in the next moment."""
        events: list[Event] = []
        if self.pipe.poll(POLL):
            events.append(self._receive())
        while events and events[-1].kind == "said" and self.pipe.poll(0):
            events.append(self._receive())
        ended = bool(events) and events[-1].kind != "said"
        if self.has_files and (ended or (events and time.monotonic() > self.next)):
            began = time.monotonic()
            events.insert(len(events) - ended, Event("files", read_files(self.folder_of_run)))
            self.next = time.monotonic() + max(SNAPSHOT, SHARE * (time.monotonic() - began))
        if ended:
            self.child.join()
            shutil.rmtree(self.folder_of_run.parent, ignore_errors=True)
        return events

    @property
    def folder_of_run(self) -> Path:
        """Where the task writes."""
        assert self.folder is not None
        return self.folder / "run"

    def _receive(self) -> Event:
        try:
            event: Event = self.pipe.recv()
        except EOFError:
            self.child.join()
            return Event("died", self.child.exitcode)
        return event

    def interrupt(self) -> None:
        """Ask the task to stop after its round."""
        if self.child.pid is not None and self.child.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGINT)


def work(shipped: Shipped, folder: Path, pipe: Connection) -> None:
    """Carry out a task in its own process; what it says and how it ends go through the pipe."""
    send = lambda message: pipe.send(Event("said", message))  # noqa: E731
    log.addHandler(Forward(send))
    log.propagate = False
    tune_allocator()
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
    try:
        result, error = guard(lambda: carry_out(shipped, folder, send), describe_node().name)
        pipe.send(Event("done", result) if error is None else Event("failed", error))
    except BrokenPipeError:
        pass  # the actor is gone
    except KeyboardInterrupt:
        with suppress(OSError):
            pipe.send(Event("interrupted"))


def carry_out(shipped: Shipped, folder: Path, send: Send) -> Any:
    """What a task gives; where data are missing, which the driver has read, an error that says where they belong."""
    target, argument = unship(shipped)
    try:
        return target(argument, folder, send)
    except DataError as error:
        where = os.environ.get("IDIOLECT_DATA", "not set")
        error.add_note(
            f"each node reads the data itself: have the same files on all, where IDIOLECT_DATA says (there: {where});"
            " what is complete is kept, and the same command goes on"
        )
        raise


def read_files(folder: Path) -> Files:
    """The files of a folder; a database as it is between two changes, and last: others may say how far it is."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not is_part(path) and path.name != LOCK]
    kept = [path for path in paths if not path.name.endswith(BESIDE)]
    kept.sort(key=lambda path: path.suffix == DATABASE)
    files = {}
    for path in kept:
        with suppress(FileNotFoundError):
            name = path.relative_to(folder).as_posix()
            files[name] = copy_database(path) if path.suffix == DATABASE else path.read_bytes()
    return files


def copy_database(path: Path) -> bytes:
    """The bytes of a database that may be in use."""
    with tempfile.TemporaryDirectory(prefix="idiolect-") as place:
        copy = Path(place, "copy")
        known = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        with closing(known), closing(sqlite3.connect(copy)) as whole:
            known.backup(whole)
        return copy.read_bytes()


def write_files(folder: Path, files: Files) -> None:
    """Write files, each whole or not at all: databases first, and last a summary, which says that all is there."""
    order = sorted(files, key=lambda name: (not name.endswith(DATABASE), name == "summary.json"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in order:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for beside in BESIDE if path.suffix == DATABASE else ():
            path.with_name(path.name + beside).unlink(missing_ok=True)
        write_whole(path, lambda part, data=files[name]: part.write_bytes(data))  # type: ignore[misc]
