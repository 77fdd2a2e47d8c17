"""Durable state in one SQLite file: the server's slots, every client's slots, metrics and facts about the run.
One transaction commits a round. Each entry keeps at most two versions: the newest, and the one that belongs to
the selected round, from which its models are built."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import codec, tree
from ..core.errors import InputError, RunFolderError
from ..core.tree import Slots
from .facts import NAMES, Cost, RunFacts, read_facts

VERSION = 2
SERVER = -1
CACHE_MB = 256
# Large pages, and rows apart from their key: values of a megabyte are then read and written at the speed of files.
_SCHEMA = """
PRAGMA page_size=32768;
CREATE TABLE state (owner INTEGER, slot TEXT, round INTEGER, data BLOB, PRIMARY KEY (owner, slot, round));
CREATE TABLE metrics (
    round INTEGER, client INTEGER, cohort TEXT, point TEXT, split TEXT, metric TEXT, value REAL, samples INTEGER);
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
PRAGMA user_version=2;
"""
_END = 2**40
_COST = "cost {}"
_LATEST = "SELECT max(round) FROM state n WHERE n.owner=s.owner AND n.slot=s.slot AND n.round<=?"
Row = tuple[int, int, str, str, str, str, float, int]
COLUMNS = ("round", "client", "cohort", "point", "split", "metric", "value", "samples")


class Store:
    """The state of one run; `path=None` keeps it in memory. Of the clients' newest slots, those used last are kept in
    memory as well, up to `cache_mb` megabytes. Slots are returned on `device`.

    >>> from dataclasses import replace
    >>> import torch
    >>> store = Store(None)
    >>> store.record({"engine": "loop"})
    >>> clients = {7: {"own": {"v": torch.zeros(1)}}}
    >>> store.commit(0, {"params": {"w": torch.ones(2)}}, clients, [], replace(store.facts, next_round=1))
    >>> store.server(), store.facts.engine, store.facts.next_round
    ({'params': {'w': tensor([1., 1.])}}, 'loop', 1)
    """

    def __init__(self, path: Path | None, create: bool = True, cache_mb: int = CACHE_MB, device: str = "cpu") -> None:
        self.path, self.device = path, device
        self._cache = _Cache(0 if path is None else cache_mb << 20)
        try:
            if path is not None and not path.exists():
                if not create:
                    raise RunFolderError(f"{path} does not exist, so there is no run to open")
                _create(path)
            self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
            if path is None:
                self._db.executescript(_SCHEMA)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(f"{path} cannot be used as the store of a run: {error}") from error
        if version != VERSION:
            raise RunFolderError(
                f"{path} is a store of version {version}, and this Idiolect reads and writes version {VERSION}; use "
                f"another folder, or the Idiolect that wrote it"
            )

    @property
    def facts(self) -> RunFacts:
        """The facts of the run."""
        wanted = f"SELECT key, value FROM facts WHERE key IN ({', '.join('?' * len(NAMES))})"
        try:
            return read_facts(dict(self._query(wanted, NAMES)))
        except ValueError as error:
            raise RunFolderError(f"the store {self.path} is damaged: {error}") from error

    def cost(self, round: int) -> Cost | None:
        """What the run had spent after a round, counted from 1; None where that was not recorded."""
        spent = self.fact(_COST.format(round))
        return None if spent is None else Cost(**spent)

    def fact(self, key: str, default: Any = None) -> Any:
        """A value that was recorded under a name of one's own, such as those of a deployment."""
        row = self._query("SELECT value FROM facts WHERE key=?", (key,))
        return json.loads(row[0][0]) if row else default

    def record(self, facts: Mapping[str, Any]) -> None:
        """Write facts that belong to no round, such as those that are known before the first."""
        try:
            with self._transaction():
                self._write_facts(facts)
        except sqlite3.Error as error:
            raise RunFolderError(f"{', '.join(facts)} could not be saved in {self.path}: {error}") from error

    def server(self, at: int | None = None) -> Slots:
        """The server's slots, the newest or those of an earlier round that is still kept."""
        return {slot: self._decode(data)[slot] for slot, data in self._versions(SERVER, at)}

    def clients(self, ids: Sequence[int], at: int | None = None) -> dict[int, Slots | None]:
        """The slots of some clients; None for one that has never trained."""
        stored: dict[int, bytes | None] = {i: self._cache.get(i) if at is None else None for i in ids}
        missing = json.dumps([i for i, data in stored.items() if data is None])
        query = f"SELECT owner, data FROM state s WHERE owner IN (SELECT value FROM json_each(?)) AND round=({_LATEST})"
        for index, data in self._query(query, (missing, _END if at is None else at)):
            stored[index] = data
            if at is None:
                self._cache.put(index, data)
        return {i: None if data is None else self._decode(data) for i, data in stored.items()}

    def _decode(self, data: bytes) -> Slots:
        try:
            return tree.to_device(codec.decode(data)[0], self.device)
        except InputError as error:
            raise RunFolderError(f"the store is damaged: {error}") from error

    def _versions(self, owner: int, at: int | None) -> list[tuple[str, bytes]]:
        limit = _END if at is None else at
        return self._query(f"SELECT slot, data FROM state s WHERE owner=? AND round=({_LATEST})", (owner, limit))

    def commit(
        self,
        round: int,
        server: Mapping[str, Any],
        clients: Mapping[int, Slots],
        rows: Iterable[Row],
        facts: RunFacts | Mapping[str, Any],
    ) -> None:
        """Write a round in one transaction: changed server slots, clients' slots, metrics and facts.

        The facts of the run also tell what it had spent after this round; other facts are written by name.
        """
        before = self.facts
        if isinstance(facts, RunFacts):
            changed = facts.changes(before) | {_COST.format(round + 1): facts.cost._asdict()}
        else:
            changed = dict(facts)
        selected = changed.get("selected", before.selected)
        entries = [(SERVER, slot, codec.encode({slot: leaves})) for slot, leaves in server.items()]
        entries += [(index, "", codec.encode(slots)) for index, slots in clients.items()]
        stale = (
            "DELETE FROM state WHERE owner=? AND slot=? AND round<? AND round IS NOT "
            "(SELECT max(round) FROM state WHERE owner=? AND slot=? AND round<=?)"
        )
        kept = -_END if selected is None else min(selected, round)
        try:
            with self._transaction():
                for owner, slot, data in entries:
                    self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", (owner, slot, round, data))
                    self._db.execute(stale, (owner, slot, round, owner, slot, kept))
                self._db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                self._write_facts(changed)
        except sqlite3.Error as error:
            raise RunFolderError(
                f"round {round + 1} could not be saved in {self.path}: {error}; the rounds before it are safe, "
                f"so free some space or fix the permissions and resume"
            ) from error
        for index, _, data in entries:
            if index != SERVER:
                self._cache.put(index, data)

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        written = [(name, json.dumps(value)) for name, value in facts.items()]
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", written)

    def rows(self) -> list[Row]:
        """All metrics."""
        return self._query(f"SELECT {', '.join(COLUMNS)} FROM metrics ORDER BY rowid", ())

    def visited(self) -> frozenset[int]:
        """The clients that have state."""
        return frozenset(owner for (owner,) in self._query("SELECT DISTINCT owner FROM state WHERE owner>=0", ()))

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def _query(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._db.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise RunFolderError(f"the store {self.path} cannot be read: {error}") from error

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


def _create(path: Path) -> None:
    """Make an empty store beside its place and move it there, so that no half-made one is ever seen."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    db = sqlite3.connect(part)
    db.executescript(_SCHEMA)
    db.close()
    part.replace(path)


class _Cache:
    """The values used last, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.values: OrderedDict[int, bytes] = OrderedDict()

    def get(self, key: int) -> bytes | None:
        """A value, which then counts as used last."""
        if key in self.values:
            self.values.move_to_end(key)
        return self.values.get(key)

    def put(self, key: int, data: bytes) -> None:
        """Keep a value, and drop the oldest while there is too much."""
        self.size += len(data) - len(self.values.pop(key, b""))
        self.values[key] = data
        while self.size > self.limit:
            _, dropped = self.values.popitem(last=False)
            self.size -= len(dropped)


class _Transaction:
    """All or nothing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.db.execute("COMMIT" if error is None else "ROLLBACK")
