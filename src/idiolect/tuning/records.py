"""The folder of a tuning: what was asked for, and every trial, written when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..contract import Method
from ..core.checksums import add_checksum, take_checksum
from ..core.errors import RunFolderError
from ..core.files import write_text
from ..runs.folder import ELSEWHERE, differences, require_free, require_same
from ..runs.identity import Identity
from ..runs.identity import differences as compare_identities
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
        gradients, seconds: gradients of local training, and time.
        error: why there is no score.
        early: the validation score after the first third of the rounds, where trials may be pruned.
        pruned: after which round it was stopped, since it was worse there than most; 0 if it was not.
    """

    method: str
    number: int
    values: Mapping[str, Any]
    expression: str
    lr: float
    score: float | None
    round: int
    gradients: int
    seconds: float
    error: str = ""
    early: float | None = None
    pruned: int = 0


def open_folder(
    folder: Path, config: Config, candidates: Sequence[Candidate], identity: Identity, prune: bool = False
) -> list[TrialRecord]:
    """The trials that a folder holds, after a check that they were made under the same settings, on the same data and
    with the same code; `identity` is that of FedAvg."""
    identities = {each.name: identity.of_method(each.method, config).digests() for each in candidates}
    asked = {
        candidate.name: {path: str(dimension) for path, dimension in candidate.space.items()}
        for candidate in candidates
    }
    if not (folder / SPEC).is_file():
        require_free(folder, "exists and holds no tuning")
    else:
        stored = read_config(folder / SPEC)
        known, before, pruned = stored.pop("spaces", {}), stored.pop("identities", {}), stored.pop("prune", False)
        if not isinstance(known, dict) or not isinstance(before, dict):
            raise RunFolderError(f"{folder / SPEC} is damaged: it lists no spaces; {ELSEWHERE}")
        differ = differences(stored, config, ignore=("method",))
        differ += [
            f"the space of {name}" for name in asked if name in known and not same_space(known[name], asked[name])
        ]
        differ += [f"prune: {pruned} there, {prune} now"] if pruned != prune else []
        for name in identities.keys() & before.keys():
            differ += [f"{name}: {what}" for what in compare_identities(before[name], identities[name])]
        require_same(folder, "a tuning", differ)
        asked, identities = {**known, **asked}, {**before, **identities}
    settings = {name: value for name, value in config.as_dict().items() if name != "method"}
    content = {"spaces": asked, "identities": identities, **({"prune": True} if prune else {}), **settings}
    write_text(folder / SPEC, yaml.safe_dump(content, sort_keys=False))
    return read_trials(folder / TRIALS)


def same_space(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Whether two spaces are the same, in the same order: what is tried next depends on it."""
    return list(a.items()) == list(b.items())


def read_trials(path: Path) -> list[TrialRecord]:
    """The trials in a file; none if there is no file."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [TrialRecord(**take_checksum(json.loads(line))) for line in lines]
        valid = all(isinstance(record.values, dict) and isinstance(record.score, float | None) for record in records)
    except (ValueError, TypeError):
        valid = False
    if not valid:
        raise RunFolderError(f"{path} is damaged; remove it to start again, or use another folder")
    return records


def write_trials(folder: Path, records: Sequence[TrialRecord]) -> None:
    """Write all trials, the whole file or none of it."""
    write_text(folder / TRIALS, "".join(json.dumps(add_checksum(asdict(record))) + "\n" for record in records))
