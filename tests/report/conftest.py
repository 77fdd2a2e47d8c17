"""What the tests of reports share: a small comparison, its page, and a headless Chromium that is driven through its
debugging pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import idiolect
from idiolect.report import read_study, write_report

METHODS = "local, fedavg, finetune(fedavg), fedlag(warmup=1), lgmix, flayer, pfedgate, fedfac"


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A folder with a comparison of two seeds, in which some clients never train."""
    folder = tmp_path_factory.mktemp("report") / "comparison"
    settings = {"clients": 6, "unseen": 0.15, "rounds": 2, "lr": 0.1, "engine": "loop", "partition": "dirichlet:0.3"}
    idiolect.compare(METHODS, "digits", seeds=2, out=folder, **settings)
    return folder


SMALL = {"clients": 4, "rounds": 2, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """A small comparison of three methods and two seeds."""
    folder = tmp_path_factory.mktemp("small") / "a"
    idiolect.compare("local, fedavg, ditto", "digits", seeds=2, out=folder, **SMALL)
    return folder


@pytest.fixture
def folder(originals, tmp_path):
    """A copy of it, to be spoiled."""
    shutil.copytree(originals, tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture(scope="session")
def study(comparison):
    """The comparison, read."""
    return read_study([comparison])


@pytest.fixture(scope="session")
def page(comparison):
    """Its report."""
    path = comparison.parent / "report.html"
    write_report([comparison], path)
    return path


@pytest.fixture(scope="session")
def chromium():
    """The browser, started once."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    browser = Browser()
    yield browser
    browser.close()


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PATIENCE = 60


class Browser:
    """One page. `requests` are the addresses it asked for, `complaints` what it wrote on the console or threw."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        down, up = os.pipe(), os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"
        flags += " --disable-extensions --disable-background-networking --disable-component-update"
        command = f"exec {CHROMIUM} {flags} --user-data-dir={self.profile.name} --remote-debugging-pipe about:blank"
        self.process = subprocess.Popen(
            ["bash", "-c", f"{command} 3<&{down[0]} 4>&{up[1]}"],
            pass_fds=(down[0], up[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down[0])
        os.close(up[1])
        self.writing, self.reading, self.rest = down[1], up[0], b""
        self.numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded, self.session = False, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.writing)
        os.close(self.reading)
        self.profile.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a function of the browser and wait for its answer."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {PATIENCE} s"
            part = os.read(self.reading, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(text)
        self.note(message.get("method", ""), message.get("params", {}))
        return message

    def note(self, event: str, held: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(held["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str([each.get("value") for each in held["args"]]))
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(held["exceptionDetails"].get("text", "exception"))
        elif event == "Log.entryAdded":
            self.complaints.append(held["entry"]["text"])

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Open a page from the disk."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[feature])
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.visit(path.resolve().as_uri())

    def visit(self, url: str) -> None:
        """Go to an address, and wait until the page is there."""
        self.loaded = False
        self.send("Page.navigate", url=url)
        while not self.loaded:
            self.receive()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, top: float = 0, height: float | None = None) -> None:
        """The whole page, or a stripe of it, as a PNG file."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        image = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))
