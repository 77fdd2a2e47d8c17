"""Code that a file names, as `method: mine.py:Mine` does: what the user names himself runs, and so does what runs on
this machine have used before; what the folder of a run names besides runs only where it is trusted."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .errors import UntrustedCodeError
from .files import home

log = logging.getLogger("idiolect")
KNOWN = "known-code"
"""The file, in the home of all state, with the hashes of code that runs on this machine have used."""
_CODE = re.compile(r"[^\s(),]+\.py:\w+|[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Origin:
    """A folder or a file whose settings are being used, whether it is trusted, and code that the user named beside."""

    place: Path
    is_trusted: bool
    own: frozenset[str]


class Loaded(NamedTuple):
    """The file that code is in, and the hash of both with its name."""

    path: Path
    digest: str


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)
_loaded: dict[str, Loaded] = {}
"""Code that was loaded, by the name that it was asked for."""
_imported: dict[Path, set[str]] = {}
"""The hashes of the files that such a file imports."""


@contextmanager
def named_by(place: str | Path, trust: bool = False, own: Iterable[str] = ()) -> Iterator[None]:
    """Settings from here on are those of a folder or file: code that they name runs if it is known or `trust` is given.
    `own` are texts in which the user named code himself."""
    outer = _origin.get()
    named = frozenset(name for text in own for name in _CODE.findall(text))
    if outer is not None:
        trust, named = trust or outer.is_trusted, named | outer.own
    token = _origin.set(Origin(Path(place), trust, named))
    try:
        yield
    finally:
        _origin.reset(token)


def allow_code(name: str, content: bytes, path: Path, imported: bool = False) -> None:
    """Raise an error if code may not run: what `name` asks for, out of a file with this content, or a file that this
    imports. What is named is known together with its name, so that nothing else in the file may be called."""
    asked = "" if imported else name.rpartition(":")[2]
    digest, origin = hashlib.sha256(f"{asked}\n".encode() + content).hexdigest(), _origin.get()
    if origin is not None and not may_run_all(name) and digest not in _read_known():
        how = f"names {name}, which imports" if imported else "names"
        raise UntrustedCodeError(
            f"{origin.place} {how} the code in {path}, which no run on this machine has used in this form; read it"
            " and, if you trust it, allow it with --trust (in Python trust=True)"
        )
    if not imported:
        _loaded[name] = Loaded(path.resolve(), digest)
    else:
        _imported.setdefault(_loaded[name].path, set()).add(digest)


def may_run_all(name: str) -> bool:
    """Whether nobody but the user asks for the code of that name, so that whatever it imports may run."""
    origin = _origin.get()
    return origin is None or origin.is_trusted or name in origin.own


def remember_code(texts: Iterable[object]) -> None:
    """Note that a run which was started here uses the code that these settings name."""
    settings = [text for text in texts if isinstance(text, str)]
    used = {code for name, code in _loaded.items() if any(_names(text, name) for text in settings)}
    hashes = {digest for code in used for digest in (code.digest, *_imported.get(code.path, ()))}
    new = sorted(hashes - _read_known())
    if not new:
        return
    path = home() / KNOWN
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(file, "a") as opened:
            os.fchmod(file, 0o600)
            opened.write("".join(f"{digest}\n" for digest in new))
    except OSError as error:
        log.warning("%s cannot be written (%s), so opening this run later will need --trust", path, error.strerror)


def _names(text: str, name: str) -> bool:
    """Whether an expression names this code, and not code whose longer path ends or begins alike.

    >>> _names("finetune(a/b.py:C, epochs=2)", "a/b.py:C"), _names("a/b.py:C", "b.py:C"), _names("b.py:CD", "b.py:C")
    (True, False, False)
    """
    return re.search(rf"(?<![\w./\\~-]){re.escape(name)}(?!\w)", text) is not None


def _read_known() -> frozenset[str]:
    """The hashes of known code; none if others than the owner may write there."""
    path = home() / KNOWN
    try:
        return frozenset(path.read_text().split()) if not path.stat().st_mode & 0o022 else frozenset()
    except OSError:
        return frozenset()
