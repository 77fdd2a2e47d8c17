"""Fetching: progress, resume, checksums, atomic names; against a server on this machine."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from idiolect.core.errors import DataError, UnknownNameError
from idiolect.data import fetch, fetchable
from idiolect.data import fetch as fetch_function
from idiolect.data.formats.download import download
from idiolect.data.sources import sources
from idiolect.data.sources.remotes import REMOTES, Remote

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves files from a mapping; can end an answer early and forget how to resume."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.go_on = threading.Event()
        self.go_on.set()
        self.ranges = True
        self.asked: list[str | None] = []

    def url(self, name: str, content: bytes) -> str:
        self.files[f"/{name}"] = content
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content, wanted = self.server.files.get(self.path), self.headers["Range"]
        self.server.asked.append(wanted)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : None if self.server.cut is None else self.server.cut])
        self.server.go_on.wait(60)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_reports_progress_and_gets_its_name_when_whole(server, tmp_path):
    seen = []
    download(server.url("a.bin", CONTENT), tmp_path / "deep" / "a.bin", MD5, seen.append)
    assert (tmp_path / "deep" / "a.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin"]
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert [each.done for each in seen] == sorted(each.done for each in seen)


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path, ranges):
    url, target = server.url("a.bin", CONTENT), tmp_path / "a.bin"
    server.cut = 300_000
    with pytest.raises(DataError, match=r"cannot be fetched.*try again to go on where it stopped"):
        download(url, target, MD5)
    assert not target.exists()
    assert (tmp_path / "a.bin.part").stat().st_size == 300_000
    server.cut, server.ranges = None, ranges
    download(url, target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_download_that_was_killed_goes_on_where_it_stopped(server, tmp_path):
    url, target, part = server.url("a.bin", CONTENT), tmp_path / "a.bin", tmp_path / "a.bin.part"
    server.cut = 600_000
    server.go_on.clear()  # the answer stops, but does not end
    call = f"download({url!r}, Path({str(target)!r}))"
    code = f"from pathlib import Path; from idiolect.data.formats.download import download; {call}"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while process.poll() is None and not (part.exists() and part.stat().st_size >= 262_144):
            time.sleep(0.05)
        process.kill()
    size = part.stat().st_size
    assert not target.exists()
    server.cut = None
    server.go_on.set()
    download(url, target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={size}-"]


def test_a_part_that_is_whole_already_is_taken(server, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    download(server.url("a.bin", CONTENT), tmp_path / "a.bin", MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_thrown_away(server, tmp_path):
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    with pytest.raises(DataError, match="416"):
        download(server.url("a.bin", CONTENT), tmp_path / "a.bin", MD5)
    download(server.url("a.bin", CONTENT), tmp_path / "a.bin", MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match="checksum"):
        download(server.url("a.bin", CONTENT + b"!"), tmp_path / "a.bin", MD5)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_on_the_server_is_an_error(server, tmp_path):
    with pytest.raises(DataError, match=r"cannot be fetched \(HTTP Error 404.*put the file at"):
        download(server.url("a.bin", CONTENT) + "x", tmp_path / "a.bin")
    with pytest.raises(DataError, match="cannot be fetched"):
        download("http://127.0.0.1:9/a", tmp_path / "a.bin")


def test_fetching_a_source_unpacks_its_archive_once(server, tmp_path, monkeypatch):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name in ("train", "test"):
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    remote = Remote(server.url("c.tar.gz", raw.getvalue()), "cifar100/c.tar.gz", None, "cifar100/cifar-100-python")
    monkeypatch.setitem(REMOTES, "cifar100", (remote,))
    for _ in range(2):
        assert fetch("cifar100", tmp_path) == [tmp_path / "cifar100" / "cifar-100-python"]
    assert len(server.asked) == 1
    assert {path.name for path in (tmp_path / "cifar100").rglob("*")} == {"cifar-100-python", "train", "test"}


def test_the_command_line_fetches_and_says_where_it_is(server, tmp_path, monkeypatch, call):
    remote = Remote(server.url("a.csv", CONTENT), "ag_news/train.csv", MD5)
    monkeypatch.setitem(REMOTES, "ag-news", (remote,))
    code, out, err = call("data", "fetch", "ag-news", "--into", tmp_path)
    assert (code, "fetching train.csv, 1.0 MB" in err) == (0, True)
    assert "train.csv" in out
    assert "export IDIOLECT_DATA=" in out
    assert (tmp_path / "ag_news" / "train.csv").read_bytes() == CONTENT


def test_unpacking_that_was_killed_is_done_again(server, tmp_path, monkeypatch):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name in ("gzip/emnist-byclass.gz", "gzip/emnist-letters.gz"):
            archive.writestr(name, b"1")
    remote = Remote(server.url("e.zip", b""), "emnist/e.zip", None, "emnist/emnist-byclass.gz")
    monkeypatch.setitem(REMOTES, "emnist-letters", (remote,))
    (tmp_path / "emnist" / ".unpacking-e.zip").mkdir(parents=True)
    (tmp_path / "emnist" / ".unpacking-e.zip" / "half").write_bytes(b"")
    (tmp_path / "emnist" / "e.zip").write_bytes(raw.getvalue())
    (tmp_path / "emnist" / "emnist-byclass.gz").write_bytes(b"1")
    fetch("emnist-letters", tmp_path)
    assert {path.name for path in (tmp_path / "emnist").iterdir()} == {"emnist-byclass.gz", "emnist-letters.gz"}
    assert server.asked == []


def test_archives_within_archives_and_emnists_folder_are_unpacked_too(server, tmp_path, monkeypatch):
    def zipped(members: dict[str, bytes]) -> bytes:
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return raw.getvalue()

    inner = zipped({"UCI HAR Dataset/train/y_train.txt": b"1"})
    har = server.url("h.zip", zipped({"UCI HAR Dataset.zip": inner}))
    letters = server.url("e.zip", zipped({"gzip/emnist-letters.gz": b"1"}))
    monkeypatch.setitem(REMOTES, "har", (Remote(har, "har/h.zip", None, "har/UCI HAR Dataset"),))
    monkeypatch.setitem(REMOTES, "emnist-letters", (Remote(letters, "emnist/e.zip", None, "emnist/emnist-letters.gz"),))
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    fetch("har")
    fetch("emnist-letters")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"har/UCI HAR Dataset/train/y_train.txt", "emnist/emnist-letters.gz"}


def test_an_archive_that_gives_something_else_is_kept_and_named(server, tmp_path, monkeypatch):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("other.txt", b"1")
    monkeypatch.setitem(REMOTES, "har", (Remote(server.url("h.zip", raw.getvalue()), "har/h.zip", None, "har/UCI"),))
    with pytest.raises(DataError, match=r"did not give .*har/UCI: the publisher's archive has changed"):
        fetch("har", tmp_path)


def test_what_cannot_be_fetched_says_what_to_do(monkeypatch):
    with pytest.raises(UnknownNameError, match=r"domainnet cannot be fetched: put clipart/.*To fetch: .*cifar10"):
        fetch("domainnet")
    with pytest.raises(UnknownNameError, match="there is no data source 'cifar11'"):
        fetch("cifar11")
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    with pytest.raises(DataError, match="IDIOLECT_DATA is not set"):
        fetch("mnist")


def test_everything_that_can_be_fetched_is_a_source_with_a_place_for_it():
    assert callable(fetch_function)
    for name, remotes in REMOTES.items():
        assert name in sources
        assert all(remote.url.startswith("http") and not Path(remote.file).is_absolute() for remote in remotes)
        assert all(remote.checksum is None or len(remote.checksum) in (32, 64) for remote in remotes)
    assert set(fetchable()) == {*REMOTES, "hf"}


def test_fetching_again_checks_what_is_there(server, tmp_path, monkeypatch):
    remote = Remote(server.url("a.csv", CONTENT), "ag_news/train.csv", MD5)
    monkeypatch.setitem(REMOTES, "ag-news", (remote,))
    fetch("ag-news", tmp_path)
    (tmp_path / "ag_news" / "train.csv").write_bytes(b"damaged")
    with pytest.raises(DataError, match="checksum"):
        fetch("ag-news", tmp_path)
