"""The folder of a comparison: what was asked for, a folder for every run, and which of them are complete."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..contract import Method
from ..core.errors import RunFolderError
from ..runs.settings import Config, read_config
from ..runs.store import Store

SPEC = "comparison.yaml"
LONGEST = 100


@dataclass(frozen=True)
class Entry:
    """One run of a comparison."""

    method: Method
    config: Config
    folder: Path | None

    @property
    def label(self) -> str:
        """How progress calls it."""
        return f"{self.config.method} seed {self.config.seed}"


@dataclass(frozen=True)
class Ground:
    """What all methods share under one seed: the hashes of data and partition, and FedAvg's local steps."""

    data_hash: str
    partition_hash: str
    partition: str
    data: str
    clients: int
    model: str
    budget: int


def slug(expression: str) -> str:
    """A folder's name for an expression; one that is nested or long ends in a hash, so that no two share a name.

    >>> slug("finetune(ditto, epochs=2)"), slug("finetune(ditto(epochs=2))")
    ('finetune-ditto-epochs=2', 'finetune-ditto-epochs=2-2e70c5')
    """
    name = re.sub(r"[^\w.=-]+", "-", expression).strip("-.")[:LONGEST]
    plain = re.fullmatch(r"[\w.-]+(\([\w.=, -]*\))?", expression) and len(expression) <= LONGEST
    return name if plain else f"{name}-{hashlib.sha256(expression.encode()).hexdigest()[:6]}"


def spec(
    config: Config,
    names: Sequence[str],
    seeds: Sequence[int],
    baseline: str,
    skipped: Mapping[str, str],
    rates: Mapping[str, float],
) -> str:
    """The comparison as YAML, from which it can be continued or repeated."""
    settings = {k: v for k, v in config.as_dict().items() if k not in ("method", "seed")}
    head = {"methods": list(names), "seeds": list(seeds), "baseline": baseline}
    extra = {"skipped": dict(skipped), "rates": dict(rates)}
    return yaml.safe_dump(head | {name: each for name, each in extra.items() if each} | settings, sort_keys=False)


def read_spec(path: Path) -> dict[str, Any]:
    """What `spec` wrote."""
    if not path.is_file():
        raise RunFolderError(f"{path.parent} holds no comparison: {SPEC} is missing")
    held = read_config(path)
    if absent := [name for name in ("methods", "seeds") if not isinstance(held.get(name), list)]:
        raise RunFolderError(f"{path} is damaged: it lists no {' and no '.join(absent)}; use another folder")
    if wrong := [name for name in ("skipped", "rates") if not isinstance(held.get(name, {}), dict)]:
        raise RunFolderError(f"{path} is damaged: {wrong[0]} must be 'name: value' lines; use another folder")
    return held


def check_folder(folder: Path, config: Config, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse a folder that holds something else, or a comparison under other settings, or finished runs of methods
    and seeds that no longer take part."""
    path = folder / SPEC
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunFolderError(f"{folder} exists and holds no comparison; choose another folder with --out")
        return
    held = read_spec(path)
    differ = differences({k: v for k, v in held.items() if k in config.as_dict()}, config, ignore=("method", "seed"))
    gone = [name for name in held["methods"] if name not in names and any(folder.glob(f"{slug(name)}/*/summary.json"))]
    gone += [f"seed {s}" for s in held["seeds"] if s not in seeds and any(folder.glob(f"*/seed-{s}/summary.json"))]
    differ += [f"{', '.join(gone)} took part there, but not now"] if gone else []
    if differ:
        raise RunFolderError(
            f"{folder} holds a comparison under other settings ({'; '.join(differ)});"
            " choose another folder with --out, or use the same settings"
        )


def differences(held: Mapping[str, Any], config: Config, ignore: Sequence[str] = ()) -> list[str]:
    """How stored settings differ from a configuration; a setting that is not stored has its default."""
    before, now = Config().as_dict() | dict(held), config.as_dict()
    return [
        f"{name}: {before.get(name)} there, {now[name]} now"
        for name in now
        if name not in ("save_models", "cache_mb", *ignore) and before.get(name) != now[name]
    ]


def finished(entry: Entry, ground: Ground) -> dict[str, Any] | None:
    """The summary of a run that is complete; None if it has to be run or continued; an error if it is another run."""
    folder = entry.folder
    if folder is None or not folder.exists():
        return None
    if not (folder / "config.yaml").is_file():
        if not folder.is_dir() or any(folder.iterdir()):
            raise RunFolderError(f"{folder} exists and holds no run; move it away, or choose another folder with --out")
        return None
    differ = differences(read_config(folder / "config.yaml"), entry.config)
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if summary["rounds_done"] < entry.config.rounds:
            summary = None
    except (OSError, ValueError, KeyError, TypeError):
        summary = None  # it is written from the store when the run is continued
    if summary is not None:
        for what, before, now in (
            ("data", summary.get("data_hash"), ground.data_hash),
            ("partition", summary.get("partition", {}).get("hash"), ground.partition_hash),
        ):
            differ += [f"{what}: {before} there, {now} now"] if before != now else []
    if differ:
        raise RunFolderError(
            f"{folder} was run under other settings ({'; '.join(differ)}); choose another folder with --out"
        )
    found: dict[str, Any] | None = summary
    return found


def next_round(entry: Entry) -> int:
    """Where a run stands."""
    path = None if entry.folder is None else entry.folder / "state.sqlite"
    if path is None or not path.is_file():
        return -entry.method.needs.setup_rounds
    store = Store(path, create=False)
    found = int(store.fact("next_round", -entry.method.needs.setup_rounds))
    store.close()
    return found
