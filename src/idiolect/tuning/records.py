"""The folder of a tuning: what was asked for, and every trial, written when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..contract import Method
from ..core.errors import RunFolderError
from ..core.files import write_text
from ..runs.folder import ELSEWHERE, differences, require_free, require_same
from ..runs.settings import Config, read_config
from .space import Space

SPEC, TRIALS = "tuning.yaml", "trials.jsonl"


@dataclass(frozen=True)
class Candidate:
    """A method by its expression, and what may be tried with it."""

    name: str
    method: Method
    space: Space


@dataclass(frozen=True)
class TrialRecord:
    """One trial: what was tried and its result.

    Attributes:
        method: the expression that was given.
        number: which trial of the method it is, from 0.
        values: what was tried, by the path of the option.
        expression, lr: the method with these values, and the learning rate.
        score, round: the best validation score and its round, counted from 1; None without a score.
        steps, seconds: local steps, and time.
        error: why there is no score.
    """

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


def open_folder(folder: Path, config: Config, candidates: Sequence[Candidate]) -> list[TrialRecord]:
    """The trials that a folder holds, after a check that they were made under the same settings."""
    asked = {each.name: {path: str(dimension) for path, dimension in each.space.items()} for each in candidates}
    if not (folder / SPEC).is_file():
        require_free(folder, "exists and holds no tuning")
    else:
        stored = read_config(folder / SPEC)
        known = stored.pop("spaces", {})
        if not isinstance(known, dict):
            raise RunFolderError(f"{folder / SPEC} is damaged: it lists no spaces; {ELSEWHERE}")
        differ = differences(stored, config, ignore=("method",))
        differ += [f"the space of {name}" for name in asked if name in known and known[name] != asked[name]]
        require_same(folder, "a tuning", differ)
        asked = {**known, **asked}
    settings = {name: value for name, value in config.as_dict().items() if name != "method"}
    write_text(folder / SPEC, yaml.safe_dump({"spaces": asked, **settings}, sort_keys=False))
    return read_trials(folder / TRIALS)


def read_trials(path: Path) -> list[TrialRecord]:
    """The trials in a file; none if there is no file."""
    if not path.is_file():
        return []
    try:
        records = [TrialRecord(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        valid = all(isinstance(each.values, dict) and isinstance(each.score, float | None) for each in records)
    except (ValueError, TypeError):
        valid = False
    if not valid:
        raise RunFolderError(f"{path} is damaged; remove it to start again, or use another folder")
    return records


def write_trials(folder: Path, records: Sequence[TrialRecord]) -> None:
    """Write all trials, the whole file or none of it."""
    write_text(folder / TRIALS, "".join(json.dumps(asdict(record)) + "\n" for record in records))
