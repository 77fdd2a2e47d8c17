"""Archives: all of one is unpacked, or nothing; and nothing outside the folder it is unpacked into."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ...core.errors import DataError
from .files import BROKEN, check_size


def extract(archive: str | Path, folder: str | Path) -> None:
    """Unpack a zip or tar archive (plain, gzip, bzip2 or xz) into a folder.

    It is unpacked beside the folder first and moved when it is whole; on any error nothing of it stays. Links, devices,
    and names that lead out of the folder are refused before anything is written.

    >>> path, folder = getfixture("tmp_path") / "a.zip", getfixture("tmp_path") / "out"
    >>> with zipfile.ZipFile(path, "w") as made:
    ...     made.writestr("part/a.txt", "hello")
    >>> extract(path, folder)
    >>> (folder / "part" / "a.txt").read_text()
    'hello'
    """
    archive, folder = Path(archive), Path(folder)
    part = folder / f".unpacking-{archive.name}"
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir(parents=True)
    try:
        _unpack(archive, part)
        _move(part, folder)
    except (zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError, *BROKEN) as error:
        raise DataError(f"the archive {archive} cannot be unpacked ({error}); delete it and fetch it again") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpack(archive: Path, part: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            _check(archive, ((member.filename, _is_plain(member)) for member in opened.infolist()))
            check_size(archive, sum(member.file_size for member in opened.infolist()))
            opened.extractall(part)
    elif archive.is_file() and tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            _check(archive, ((member.name, member.isfile() or member.isdir()) for member in opened.getmembers()))
            check_size(archive, sum(member.size for member in opened.getmembers()))
            for member in opened.getmembers():  # by hand: tarfile's own filters came with Python 3.11.4
                _write_member(opened, member, part)
    else:
        raise DataError(f"{archive} is no zip or tar archive, or damaged; delete it and fetch it again")


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file or a folder that has been checked, with this user's usual rights."""
    path, content = folder / member.name, archive.extractfile(member)
    (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
    if content is not None:
        with content, path.open("wb") as file:
            shutil.copyfileobj(content, file)


def _is_plain(member: zipfile.ZipInfo) -> bool:
    """Whether a member of a zip is a file or a folder: the upper half of its attributes are Unix's, 0 if unknown."""
    kind = member.external_attr >> 28
    return kind in (0, 0o04, 0o10)


def _check(archive: Path, members: Iterable[tuple[str, bool]]) -> None:
    for name, plain in members:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]):
            raise DataError(f"the archive {archive} would write to {name!r}, outside its folder; nothing was unpacked")
        if not plain:
            raise DataError(f"the archive {archive} holds {name!r}, which is no plain file; nothing was unpacked")


def _move(part: Path, folder: Path) -> None:
    """Move everything into the folder, in the place of what has the same name."""
    for entry in sorted(part.iterdir()):
        target = folder / entry.name
        if target.is_dir() and entry.is_dir():
            _move(entry, target)
        else:
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(entry, target)
