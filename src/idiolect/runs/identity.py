"""What a run is: settings, clients, data, networks, first weights, own code and this library. It is recorded when a run
starts, and compared by everything that opens the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..contract import Method
from ..core.fingerprint import LENGTH, fingerprint
from ..core.registry import describe
from ..engines import Plan
from .folder import compare_settings, require_same
from .settings import UNHASHED, Config
from .setup import weights_hash
from .store import Store

FACT = "identity"
LIBRARY = ("numerics",)
"""What matters to those who continue a run, and not to those who read it."""
SHOWN = 3
"""How many names a sentence lists."""


@dataclass(frozen=True)
class Identity:
    """What a run is. Two runs with the same identity have the same results.

    Attributes:
        config: the settings that change results.
        clients, unseen: the clients' names in order, and those that never train.
        data, partition, weights: hashes of the samples and splits, of who has which, and of the initial weights.
        networks: for each network, the shapes of its parameters, buffers and constants by name.
        model_of: for each client its network's position; empty where there is one network.
        code: hashes of the code of method, model, loss, metrics and schedule, and of transforms if there are any.
        numerics: the number of this library that is raised when its results change; a version alone changes nothing.
    """

    config: Mapping[str, Any]
    clients: Sequence[str]
    unseen: Sequence[str]
    data: str
    partition: str
    weights: str
    networks: Sequence[Mapping[str, Sequence[int]]]
    model_of: Sequence[int]
    code: Mapping[str, str]
    numerics: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they come back from JSON."""
        return dict(json.loads(json.dumps(asdict(self))))

    def digests(self) -> dict[str, Any]:
        """A short form for tables: what is longer than a hash is hashed."""
        short = {name: _digest(value) if name in _LONG else value for name, value in self.as_dict().items()}
        return {name: value for name, value in short.items() if name != "config"}

    def differences(self, before: Mapping[str, Any], ignore: Iterable[str] = ()) -> list[str]:
        """How what was recorded of a run, in full or in short, differs from this, a sentence each."""
        return differences(before, self.as_dict() if "config" in before else self.digests(), ignore)

    def of_method(self, method: Method, config: Config) -> Identity:
        """The identity of a run of another method or under other settings, all else being the same."""
        code = {**self.code, "method": _method_code(method)}
        return Identity(**{**vars(self), "config": _settings(config, method), "code": code})


_LONG = ("clients", "unseen", "networks", "model_of")


def identify(plan: Plan, config: Config) -> Identity:
    """What a run of a plan is."""
    from .. import __numerics__

    data, first = plan.data, plan.tasks[0]
    return Identity(
        config=_settings(config, plan.method),
        clients=data.client_names,
        unseen=[data.client_names[index] for index in sorted(data.unseen)],
        data=data.fingerprint,
        partition=data.partition_hash,
        weights=weights_hash(plan),
        networks=[
            {
                name: list(leaf.shape)
                for leaves in (*task.initial.values(), task.net.constants)
                for name, leaf in leaves.items()
            }
            for task in plan.tasks
        ],
        model_of=plan.networks,
        code={
            "method": _method_code(plan.method),
            "model": fingerprint([task.module for task in plan.tasks], tensors=False),
            "loss": fingerprint(first.loss_fn),
            "metrics": fingerprint(first.metrics),
            "schedule": fingerprint(plan.training.schedule),
            **({"transform": fingerprint(data.transform.code)} if data.transform else {}),
        },
        numerics=__numerics__,
    )


def _settings(config: Config, method: Method) -> dict[str, Any]:
    settings = {name: value for name, value in config.as_dict().items() if name not in UNHASHED}
    return settings | {"method": describe(method)}


