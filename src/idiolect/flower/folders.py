"""The folders of a federation on this machine: where the server and each client keep their state."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import RunFolderError
from ..runs.store import Store
from .settings import Deployment

STATE_FILE = "state.sqlite"
"""The training state, of the server or of a client."""
MODEL_FILE = "model.sqlite"
"""What a client predicts with."""
BEFORE_ALL_ROUNDS = -(2**40)


def home() -> Path:
    """Where all federations keep their state: IDIOLECT_HOME, else ~/.idiolect."""
    return Path(os.environ.get("IDIOLECT_HOME") or "~/.idiolect").expanduser()


def server_folder(deployment: Deployment) -> Path:
    """Where the server keeps the state of a federation."""
    return home() / deployment.federation / "server"


def client_folder(deployment: Deployment, index: int) -> Path:
    """Where a client keeps its state in a federation, unless its SuperNode names another folder."""
    return home() / deployment.federation / f"client-{index}"


def write_facts(store: Store, facts: Mapping[str, Any]) -> None:
    """Write facts that belong to no round."""
    store.commit(BEFORE_ALL_ROUNDS, {}, {}, [], facts)


@contextmanager
def lock_folder(folder: Path, timeout: float) -> Iterator[None]:
    """Let one server at a time use a federation's folder.

    Args:
        folder: the server's folder; it is created if it is missing.
        timeout: seconds to wait for a server that is still shutting down.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    with (folder / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RunFolderError(
                        f"another server of this federation is using {folder}; stop its run first, as in: flwr stop"
                    ) from error
                time.sleep(0.2)
        yield
