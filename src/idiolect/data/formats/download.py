"""Fetching published data sets: an explicit act, never part of a run. A download can be interrupted and goes on where
it stopped; a file gets its name only when it is whole and its checksum is right."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...core.errors import DataError, UnknownNameError
from ...core.expressions import parse
from ..sources.base import sources
from ..sources.huggingface import HuggingFace
from ..sources.remotes import REMOTES, Remote
from .archives import extract
from .files import check_sum, data_root

_CHUNK = 1 << 18
_TIMEOUT = 30.0


class Progress(NamedTuple):
    """How far a download is: the file, bytes so far, and bytes in all (None if the server does not say)."""

    file: str
    done: int
    total: int | None


Watch = Callable[[Progress], None]


def fetchable() -> tuple[str, ...]:
    """The names of the sources that `fetch` can get.

    >>> "cifar10" in fetchable()
    True
    """
    return (*sorted(REMOTES), "hf")


def fetch(name: str, root: str | Path | None = None, watch: Watch = lambda _: None) -> list[Path]:
    """Download a source's files into the data folder (by default IDIOLECT_DATA) and return them.

    What is there already and whole is not fetched again. `name` is a source's name, or an expression for the hub:
    `hf(mnist)`.
    """
    expression = parse(name)
    source = sources.get(expression.name)
    if issubclass(source, HuggingFace):
        built = sources.build(name)
        assert isinstance(built, HuggingFace)
        built.open(online=True)
        return []
    if source.name not in REMOTES:
        raise UnknownNameError(
            f"{source.name} cannot be fetched: {source().where()}. To fetch: {', '.join(fetchable())}."
        )
    folder = Path(root) if root is not None else data_root()
    if folder is None:
        raise DataError("IDIOLECT_DATA is not set; set it to the folder for data sets, or name a folder")
    return [_get(remote, folder, watch) for remote in REMOTES[source.name]]


def _get(remote: Remote, folder: Path, watch: Watch) -> Path:
    target = folder / remote.file
    result = folder / (remote.gives or remote.file)
    if remote.gives and result.exists() and not target.exists():  # the archive goes when all of it is unpacked
        return result
    if not target.exists():
        download(remote.url, target, remote.checksum, watch)
    elif remote.checksum:
        check_sum(target, remote.checksum)
    if remote.gives:
        extract(target, target.parent)
        _flatten(target.parent, target)
        if not result.exists():
            raise DataError(f"{target} was unpacked, but did not give {result}: the publisher's archive has changed")
        target.unlink()
    return result


def _flatten(folder: Path, archive: Path) -> None:
    """Unpack archives that lay within the archive, and lift files out of the folder `gzip` of EMNIST's."""
    for inner in sorted(folder.glob("*.zip")):
        if inner != archive:
            extract(inner, folder)
            inner.unlink()
    nested = folder / "gzip"
    if nested.is_dir():
        for file in sorted(nested.iterdir()):
            os.replace(file, folder / file.name)
        nested.rmdir()


def download(url: str, target: Path, checksum: str | None = None, watch: Watch = lambda _: None) -> None:
    """Download one file: into `target.part`, going on where an earlier try stopped, then checked and renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        _pull(url, part, target.name, watch)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(
            f"{url} cannot be fetched ({error}); try again to go on where it stopped, or put the file at {target}"
        ) from error
    if checksum:
        try:
            check_sum(part, checksum)
        except DataError:
            part.unlink()
            raise
    os.replace(part, target)


def _pull(url: str, part: Path, name: str, watch: Watch) -> None:
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "idiolect"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        size = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        error.close()
        if start and error.code == 416 and size == str(start):  # nothing was left to send
            return
        if error.code == 416:
            part.unlink()
        raise
    with answer:
        resumed = answer.status == 206
        start = start if resumed else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                start += len(chunk)
                watch(Progress(name, start, total))
    if total is not None and start < total:
        raise OSError(f"the connection ended after {start} of {total} bytes")
