"""The folders of a federation on this machine: where the server and each client keep their state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..core.errors import RunFolderError
from ..core.files import home
from ..runs.lock import lock_folder
from ..runs.store import Store
from .settings import Deployment

STATE_FILE = "state.sqlite"
"""The training state, of the server or of a client."""
MODEL_FILE = "model.sqlite"
"""What a client predicts with."""
BEFORE_ALL_ROUNDS = -(2**40)


def server_folder(deployment: Deployment) -> Path:
    """Where the server keeps the state of a federation."""
    return home() / deployment.federation / "server"


def client_folder(deployment: Deployment, index: int) -> Path:
    """Where a client keeps its state in a federation, unless its SuperNode names another folder."""
    return home() / deployment.federation / f"client-{index}"


def make_private(folder: Path) -> None:
    """Make a folder, or one that exists, and the files in it readable by their owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink():
                path.chmod(0o600)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made readable by its owner only ({error.strerror}); it must belong to this user"
        ) from error


def write_facts(store: Store, facts: Mapping[str, Any]) -> None:
    """Write facts that belong to no round."""
    store.record(facts)


def lock_server(folder: Path, timeout: float) -> AbstractContextManager[None]:
    """Let one server at a time use a federation's folder, after some seconds for one that is still shutting down."""
    make_private(folder)
    return lock_folder(folder, timeout, "stop the run of the other server first, as in: flwr stop")
