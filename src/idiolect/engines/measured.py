"""What `auto` has measured on this machine, kept in a file, so that the second run of a kind starts at once."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from .. import kernels
from ..core.errors import RunFolderError
from ..core.files import home, write_text
from ..core.fingerprint import fingerprint
from ..core.registry import describe
from ..data.pool_clients import sizes_of
from .machine import cores
from .plan import Plan

MOST = 500
"""Entries that are kept."""


def recall(plan: Plan, cluster: str = "") -> dict[str, float]:
    """Seconds per client that were measured of engines for such a plan, with a cluster at an address or without one;
    empty if none were."""
    known = _read(_file()).get(name_kind(plan) + cluster, {})
    seconds = known.items() if isinstance(known, dict) else ()
    return {text: float(value) for text, value in seconds if isinstance(value, int | float)}


def remember(plan: Plan, seconds: Mapping[str, float], cluster: str = "") -> None:
    """Keep what was measured; where nothing can be written, nothing is kept."""
    kind, path = name_kind(plan) + cluster, _file()
    entries = {name: value for name, value in _read(path).items() if name != kind}
    latest = dict([*entries.items(), (kind, {**recall(plan, cluster), **seconds})][-MOST:])
    with suppress(RunFolderError):
        write_text(path, json.dumps(latest, indent=1))


def name_kind(plan: Plan) -> str:
    """A name for all that the speed of a client's training depends on: the structure of the networks, the method, the
    shapes of data and batches, how clients train, and the machine. Neither weights nor data enter it."""
    sizes = sorted(sizes_of(plan.data.clients)[:, 0].tolist())
    networks = [fingerprint(task.net.module, tensors=False) for task in plan.tasks]
    shapes = [(tuple(leaf.shape[1:]), str(leaf.dtype)) for task in plan.tasks for leaf in task.example]
    training = (plan.training.batch_size, plan.training.epochs, repr(plan.training.optimizer), plan.device)
    counts = (sizes[len(sizes) // 2], sizes[-1], min(len(plan.first_participants), 32))
    precision = [str(task.net.precision) for task in plan.tasks]
    return fingerprint([networks, describe(plan.method), shapes, training, counts, precision, *_machine()])


@cache
def _machine() -> tuple[str, ...]:
    compiled = "numba" if kernels.has_numba() else "pytorch"
    processor = _processor() or platform.processor() or platform.machine()
    return (
        platform.node(),
        processor,
        str(cores()),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        compiled,
    )


def _processor() -> str:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ""


def _file() -> Path:
    return home() / "engines.json"


def _read(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        entries = json.loads(path.read_text(encoding="utf-8"))
        return entries if isinstance(entries, dict) else {}
    return {}
