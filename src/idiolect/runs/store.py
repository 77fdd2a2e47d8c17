"""Durable state in one SQLite file: the server's slots, every client's slots, metrics and facts about the run.
One transaction commits a round. Each entry keeps at most two versions: the newest, and the one that belongs to
the selected round, from which its models are built.

Damage is noticed: every state and every round's metrics have a checksum, and the small tables that list them,
`entries`, `rounds` and `facts`, have a seal in common, which is compared when a store is opened."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..core import codec, tree
from ..core.checksums import checksum, combine, seal
from ..core.errors import InputError, RunFolderError
from ..core.tree import Slots
from .database import Database
from .facts import NAMES, Cost, RunFacts, read_facts
from .mark import compare_with_mark, read_mark, write_mark

VERSION = 3
SERVER = -1
BESIDE = -2
"""Whose values are those that belong to no round."""
CACHE_MB = 256
# Large pages, and states apart from their keys: values of a megabyte are then read and written at the speed of files.
_SCHEMA = f"""
PRAGMA page_size=32768;
CREATE TABLE state (id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE entries (
    owner INTEGER, slot TEXT, round INTEGER, id INTEGER, checksum INTEGER, PRIMARY KEY (owner, slot, round)
) WITHOUT ROWID;
CREATE TABLE metrics (
    round INTEGER, client INTEGER, cohort TEXT, point TEXT, split TEXT, metric TEXT, value REAL, samples INTEGER,
    UNIQUE (round, client, cohort, point, split, metric));
CREATE TABLE rounds (round INTEGER PRIMARY KEY, count INTEGER, checksum INTEGER);
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
INSERT INTO facts VALUES ('seal', '0');
PRAGMA user_version={VERSION};
"""
_SEAL = "seal"
_SEALED = {
    "entries": "SELECT owner, slot, round, id, checksum FROM entries",
    "rounds": "SELECT round, count, checksum FROM rounds",
    "facts": f"SELECT key, value FROM facts WHERE key IS NOT '{_SEAL}'",
}
_END = 2**40
_COST = "cost {}"
_LATEST = "SELECT max(round) FROM entries n WHERE n.owner=e.owner AND n.slot=e.slot AND n.round<=?"
_STATES = (
    "SELECT e.owner, e.slot, e.round, e.checksum, s.data FROM entries e LEFT JOIN state s ON s.id=e.id "
    f"WHERE e.owner {{}} AND e.round=({_LATEST})"
)
Row = tuple[int, int, str, str, str, str, float, int]
COLUMNS = ("round", "client", "cohort", "point", "split", "metric", "value", "samples")


class Store:
    """The state of one run; `path=None` keeps it in memory. Of the clients' newest slots, those used last are kept in
    memory as well, up to `cache_mb` megabytes. Slots are returned on `device`. A reader refuses a store whose newest
    rounds were lost, unless it may be `incomplete`.

    >>> from dataclasses import replace
    >>> import torch
    >>> store = Store(None)
    >>> store.record({"engine": "loop"})
    >>> clients = {7: {"own": {"v": torch.zeros(1)}}}
    >>> store.commit(0, {"params": {"w": torch.ones(2)}}, clients, [], replace(store.facts, next_round=1))
    >>> store.server(), store.facts.engine, store.facts.next_round
    ({'params': {'w': tensor([1., 1.])}}, 'loop', 1)
    """

    def __init__(
        self,
        path: Path | None,
        write: bool = True,
        cache_mb: int = CACHE_MB,
        device: str = "cpu",
        incomplete: bool = False,
    ) -> None:
        self.path, self.device, self.write = path, device, write
        self._cache = _Cache(0 if path is None else cache_mb << 20)
        marked = None if path is None else read_mark(path)  # before the store, which may go on meanwhile
        self._db = Database(path, _SCHEMA, write)
        if self._db.version != VERSION:
            raise RunFolderError(
                f"{path} is a store of version {self._db.version}, and this Idiolect reads and writes version "
                f"{VERSION}; use another folder, or the Idiolect that wrote it"
            )
        if path is not None:
            self._check_seal()
        if path is not None and not incomplete:
            compare_with_mark(path, marked, self.facts.next_round, write)

    @property
    def facts(self) -> RunFacts:
        """The facts of the run."""
        wanted = f"SELECT key, value FROM facts WHERE key IN ({', '.join('?' * len(NAMES))})"
        try:
            return read_facts(dict(self._db.query(wanted, NAMES)))
        except (ValueError, TypeError) as error:
            raise self._damaged(f"its facts cannot be read ({error})") from error

    def cost(self, round: int) -> Cost | None:
        """What the run had spent after a round, counted from 1; None where that was not recorded."""
        spent = self.fact(_COST.format(round))
        return None if spent is None else Cost(**spent)

    def fact(self, key: str, default: Any = None) -> Any:
        """A value that was recorded under a name of one's own, such as those of a deployment."""
        row = self._db.query("SELECT value FROM facts WHERE key=?", (key,))
        return json.loads(row[0][0]) if row else default

    def record(self, facts: Mapping[str, Any]) -> None:
        """Write facts that belong to no round, such as those that are known before the first."""
        try:
            with self._db.transaction():
                self._change_seal(self._write_facts(facts))
        except sqlite3.Error as error:
            raise RunFolderError(f"{', '.join(facts)} could not be saved in {self.path}: {error}") from error

    def server(self, at: int | None = None) -> Slots:
        """The server's slots, the newest or those of an earlier round that is still kept."""
        stored = self._states("= ?", SERVER, at)
        return {slot: self._decode(data)[slot] for _, slot, data in stored}

    def clients(self, ids: Sequence[int], at: int | None = None) -> dict[int, Slots | None]:
        """The slots of some clients; None for one that has never trained."""
        stored: dict[int, bytes | None] = {i: self._cache.get(i) if at is None else None for i in ids}
        missing = json.dumps([i for i, data in stored.items() if data is None])
        for index, _, data in self._states("IN (SELECT value FROM json_each(?))", missing, at):
            stored[index] = data
            if at is None:
                self._cache.put(index, data)
        return {i: None if data is None else self._decode(data) for i, data in stored.items()}

    def keep(self, values: Iterable[tuple[str, Slots]], facts: Mapping[str, Any]) -> None:
        """Write values that belong to no round, each under a name, and facts about them, in one transaction."""
        try:
            with self._db.transaction():
                seals = [self._write_state(BESIDE, name, 0, codec.encode(slots), 0) for name, slots in values]
                self._change_seal(*seals, self._write_facts(facts))
        except sqlite3.Error as error:
            raise RunFolderError(f"{', '.join(facts)} could not be saved in {self.path}: {error}") from error

    def kept(self, name: str) -> Slots | None:
        """The values that were written under a name; None where there are none."""
        found = self._states("= ? AND e.slot = ?", (BESIDE, name), None)
        return self._decode(found[0][2]) if found else None

    def round_of(self, client: int, at: int) -> int | None:
        """The round of the slots that `clients` gives for one client; None where it has none."""
        row = self._db.query("SELECT max(round) FROM entries WHERE owner=? AND round<=?", (client, at))
        return None if row[0][0] is None else int(row[0][0])

    def _states(self, owners: str, values: Any, at: int | None) -> list[tuple[int, str, bytes]]:
        """The states of some owners, newest or of an earlier round, whose checksums are right."""
        values = values if isinstance(values, tuple) else (values,)
        found = self._db.query(_STATES.format(owners), (*values, _END if at is None else at))
        for owner, slot, round, expected, data in found:
            if not isinstance(data, bytes) or checksum(data, owner, slot, round) != expected:
                whose = {SERVER: f"{slot} of the server", BESIDE: slot}.get(owner, f"the state of client {owner}")
                raise self._damaged(f"{whose}, saved in round {round + 1}, is not what was written")
        return [(owner, slot, data) for owner, slot, _, _, data in found]

    def _decode(self, data: bytes) -> Slots:
        try:
            return tree.to_device(codec.decode(data)[0], self.device)
        except InputError as error:
            raise self._damaged(str(error)) from error

    def commit(
        self,
        round: int,
        server: Mapping[str, Any],
        clients: Mapping[int, Slots],
        rows: Iterable[Row],
        facts: RunFacts | Mapping[str, Any],
    ) -> None:
        """Write a round in one transaction: changed server slots, clients' slots, metrics and facts.

        The facts of the run also tell what it had spent after this round, and it must be the next one; other facts
        are written by name, and a round may be written again.
        """
        entries = [(SERVER, slot, codec.encode({slot: leaves})) for slot, leaves in server.items()]
        entries += [(index, "", codec.encode(slots)) for index, slots in clients.items()]
        try:
            with self._db.transaction():
                before = self.facts
                if isinstance(facts, RunFacts):
                    self._require_next(round, before)
                    changed = facts.changes(before) | {_COST.format(round + 1): facts.cost._asdict()}
                else:
                    changed = dict(facts)
                selected = changed.get("selected", before.selected)
                needed = -_END if selected is None else min(selected, round)
                seals = [self._write_state(owner, slot, round, data, needed) for owner, slot, data in entries]
                self._change_seal(*seals, self._write_rows(round, list(rows)), self._write_facts(changed))
            if isinstance(facts, RunFacts) and facts.next_round is not None and self.path is not None:
                write_mark(self.path, facts.next_round)
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(
                f"round {round + 1} could not be saved in {self.path}: {error}; the rounds before it are safe, "
                f"so free some space or fix the permissions and resume"
            ) from error
        for index, _, data in entries:
            if index != SERVER:
                self._cache.put(index, data)

    def _require_next(self, round: int, before: RunFacts) -> None:
        if before.next_round is not None and before.next_round != round:
            raise RunFolderError(
                f"round {round + 1} cannot be saved in {self.path}, where round {before.next_round + 1} is the next: "
                f"another process has gone on with this run; let only one of them write"
            )

    def _write_state(self, owner: int, slot: str, round: int, data: bytes, needed: int) -> int:
        """Write a state, delete versions that nobody needs any more, and return what changes in the seal."""
        known = self._db.query(
            "SELECT round, id, checksum FROM entries WHERE owner=? AND slot=? AND round<=?", (owner, slot, round)
        )
        kept = max((at for at in (round, *(at for at, _, _ in known)) if at <= needed), default=None)
        change = 0
        for at, id, code in known:
            if at == round or at != kept:
                self._db.execute("DELETE FROM state WHERE id=?", (id,))
                self._db.execute("DELETE FROM entries WHERE owner=? AND slot=? AND round=?", (owner, slot, at))
                change -= seal([(owner, slot, at, id, code)])
        id = self._db.execute("INSERT INTO state (data) VALUES (?)", (data,)).lastrowid
        entry = (owner, slot, round, id, checksum(data, owner, slot, round))
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", entry)
        return change + seal([entry])

    def _write_rows(self, round: int, rows: list[Row]) -> int:
        """Write the metrics of a round, in place of earlier ones, and return what changes in the seal."""
        known = self._db.query(f"{_SEALED['rounds']} WHERE round=?", (round,))
        if known:
            self._db.execute("DELETE FROM metrics WHERE round=?", (round,))
            self._db.execute("DELETE FROM rounds WHERE round=?", (round,))
        if not rows:
            return -seal(known)
        self._db.connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        summary = (round, len(rows), checksum_rows(rows))
        self._db.execute("INSERT INTO rounds VALUES (?, ?, ?)", summary)
        return seal([summary]) - seal(known)

    def _write_facts(self, facts: Mapping[str, Any]) -> int:
        """Write facts, and return what changes in the seal."""
        written = [(name, json.dumps(value)) for name, value in facts.items()]
        names = json.dumps(list(facts))
        known = self._db.query(f"{_SEALED['facts']} AND key IN (SELECT value FROM json_each(?))", (names,))
        self._db.connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", written)
        return seal(written) - seal(known)

    def _change_seal(self, *changes: int) -> None:
        before = int(self._db.query("SELECT value FROM facts WHERE key=?", (_SEAL,))[0][0])
        after = (_SEAL, str(combine(before, *changes)))
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", after)

    def _check_seal(self) -> None:
        """Raise an error if what lists states, metrics and facts is not what was written."""
        with self._db.snapshot():
            known = {table: self._db.query(text) for table, text in _SEALED.items()}
            expected = self._db.query("SELECT value FROM facts WHERE key=?", (_SEAL,))
            trees = [self._db.query(f"PRAGMA integrity_check({table})") for table in _SEALED]
        actual = combine(*map(seal, known.values()))
        if expected != [(str(actual),)] or any(problems != [("ok",)] for problems in trees):
            raise self._damaged("its lists of states, metrics and facts are not what was written")

    def check(self) -> None:
        """Read all states and metrics once, and raise an error that names what is damaged."""
        self.rows()
        for at in dict.fromkeys((None, self.facts.selected)):
            for (owner,) in self._db.query("SELECT DISTINCT owner FROM entries"):
                self._states("= ?", owner, at)

    def _damaged(self, problem: str) -> RunFolderError:
        return RunFolderError(
            f"the store {self.path} is damaged: {problem}; it cannot be continued, so use a copy of the folder that is "
            f"whole, or start the run again in another folder"
        )

    def rows(self, **where: str) -> list[Row]:
        """All metrics, or those with some values in some columns; NaN, for which SQLite has NULL, is NaN again."""
        with self._db.snapshot():
            expected = self._db.query(_SEALED["rounds"])
            rows = self._db.query(f"SELECT {', '.join(COLUMNS)} FROM metrics ORDER BY rowid")
        parts = [(round, list(part)) for round, part in groupby(rows, key=lambda row: row[0])]
        actual = {(round, len(part), checksum_rows(part)) for round, part in parts}
        if len(parts) != len(expected) or actual != set(expected):
            wrong = sorted({round for round, *_ in actual ^ set(expected) if isinstance(round, int)})
            rounds = ", ".join(str(round + 1) for round in wrong) or "several rounds"
            raise self._damaged(f"the metrics of round {rounds} are not what was written")
        wanted = [(COLUMNS.index(column), value) for column, value in where.items()]
        rows = [row for row in rows if all(row[place] == value for place, value in wanted)]
        return [row if row[6] is not None else (*row[:6], math.nan, row[7]) for row in rows]

    def visited_clients(self) -> frozenset[int]:
        """The clients that have state."""
        return frozenset(owner for (owner,) in self._db.query("SELECT DISTINCT owner FROM entries WHERE owner>=0"))

    def empty_log(self) -> None:
        """Carry the log over into the file, so that nothing but the file is left."""
        self._db.empty_log()

    def close(self) -> None:
        """Release the file."""
        self._db.close()


def checksum_rows(rows: Sequence[Row]) -> int:
    """The checksum of metrics as SQLite gives them back: numbers as floats, zero without a sign, NaN as None.

    >>> checksum_rows([(0, 1, "seen", "personal", "test", "auc", float("nan"), 5)]) == checksum_rows(
    ...     [(0, 1, "seen", "personal", "test", "auc", None, 5)]
    ... )
    True
    """
    return checksum(repr([(*row[:6], _stored(row[6]), row[7]) for row in rows]).encode(errors="surrogatepass"))


def _stored(value: Any) -> Any:
    if isinstance(value, int | float):
        return None if value != value else float(value) + 0.0
    return value


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
