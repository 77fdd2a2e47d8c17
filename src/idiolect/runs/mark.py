"""The mark of a run: a small file beside its store that says which round is next. If the store is behind it, rounds
were lost: SQLite takes what it can read of a damaged or missing log, and does not tell."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ..core.checksums import add_checksum, take_checksum
from ..core.errors import RunFolderError
from ..core.files import write_whole

log = logging.getLogger("idiolect")


def mark_path(store: Path) -> Path:
    """Where the mark of a store is: `state.mark` for `state.sqlite`."""
    return store.with_suffix(".mark")


def write_mark(store: Path, next_round: int) -> None:
    """Write which round is next, after the one before it was committed."""
    text = json.dumps(add_checksum({"next_round": next_round}))
    write_whole(mark_path(store), lambda part: part.write_text(text, encoding="utf-8"))


def read_mark(store: Path) -> int | None:
    """The round that is next according to the mark; None without a mark, and, with a warning, if it is damaged."""
    path = mark_path(store)
    try:
        return int(take_checksum(json.loads(path.read_text(encoding="utf-8")))["next_round"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        log.warning("%s is damaged, so rounds that are missing at the end of %s cannot be noticed", path, store)
        return None


def compare_with_mark(store: Path, marked: int | None, next_round: int | None, write: bool) -> None:
    """Say that rounds were lost, where a store is behind its mark; a reader refuses it, a writer does them again."""
    if marked is None or (next_round is not None and next_round >= marked):
        return
    last, reached = max(0, marked), max(0, next_round or 0)
    problem = f"{store} ends after round {reached}, but round {last} was saved: its log (-wal) is damaged or missing"
    if not write:
        raise RunFolderError(f"{problem}; do the rounds after it again with: idiolect resume {store.parent}")
    log.warning("%s; going on with round %d", problem, reached + 1)
