"""A whole deployment on this machine: a SuperLink, the gateway and SuperNodes as separate processes on the loopback
device, with TLS and authenticated nodes as in docs/deploy.md. For tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import IdiolectError, MissingExtraError
from ..runs.lock import LOCK
from .apps import require_flower
from .template import PYPROJECT

NAMED_APP = """from idiolect.flower import Project, client_app, server_app

project = Project()
client = client_app(project)
server = server_app(project)
"""
SAN = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Testbed:
    """A SuperLink, the gateway and SuperNodes as processes; leaving the context ends them all.

    Args:
        folder: where keys, certificates, logs and the states of server and clients go.
    """

    __test__ = False

    def __init__(self, folder: Path) -> None:
        require_flower()
        for tool in ("openssl", "ssh-keygen"):
            if shutil.which(tool) is None:
                raise MissingExtraError(f"a deployment with TLS needs the program {tool}, which is not installed")
        self.folder = folder
        self.address, self.gateway = (f"127.0.0.1:{find_free_port()}" for _ in range(2))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "IDIOLECT_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Testbed:
        (self.folder / "flwr").mkdir(parents=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "tls"\n\n[superlink.tls]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        self._make_certificates()
        self.start_superlink()
        tls = ("--ca", "ca.crt", "--certificate", "server.crt", "--key", "server.key")
        command = (sys.executable, "-m", "idiolect.flower.gateway", "--listen", self.gateway)
        self._start("gateway", (*command, "--superlink", self.address, *tls))
        self._wait_until_it_listens("gateway", self.gateway)
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.processes):
            self.stop(name)

    @property
    def home(self) -> Path:
        """Where the federations keep their states."""
        return self.folder / "home"

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        tls = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key")
        host, port = self.address.split(":")
        more = ("--enable-supernode-auth", "--database", "superlink.db", "--disable-runtime-dependency-installation")
        self._start("superlink", ("flower-superlink", "--host", host, "--port", port, *tls, *more))
        self._wait_until_it_listens("superlink", self.address)

    def start_node(self, index: int, register: bool = True, name: str | None = None, agreed: str | None = None) -> None:
        """Start the SuperNode of a client.

        Args:
            index: the client's number.
            register: whether to register its public key with the SuperLink.
            name: the name of its process and key; one with another name than `node{index}` also has another folder,
                so that it is not the client that it claims to be.
            agreed: the hash of the only app that it runs; None runs any.
        """
        name = name or f"node{index}"
        key = self.folder / f"{name}.key"
        if not key.exists():
            self._call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key.name)
            if register:
                self._call("flwr", "supernode", "register", f"{key.name}.pub", "tls")
        server = ("--superlink", self.gateway, "--root-certificates", "ca.crt")
        node = f"client={index}" if name == f"node{index}" else f'client={index} folder="{self.folder / name}"'
        options = ("--auth-supernode-private-key", key.name, "--port", str(find_free_port()), "--node-config", node)
        tls = ("--ssl-ca-certfile", "local.crt", "--ssl-certfile", "local.crt", "--ssl-keyfile", "local.key")
        program = (
            (sys.executable, "-m", "idiolect.flower.supernode", "--app", agreed) if agreed else ("flower-supernode",)
        )
        self._start(name, (*program, *server, *options, *tls))

    def start_run(self, app: Path, settings: Mapping[str, Any] | None = None) -> None:
        """Start a run of an app.

        Args:
            app: the app's folder.
            settings: what to change in the app's run config.
        """
        changes = [f"{name}={json.dumps(value)}" for name, value in (settings or {}).items()]
        more = ("--run-config", " ".join(changes)) if changes else ()
        self._call("flwr", "run", str(app), "tls", *more)

    def server_log(self, federation: str) -> str:
        """The server's log so far."""
        path = self.home / federation / "server" / "log.txt"
        return path.read_text() if path.exists() else ""

    def wait_for(self, federation: str, words: str, seconds: float) -> str:
        """Wait until the server's log contains some words; the log.

        Args:
            federation: the federation's name.
            words: what the log must contain.
            seconds: how long to wait.
        """
        deadline = time.monotonic() + seconds
        while words not in (text := self.server_log(federation)):
            if time.monotonic() > deadline:
                raise IdiolectError(
                    f"the server's log does not contain {words!r} after {seconds:g} s:\n{text}\n{self.logs()}"
                )
            time.sleep(0.3)
        return text

    def logs(self, names: Iterable[str] = ("superlink",), lines: int = 15) -> str:
        """The last lines of the logs of some processes."""
        files = (self.folder / f"{name}.log" for name in names)
        return "\n".join("\n".join(file.read_text().splitlines()[-lines:]) for file in files if file.exists())

    def kill(self, name: str) -> None:
        """Kill a process and its children, as a crash would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, 9)
        process.wait()

    def kill_server(self, federation: str) -> None:
        """Kill the ServerApp of a federation, which its lock names, and the SuperLink."""
        holder = (self.home / federation / "server" / LOCK).read_text()
        os.kill(int(holder.split()[1]), 9)
        self.kill("superlink")

    def stop(self, name: str) -> None:
        """Terminate a process; kill it if it does not end."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    def _start(self, name: str, command: tuple[str, ...]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait_until_it_listens(self, name: str, address: str) -> None:
        host, port = address.split(":")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            time.sleep(0.2)
        raise IdiolectError(f"the {name} does not listen; see {self.folder / name}.log")

    def _call(self, *command: str) -> None:
        process = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if process.returncode:
            raise IdiolectError(f"{' '.join(command)} failed: {process.stdout[-2000:]}{process.stderr[-2000:]}")

    def _make_certificates(self) -> None:
        """Make a certificate authority, a certificate for the SuperLink, and one for use inside the SuperNodes."""
        (self.folder / "san.txt").write_text(SAN)
        request = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj")
        self._call(*request, "/CN=testbed", "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt")
        self._call(*request, "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
        signing = ("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key")
        self._call(*signing, "-CAcreateserial", "-days", "2", "-extfile", "san.txt", "-out", "server.crt")
        local = ("-x509", "-days", "2", "-addext", SAN, "-keyout", "local.key", "-out", "local.crt")
        self._call(*request, "/CN=localhost", *local)


def write_named_app(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Write a Flower app whose data and model come from its settings by name; its folder.

    Args:
        folder: a folder that does not exist yet.
        settings: the app's run config.
    """
    folder.mkdir(parents=True)
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=folder.name, settings=lines))
    (folder / "federation.py").write_text(NAMED_APP)
    return folder


def find_free_port() -> int:
    """Find a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
