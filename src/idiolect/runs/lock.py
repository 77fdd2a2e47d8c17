"""One writer at a time: a lock on a folder, which ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ..core.errors import RunFolderError

LOCK = "lock"
PATIENCE = 1.0
"""Seconds to wait for a process that is just ending."""
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)

log = logging.getLogger("idiolect")


@contextmanager
def lock_folder(
    folder: Path | None, timeout: float = PATIENCE, advice: str = "wait for it to end, or stop it, and try again"
) -> Iterator[None]:
    """Keep other processes from writing into a folder, which is created if it is missing.

    Args:
        folder: what is locked; readers need no lock. None, for what stays in memory, locks nothing.
        timeout: seconds to wait for another process.
        advice: what to do if it takes longer.
    """
    if folder is None:
        yield
        return
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _acquire(path, timeout, advice)
    except OSError as error:
        raise RunFolderError(f"the folder {folder} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _acquire(path: Path, timeout: float, advice: str) -> TextIO:
    """The open file of a lock that is ours, with our name in it."""
    deadline = time.monotonic() + timeout
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
                return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read(200) or "another process"
                file.close()
                raise RunFolderError(f"{path.parent} is being written by {holder}; {advice}") from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning(
                "%s cannot be locked here (%s); make sure that no other process writes to it",
                path.parent,
                error.strerror,
            )
            return file
        file.close()


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether a file is still at its place: the process before removes its lock when it ends."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
