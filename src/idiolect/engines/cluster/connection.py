"""The way to a cluster: where it is, what it has, and whether its nodes are like this one."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ClusterError, InputError
from ...core.extras import import_extra
from .messages import Node

log = logging.getLogger("idiolect")

ADDRESS = "RAY_ADDRESS"
START = "start one with `ray start --head` (docs/scaling.md), or use the engine workers, which needs none"
REACH = 5.0
"""Seconds to wait for the head of a cluster."""


def load_ray() -> Any:
    """The package, or one sentence where it is missing."""
    return import_extra("ray", "cluster", "a cluster needs")


def find_address() -> str:
    """The cluster that the environment names; empty where it names none."""
    return os.environ.get(ADDRESS, "")


class Connection:
    """A connection to a cluster. It is closed with the last of those that opened it; one of the user's own stays."""

    _users = 0
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.ray = load_ray()
        self.is_open = True
        with Connection._lock:
            if not self.ray.is_initialized():
                connect(self.ray, find_address() or "auto")
                Connection._users = 1
            elif Connection._users:
                Connection._users += 1

    def close(self) -> None:
        """Leave the cluster, if nothing else here uses it."""
        with Connection._lock:
            if not self.is_open:
                return
            self.is_open = False
            if Connection._users:
                Connection._users -= 1
                if Connection._users == 0:
                    self.ray.shutdown()

    def resources(self) -> Mapping[str, float]:
        """What all nodes have together."""
        return dict(self.ray.cluster_resources())

    def largest(self, name: str) -> float:
        """The most of a resource that one node has."""
        nodes = [node["Resources"].get(name, 0.0) for node in self.ray.nodes() if node["Alive"]]
        return max(nodes, default=0.0)


def connect(ray: Any, address: str) -> None:
    """Join a cluster as a driver; a sentence where there is none."""
    if address.startswith("ray://"):
        raise InputError(
            f"{ADDRESS}={address} is that of a Ray Client, which keeps no data near the runs; run the command on a node"
            " of the cluster instead, or by `ray job submit`"
        )
    if address != "local":
        require_head(address)
    try:
        with quiet():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
        keep_to_the_log()
    except Exception as error:
        raise InputError(explain_refusal(error)) from error


def explain_refusal(error: Exception) -> str:
    """Why this process cannot join a cluster, and what to do.

    >>> print(explain_refusal(ConnectionError("no route")))  # doctest: +ELLIPSIS
    there is no Ray cluster to connect to (no route); start one with ...
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    versions = [line for line in lines if line.startswith(("Ray: ", "Python: "))]
    if len(versions) == 4:
        there, here = (" and ".join(part).replace(":", "") for part in (versions[:2], versions[2:]))
        return f"the cluster was started with {there}, but this is {here}; start both from the same environment"
    return f"there is no Ray cluster to connect to ({lines[0]}); {START}"


def require_head(address: str) -> None:
    """Raise an error if nothing listens at an address: Ray would wait for long."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"{ADDRESS}={address} is no address; write HOST:PORT as `ray start --head` shows it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"there is no Ray cluster at {address} ({error}); {START}") from error


def keep_to_the_log() -> None:
    """Do not let Ray print, whenever a node dies, the node's last sixty lines on the output that is this program's;
    that an actor was lost is said in a sentence."""
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, *_, **__: log.debug("%s", data.get("lines"))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what Ray changes in this process when it is started: handlers of signals and warnings."""
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    usage = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = usage or "0"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if usage is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def describe_node() -> Node:
    """This machine, and what its numbers depend on."""
    from ... import __version__

    return Node(
        platform.node(), __version__, digest_source(), torch.__version__, torch.backends.cpu.get_cpu_capability()
    )


def find_gpu_share() -> float:
    """The share of a GPU that this actor has."""
    resources = load_ray().get_runtime_context().get_assigned_resources()
    return min(1.0, resources.get("GPU", 0.0) or 1.0)


@cache
def digest_source() -> str:
    """A short hash of this package's code, which may differ between installations of one version."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def require_like(node: Node, here: Node) -> None:
    """Raise an error if a node has another Idiolect or PyTorch: its numbers would be others."""
    for what, there, own in (
        ("Idiolect", node.version, here.version),
        ("PyTorch", node.torch, here.torch),
        ("code of Idiolect", node.source, here.source),
    ):
        if there != own:
            raise ClusterError(
                f"the node {node.name} has {what} {there}, and this one has {own}; install the same on all nodes, or"
                " start the node's Ray in the same environment"
            )


def compare_processors(nodes: Sequence[Node], here: Node) -> str:
    """What to say where processors differ, which changes the last bits of sums; nothing where they are alike."""
    others = sorted({f"{node.name} ({node.capability})" for node in nodes if node.capability != here.capability})
    return f"processors differ from {here.capability} here: {', '.join(others)}; results may differ by rounding" * bool(
        others
    )


def require_resources(
    connection: Connection, actors: int | None, cpus: float, gpus: float, what: str = "actors"
) -> int:
    """How many actors to start; an error where the cluster can never place them."""
    total = connection.resources()
    fitting = []
    for kind, name, each in (("cores", "CPU", cpus), ("GPUs", "GPU", gpus)):
        if each <= 0:
            continue
        have, largest = total.get(name, 0.0), connection.largest(name)
        if each > largest:
            most, less = f"has more than {largest:g}", f"ask for {name.lower()}s={largest:g} at most, or add nodes"
            if largest == 0:
                most, less = "has any", f"leave out {name.lower()}s, or add nodes that have some"
            raise InputError(
                f"each of the {what} is to have {each:g} {kind}, but no node of the cluster {most}; {less}"
            )
        if actors is not None and actors * each > have:
            raise InputError(
                f"{actors} {what} with {each:g} {kind} each need {actors * each:g}, but the cluster has {have:g}; use"
                f" {what}={int(have // each)}, or leave it out to use what there is"
            )
        fitting.append(int(have // each))
    return actors or max(1, min(fitting, default=1))


def check_cluster(actors: int | None, cpus: float, gpus: float, what: str = "actors") -> None:
    """Raise an error if there is no cluster, or none that has room for so many."""
    connection = Connection()
    try:
        require_resources(connection, actors, cpus, gpus, what)
    finally:
        connection.close()
