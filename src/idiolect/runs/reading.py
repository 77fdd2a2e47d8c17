"""What the folder of a run says of itself: scores, clients, networks and code, without the data or the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import RunFolderError
from .folder import STATE, SUMMARY, read_folder
from .identity import FACT
from .store import Store
from .summary import read_summary, table

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it.

    Attributes:
        folder: the run's folder.
        config: its settings; what was given in Python is marked.
        summary: the numbers of a table; empty where the run has not been written up yet.
        clients: the clients' names, in order; `unseen` are those that never train.
        networks: for each network, the shapes of its parameters, buffers and constants by name.
        code: fingerprints of the code of method, model, loss, metrics and schedule.
    """

    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    clients: Sequence[str]
    unseen: Sequence[str]
    networks: Sequence[Mapping[str, Sequence[int]]]
    code: Mapping[str, str]

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric."""
        store = Store(self.folder / STATE, write=False, incomplete=True)
        try:
            return table(store.rows(), self.clients)
        finally:
            store.close()


def read(folder: str | Path) -> RunRecord:
    """Read what the folder of a run says of itself. Nothing is loaded or run: data, model and code need not be there.

    >>> import idiolect
    >>> place = getfixture("tmp_path") / "run"
    >>> _ = idiolect.run("fedavg", {"a": ([[0.0]] * 9, [0, 1, 0] * 3)}, model="linear", rounds=1, out=place)
    >>> record = read(place)
    >>> record.clients, record.networks[0], record.config["data"]
    (('a',), {'fc1.weight': [2, 1], 'fc1.bias': [2]}, '(given in Python)')
    """
    folder = Path(folder)
    config = read_folder(folder)
    if not (folder / STATE).is_file():
        raise RunFolderError(f"{folder} holds a run that has not begun; continue it with: idiolect resume {folder}")
    store = Store(folder / STATE, write=False, incomplete=True)
    try:
        identity = dict(store.fact(FACT) or {})
    finally:
        store.close()
    try:
        summary = read_summary((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        summary = {}
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{folder / SUMMARY} is damaged ({error}); write it again with: idiolect resume {folder}"
        ) from error
    return RunRecord(
        folder,
        config,
        summary,
        tuple(identity.get("clients", ())),
        tuple(identity.get("unseen", ())),
        tuple(identity.get("networks", ())),
        dict(identity.get("code", {})),
    )