def _method_code(method: Method) -> str:
    """The code of a method and of those that it wraps; their options are settings."""
    chain: list[Any] = [method]
    while (inner := getattr(chain[-1], "inner", None)) is not None:
        chain.append(inner)
    return fingerprint([type(link) for link in chain])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:LENGTH]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], ignore: Iterable[str] = ()) -> list[str]:
    """How what was recorded differs from what is given now, a sentence each. Both are identities as plain values; what
    was not recorded is not compared.

    >>> differences({"data": "a1", "clients": ["s1", "s2"], "numerics": 1}, {"data": "b2", "clients": ["s1", "s3"]})
    ['data: a1 there, b2 now', 'clients: s2 there, but not now, s3 now, but not there']
    """
    sentences: list[str] = []
    for name, value in now.items():
        if name in before and before[name] != value and name not in ignore:
            sentences += _DIFFER.get(name, _other)(name, before[name], value)
    return sentences


def _other(name: str, before: Any, now: Any) -> list[str]:
    return [f"{name.replace('_', ' ')}: {before} there, {now} now"]


def _other_settings(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return compare_settings(before, now)


def _other_code(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [f"the code of the {what} has changed" for what in now if before.get(what) != now[what]]


def _other_names(name: str, before: Any, now: Any) -> list[str]:
    if not isinstance(before, list) or not isinstance(now, list):
        return _other(name, before, now)
    gone, new = ([entry for entry in a if entry not in set(b)] for a, b in ((before, now), (now, before)))
    if not gone and not new:
        return [f"{name}: in another order"]
    parts = [f"{_listing(gone)} there, but not now"] if gone else []
    return [f"{name}: {', '.join([*parts, *([f'{_listing(new)} now, but not there'] if new else [])])}"]


def _other_networks(name: str, before: Any, now: Any) -> list[str]:
    if not isinstance(before, list) or not isinstance(now, list):
        return _other(name, before, now)
    if len(before) != len(now):
        return [f"{name}: {len(before)} there, {len(now)} now"]
    return [text for there, here in zip(before, now, strict=True) for text in _other_shapes(there, here)]


def _other_shapes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{name} {before[name]} there, {now[name]} now" for name in now if before.get(name, now[name]) != now[name]
    ]
    names = _other_names("parameters", list(before), list(now)) if list(before) != list(now) else []
    return names + ([f"shapes: {_listing(lines)}"] if lines else [])


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more


_DIFFER = {
    "config": _other_settings,
    "code": _other_code,
    "clients": _other_names,
    "unseen": _other_names,
    "networks": _other_networks,
}


def read_identity(path: Path) -> dict[str, Any]:
    """What was recorded of the run in a store; nothing where there is no store, or the run has not begun."""
    if not path.is_file():
        return {}
    store = Store(path, write=False, incomplete=True)
    try:
        return dict(store.fact(FACT) or {})
    finally:
        store.close()


def digest_of(store: Store) -> dict[str, Any]:
    """A short form of what was recorded of a run."""
    return Identity(**store.fact(FACT)).digests()


def record_identity(store: Store, identity: Identity) -> None:
    """Write down what a run is."""
    store.record({FACT: identity.as_dict()})


def require_code(store: Store, plan: Plan, config: Config, folder: Path, given: Iterable[str], advice: str) -> None:
    """Raise an error that names what differs, if settings, the method, or what else of a run that is opened without its
    data is given again, are others than the store says."""
    known, full = dict(store.fact(FACT) or {}), plan.tasks[0]
    code = {**known["code"], "method": _method_code(plan.method)}
    if {"model", "models"} & set(given):
        code["model"] = fingerprint([task.module for task in plan.tasks], tensors=False)
    if "loss" in given:
        code["loss"] = fingerprint(full.loss_fn)
    if "metrics" in given:
        code["metrics"] = fingerprint(full.metrics)
    now = {"config": _settings(config, plan.method), "code": code}
    require_same(folder, "a run", differences(known, now), advice)


def require_identity(
    store: Store, identity: Identity, folder: Path | None, advice: str, ignore: Iterable[str] = ()
) -> None:
    """Raise an error that names what differs, if a store is that of another run."""
    known = store.fact(FACT)
    if known is not None:
        require_same(folder, "a run", identity.differences(known, ignore), advice)
