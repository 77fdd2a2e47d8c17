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

from .errors import UntrustedCodeError
from .files import home

log = logging.getLogger("idiolect")
KNOWN = "known-code"
"""The file, in the home of all state, with the hashes of code that runs on this machine have used."""
_CODE = re.compile(r"[^\s(),]+\.py:\w+")


@dataclass(frozen=True)
class Origin:
    """A folder or a file whose settings are being used, whether it is trusted, and code that the user named beside."""

    place: Path
    is_trusted: bool
    own: frozenset[str]


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)
_loaded: dict[str, Path] = {}
"""The file of every code that was loaded, by the name that it was asked for."""
_hashes: dict[Path, set[str]] = {}
"""The hashes of such a file and of those that it imports."""


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


def read_code(path: Path, name: str, imported: bool = False) -> bytes:
    """The content of a file whose code is to run, as `name` asks for it or what that names imports; an error if it may
    not."""
    content = path.read_bytes()
    digest, origin = hashlib.sha256(content).hexdigest(), _origin.get()
    if origin is not None and not origin.is_trusted and name not in origin.own and digest not in _read_known():
        how = f"names {name}, which imports" if imported else "names"
        raise UntrustedCodeError(
            f"{origin.place} {how} the code in {path}, which no run on this machine has used in this form; read it"
            " and, if you trust it, allow it with --trust (in Python trust=True)"
        )
    if not imported:
        _loaded[name] = path.resolve()
    _hashes.setdefault(_loaded[name], set()).add(digest)
    return content


def remember_code(texts: Iterable[object]) -> None:
    """Note that a run which was started here uses the code that these settings name."""
    settings = [text for text in texts if isinstance(text, str)]
    used = {h for name, path in _loaded.items() if any(name in text for text in settings) for h in _hashes[path]}
    new = sorted(used - _read_known())
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


def _read_known() -> frozenset[str]:
    """The hashes of known code; none if others than the owner may write there."""
    path = home() / KNOWN
    try:
        return frozenset(path.read_text().split()) if not path.stat().st_mode & 0o022 else frozenset()
    except OSError:
        return frozenset()
