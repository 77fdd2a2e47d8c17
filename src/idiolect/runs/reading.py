"""What the folder of a run says of itself: scores, clients, networks and code, without the data or the code."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, RunFolderError
from ..core.names import file_name, shorten, visible
from ..core.options import did_you_mean
from .folder import MODELS, STATE, SUMMARY, read_folder
from .identity import FACT
from .store import Store
from .summary import read_summary, table

if TYPE_CHECKING:
    import polars as pl
    from torch import nn

SHOWN = 5
"""How many clients' names a sentence lists."""


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

    def model(self, client: int | str, module: nn.Module | None = None, *, trust: bool = False) -> nn.Module:
        """A client's personal model of the selected round, from the folder alone, where the run kept them
        (`save_models=true`); `module` and `trust` are as for `load_model`.

        >>> import idiolect, torch
        >>> place = getfixture("tmp_path") / "run"
        >>> result = idiolect.run("fedrod", clients=5, rounds=1, save_models=True, out=place)
        >>> x = torch.rand(2, 1, 8, 8)
        >>> torch.equal(idiolect.read(place).model(3)(x), result.model(3)(x))
        True
        """
        from .model_card import load_model

        index = find_client(self.clients, client)
        path = self.folder / MODELS / name_model_file(index, self.clients[index])
        if not path.is_file():
            raise RunFolderError(
                f"{self.folder} keeps no models: it was run without save_models=true, or is not finished; open it as"
                f" idiolect.load({str(self.folder)!r}), whose model() makes them"
            )
        return load_model(path, module, trust=trust)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """One row per round, client, point, split and metric."""
        store = Store(self.folder / STATE, write=False, incomplete=True)
        try:
            return table(store.rows(), self.clients)
        finally:
            store.close()


def name_model_file(index: int, name: str) -> str:
    """The name of a client's file among the models of a run.

    >>> name_model_file(3, "ward 9")
    '0003-ward-9-e76226.safetensors'
    """
    return f"{index:04d}-{file_name(name)}.safetensors"


def find_client(names: Sequence[str], client: int | str) -> int:
    """A client's position among these names: a text is a name, a whole number a position."""
    if client in names:
        return list(names).index(str(client))
    if not isinstance(client, str):
        if client in range(len(names)):
            return operator.index(client)
        raise InputError(f"there is no client at position {client}; positions are 0 to {len(names) - 1}")
    there = f"There are {len(names)}: {', '.join(shorten(visible(name)) for name in names[:SHOWN])}"
    more = ", ..." if len(names) > SHOWN else ""
    by_position = f"; for the one at position {client}, write --position {client} (in Python the number {client})"
    raise InputError(
        f"no client is called {client!r}.{did_you_mean(client, names)} {there}{more}"
        f"{by_position if client.isdecimal() and int(client) < len(names) else ''}"
    )


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
    return RunRecord(
        folder,
        config,
        read_written(folder),
        tuple(identity.get("clients", ())),
        tuple(identity.get("unseen", ())),
        tuple(identity.get("networks", ())),
        dict(identity.get("code", {})),
    )


def read_written(folder: Path) -> dict[str, Any]:
    """The summary that a run wrote; empty where it has not been written up yet."""
    try:
        return read_summary((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{folder / SUMMARY} is damaged ({error}); write it again with: idiolect resume {folder}"
        ) from error
