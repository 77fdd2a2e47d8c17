"""The folder of a tuning: what was asked for, and every trial, written when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..comparison.folder import differences
from ..contract import Method
from ..core.errors import RunFolderError
from ..core.files import write_text
from ..engines import AutoChoice, engines
from ..runs.settings import Config, read_config
from .space import Space

SPEC, TRIALS = "tuning.yaml", "trials.jsonl"


@dataclass(frozen=True)
class Entrant:
    """A method and what may be tried with it."""

    name: str
    method: Method
    space: Space


@dataclass(frozen=True)
class Attempt:
    """One trial: what was tried and what came of it; without a score, why there is none."""

    method: str
    number: int
    values: Mapping[str, Any]
    expression: str
    lr: float
    score: float | None
    round: int
    steps: int
    seconds: float
    error: str = ""


def with_known_engine(config: Config, folder: Path | None) -> Config:
    """The configuration, with the engine that a tuning was started with where `auto` leaves it open."""
    automatic = isinstance(engines.build(config.engine), AutoChoice)
    if automatic and folder is not None and (folder / SPEC).is_file():
        return replace(config, engine=str(read_config(folder / SPEC).get("engine", config.engine)))
    return config


def opened(folder: Path | None, config: Config, entrants: Sequence[Entrant]) -> list[Attempt]:
    """The trials that a folder holds, after a check that they were made under the same settings."""
    if folder is None:
        return []
    asked = {each.name: {path: str(dimension) for path, dimension in each.space.items()} for each in entrants}
    if not (folder / SPEC).is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunFolderError(f"{folder} exists and holds no tuning; choose another folder with --out")
    else:
        held = read_config(folder / SPEC)
        known = held.pop("spaces", {})
        if not isinstance(known, dict):
            raise RunFolderError(f"{folder / SPEC} is damaged: it lists no spaces; choose another folder with --out")
        differ = differences(held, config, ignore=("method",))
        differ += [f"the space of {name}" for name in asked if name in known and known[name] != asked[name]]
        if differ:
            raise RunFolderError(
                f"{folder} holds a tuning under other settings ({'; '.join(differ)});"
                " choose another folder with --out, or use the same settings"
            )
        asked = {**known, **asked}
    settings = {name: each for name, each in config.as_dict().items() if name != "method"}
    write_text(folder / SPEC, yaml.safe_dump({"spaces": asked, **settings}, sort_keys=False))
    return recorded(folder / TRIALS)


def recorded(path: Path) -> list[Attempt]:
    """The trials in a file; none if there is no file."""
    if not path.is_file():
        return []
    try:
        found = [Attempt(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        whole = all(isinstance(each.values, dict) and isinstance(each.score, float | None) for each in found)
    except (ValueError, TypeError):
        whole = False
    if not whole:
        raise RunFolderError(f"{path} is damaged; remove it to start again, or use another folder")
    return found


def record(folder: Path, records: Sequence[Attempt]) -> None:
    """Write all trials, the whole file or none of it."""
    write_text(folder / TRIALS, "".join(json.dumps(asdict(each)) + "\n" for each in records))
