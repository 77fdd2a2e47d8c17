"""Files and archives: compressed ones are opened, damaged ones refused, and nothing is ever half unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from idiolect.core.errors import DataError
from idiolect.data import check_sum
from idiolect.data.formats.archives import extract
from idiolect.data.formats.files import Layout, read_bytes, read_text


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_plain_and_compressed_files_are_read_alike(tmp_path, ending, pack):
    path = tmp_path / f"text.txt{ending}"
    path.write_bytes(pack("ein Wörtchen".encode()))
    assert read_text(path) == "ein Wörtchen"
    if ending:
        path.write_bytes(pack(b"much longer than nothing " * 20)[:-12])
        with pytest.raises(DataError, match=r"cannot be read.*fetch it again"):
            read_bytes(path)
        path.write_bytes(b"not compressed at all")
        with pytest.raises(DataError, match="cannot be read"):
            read_bytes(path)


def test_text_must_be_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="no text in UTF-8"):
        read_text(tmp_path / "a.txt")


def test_checksums_are_compared(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    check_sum(path, "900150983cd24fb0d6963f7d28e17f72")
    check_sum(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(DataError, match=r"has the md5 checksum 9001.*publisher's file has 0000.*fetch it again"):
        check_sum(path, "0" * 32)
    with pytest.raises(DataError, match="cannot be read"):
        check_sum(tmp_path / "none", "0" * 64)


def test_a_layout_finds_files_and_folders_and_says_what_to_put_where(tmp_path, monkeypatch):
    layout = Layout("set", ("a.csv", "images/"))
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    assert layout.missing(None) == ["a.csv", "images/"]
    assert "$IDIOLECT_DATA/set" in layout.where(None)
    (tmp_path / "set" / "images").mkdir(parents=True)
    (tmp_path / "set" / "a.csv.xz").write_bytes(b"")
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    assert layout.missing(None) == []
    assert layout.paths(None)["a.csv"].name == "a.csv.xz"
    assert layout.missing(str(tmp_path)) == ["a.csv", "images/"]
    (tmp_path / "set" / "b.npz.gz").write_bytes(b"")
    assert Layout("set", ("b.npz",)).missing(None) == ["b.npz"]
    assert f"the folder {tmp_path}" in layout.where(str(tmp_path))


# -- archives ----------------------------------------------------------------------------------------------


def make_zip(path: Path, members: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def make_tar(path: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, link
            archive.addfile(info, io.BytesIO(content))
    return path


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_archives_are_unpacked_into_what_is_there(tmp_path, make):
    out = tmp_path / "out"
    (out / "set").mkdir(parents=True)
    (out / "set" / "kept.txt").write_text("kept")
    (out / "set" / "a.txt").write_text("old")
    extract(make(tmp_path / "archive", {"set/a.txt": b"new", "set/deep/b.txt": b"b"}), out)
    assert everything(out) == {"set/kept.txt", "set/a.txt", "set/deep/b.txt"}
    assert (out / "set" / "a.txt").read_text() == "new"
    assert not list(out.glob(".unpacking-*"))


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    "name", ["../outside.txt", "/tmp/outside.txt", "set/../../outside.txt", "..\\outside.txt", "C:\\outside.txt"]
)
def test_a_path_outside_the_folder_is_refused_and_nothing_is_unpacked(tmp_path, make, name):
    archive, out = make(tmp_path / "archive", {"good.txt": b"good", name: b"bad"}), tmp_path / "out"
    with pytest.raises(DataError, match="outside its folder; nothing was unpacked"):
        extract(archive, out)
    assert everything(out) == set()
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    archive = make_tar(tmp_path / "archive", {"link": b""}, kind, link="/etc/passwd")
    with pytest.raises(DataError, match="'link', which is no plain file; nothing was unpacked"):
        extract(archive, tmp_path / "out")
    assert everything(tmp_path / "out") == set()


def test_links_in_a_zip_are_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"link": b"/etc/passwd"}, mode=0o120777)
    with pytest.raises(DataError, match="no plain file"):
        extract(archive, tmp_path / "out")


def test_an_archive_that_is_none_or_cut_off_leaves_nothing(tmp_path):
    out, path = tmp_path / "out", tmp_path / "archive"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="no zip or tar archive, or damaged"):
        extract(path, out)
    content = {f"part/{at}.bin": os.urandom(20_000) for at in range(4)}
    whole = make_tar(path, content).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(path, out)
    whole = make_zip(path, content).read_bytes()
    path.write_bytes(whole[:30_000] + b"\xff" * 100 + whole[30_100:])
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(path, out)
    assert everything(out) == set()
    assert not list(out.glob(".unpacking-*"))
