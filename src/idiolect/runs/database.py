"""A SQLite file with a write-ahead log: one writer, any number of readers that neither wait nor change anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import RunFolderError
from ..core.files import part_of

LOG_LIMIT = 4 << 20
"""Bytes of the log from which on it is carried over into the file, and cut."""


class Database:
    """A connection; `path=None` is a database in memory.

    A reader opens the file so that it cannot change it. Where no log lies beside it, there is no writer, and the file
    is read as it is, which leaves nothing behind and works in a folder that cannot be written; if a writer comes later,
    the next query opens the file anew.
    """

    def __init__(self, path: Path | None, schema: str, write: bool = True) -> None:
        self.path, self.write = path, write
        self._as_it_is: tuple[int, ...] | None = None
        try:
            if path is not None and not path.exists():
                if not write:
                    raise RunFolderError(f"{path} does not exist, so there is no run to open")
                _create(path, schema)
            self.connection = self._connect()
            if path is None:
                self.connection.executescript(schema)
            self.version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(f"{path} cannot be used as the store of a run: {self._explain(error)}") from error

    def _connect(self) -> sqlite3.Connection:
        if self.path is None or self.write:
            connection = sqlite3.connect(self.path or ":memory:", isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            pages = LOG_LIMIT // connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
            connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT}")
            return connection
        self._as_it_is = None if self._has_log() else self._signature()
        mode = "mode=ro" if self._as_it_is is None else "mode=ro&immutable=1"
        return sqlite3.connect(f"{self.path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None)

    def _has_log(self) -> bool:
        assert self.path is not None
        log = self.path.with_name(f"{self.path.name}-wal")
        return log.exists() and log.stat().st_size > 0

    def _signature(self) -> tuple[int, ...]:
        assert self.path is not None
        known = self.path.stat()
        return known.st_ino, known.st_size, known.st_mtime_ns

    def _refresh(self) -> None:
        """Open the file anew if it was read as it is and a writer has come."""
        if self._as_it_is is not None and (self._has_log() or self._signature() != self._as_it_is):
            self.connection.close()
            self.connection = self._connect()

    def query(self, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a query."""
        try:
            if not self.connection.in_transaction:
                self._refresh()
            return self.connection.execute(text, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(f"the store {self.path} cannot be read: {self._explain(error)}") from error

    def execute(self, text: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """One change within a transaction."""
        return self.connection.execute(text, values)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several queries that see the same state, whatever a writer does meanwhile."""
        self.query("SELECT 1")
        self.query("BEGIN")
        try:
            yield
        finally:
            if self.connection.in_transaction:
                self.query("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Changes that are made all or not at all."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def empty_log(self) -> None:
        """Carry the log over into the file, unless readers are in the way."""
        if self.write and self.path is not None:
            self.query("PRAGMA busy_timeout=0")
            self.query("PRAGMA wal_checkpoint(TRUNCATE)")
            self.query("PRAGMA busy_timeout=5000")

    def close(self) -> None:
        """Release the file."""
        self.connection.close()

    def _explain(self, error: Exception) -> str:
        if not self.write and self.path is not None and "unable to open" in str(error) and self._has_log():
            return (
                "it has a log (-wal) that takes files beside it to read, and its folder cannot be written; copy the "
                "whole folder to where you may write"
            )
        return str(error)


def _create(path: Path, schema: str) -> None:
    """Make an empty database beside its place and move it there, so that no half-made one is ever seen."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    connection.executescript(schema)
    connection.close()
    part.replace(path)
