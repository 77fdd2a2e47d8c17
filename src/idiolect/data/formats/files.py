"""Files of data sets: where they are looked for, how they are opened whatever compressed them, and whether they
are what the publisher put out."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...core.errors import DataError

_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}  # type: ignore[dict-item]
COMPRESSIONS = ("", *_OPENERS)
BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""What reading a damaged or missing file can raise."""


def data_root() -> Path | None:
    """The folder of data sets that the environment variable IDIOLECT_DATA names, if it is set.

    >>> getfixture("monkeypatch").setenv("IDIOLECT_DATA", "sets")
    >>> data_root().name
    'sets'
    """
    named = os.environ.get("IDIOLECT_DATA")
    return Path(named) if named else None


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, plain or compressed by gzip, xz or bzip2; any damage is a `DataError`.

    >>> path = getfixture("tmp_path") / "text.gz"
    >>> _ = path.write_bytes(gzip.compress(b"hello"))
    >>> read_bytes(path)
    b'hello'
    """
    path = Path(path)
    try:
        if path.suffix not in _OPENERS:
            return path.read_bytes()
        with _OPENERS[path.suffix](path) as file:
            content = file.read(most_unpacked(path) + 1)
        check_size(path, len(content))
        return content
    except (*BROKEN, MemoryError) as error:
        raise unreadable(path, error) from error


LARGE, TIMES = 10**9, 100
"""What is packed may unpack to so many bytes, or to so many times its own size, whichever is more."""


def most_unpacked(path: Path) -> int:
    """The bytes that a packed file may unpack to; IDIOLECT_MAX_UNPACKED_GB sets another limit.

    >>> getfixture("monkeypatch").setenv("IDIOLECT_MAX_UNPACKED_GB", "2.5")
    >>> most_unpacked(Path("a.zip"))
    2500000000
    """
    setting = os.environ.get("IDIOLECT_MAX_UNPACKED_GB")
    if not setting:
        return max(LARGE, TIMES * path.stat().st_size)
    try:
        return int(float(setting) * 1e9)
    except (ValueError, OverflowError) as error:
        raise DataError(f"IDIOLECT_MAX_UNPACKED_GB={setting} must be a number of gigabytes, such as 10") from error


def check_size(path: Path, unpacked: int) -> None:
    """Raise `DataError` if a file unpacks to more bytes than it may."""
    if unpacked > (most := most_unpacked(path)):
        raise DataError(
            f"{path} unpacks to more than {most / 1e9:g} GB, which is suspicious; if you trust it, raise the limit with"
            " the environment variable IDIOLECT_MAX_UNPACKED_GB"
        )


def read_text(path: str | Path) -> str:
    """The content of a text file in UTF-8, plain or compressed."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error}); convert it or fetch it again") from error


def unreadable(path: str | Path, error: object) -> DataError:
    """The error of a file that is damaged or missing."""
    return DataError(f"{path} cannot be read ({error}); fetch it again")


def check_sum(path: str | Path, expected: str, content: bool = False) -> None:
    """Raise `DataError` unless a file, or with `content` what a compressed one holds, has this MD5 (32 digits) or
    SHA-256 (64 digits).

    >>> path = getfixture("tmp_path") / "a"
    >>> _ = path.write_bytes(b"")
    >>> check_sum(path, "d41d8cd98f00b204e9800998ecf8427e")
    """
    kind = "md5" if len(expected) == 32 else "sha256"
    try:
        with io.BytesIO(read_bytes(path)) if content else Path(path).open("rb") as file:
            checksum = hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
    if checksum != expected:
        raise DataError(
            f"{path} has the {kind} checksum {checksum}, but the publisher's file has {expected}: it is damaged"
            " or another version; delete it and fetch it again"
        )


def _compressible(file: str) -> bool:
    """Whether a file may be compressed: a folder cannot be, and some formats are compressed in themselves."""
    return not file.endswith(("/", ".npz", ".mat", ".h5", ".zip"))


@dataclass(frozen=True)
class Layout:
    """Files of one source: under a folder that an option names, else under its own folder in IDIOLECT_DATA.

    Names that end in a slash are folders; files of text, IDX and the like may be compressed.

    >>> Layout("digits", ("a.npz",)).missing(str(getfixture("tmp_path")))
    ['a.npz']
    """

    place: str
    files: tuple[str, ...]
    what: str = ""

    def folder(self, path: str | None) -> Path | None:
        """Where the files are looked for; None if nothing says it."""
        root = data_root()
        return Path(path) if path else root / self.place if root else None

    def find(self, file: str, path: str | None) -> Path | None:
        """The file, plain or compressed, or the folder; None if it is not there."""
        folder = self.folder(path)
        if folder is None:
            return None
        if file.endswith("/"):
            return folder / file if (folder / file).is_dir() else None
        endings = COMPRESSIONS if _compressible(file) else ("",)
        return next((candidate for ending in endings if (candidate := folder / f"{file}{ending}").is_file()), None)

    def missing(self, path: str | None) -> list[str]:
        """What is not there."""
        return [file for file in self.files if self.find(file, path) is None]

    def paths(self, path: str | None) -> dict[str, Path]:
        """Everything that is there, by name."""
        return {file: location for file in self.files if (location := self.find(file, path)) is not None}

    def where(self, path: str | None) -> str:
        """What to put where."""
        usual = "$IDIOLECT_DATA" if self.place == "." else f"$IDIOLECT_DATA/{self.place}"
        compressed = " (plain, .gz, .xz or .bz2)" if all(map(_compressible, self.files)) else ""
        listed = ", ".join(self.files)
        what = f"{self.what}: " if self.what else ""
        return f"put {what}{listed}{compressed} into {f'the folder {path}' if path else usual}"
