"""The folder of a comparison: what was asked for, a folder for every run, and which of them are complete."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..contract import Method
from ..core.errors import RunFolderError
from ..core.registry import describe
from ..runs.folder import CONFIG, ELSEWHERE, SUMMARY, differences, require_free, require_same
from ..runs.settings import Config, read_config
from .conditions import Conditions

SPEC = "comparison.yaml"
LONGEST = 100


@dataclass(frozen=True)
class RunSpec:
    """One run of a comparison: a method, its settings and its folder."""

    method: Method
    config: Config
    folder: Path | None

    @property
    def label(self) -> str:
        """The name of the run in progress reports."""
        return f"{self.config.method} seed {self.config.seed}"


def list_runs(
    methods: Sequence[Method], config: Config, seeds: Sequence[int], rates: Mapping[str, float], folder: Path | None
) -> list[RunSpec]:
    """The runs of a comparison, seed by seed; `rates` are learning rates of methods that have their own."""
    return [
        RunSpec(
            method,
            replace(config, method=name, seed=seed, lr=rates.get(name, config.lr)),
            folder and folder / slug(name) / f"seed-{seed}",
        )
        for seed in seeds
        for method, name in ((method, describe(method)) for method in methods)
    ]


def slug(expression: str) -> str:
    """A folder's name for an expression; one that is nested or long ends in a hash, so that no two share a name.

    >>> slug("finetune(ditto, epochs=2)"), slug("finetune(ditto(epochs=2))")
    ('finetune-ditto-epochs=2', 'finetune-ditto-epochs=2-2e70c5')
    """
    name = re.sub(r"[^\w.=-]+", "-", expression).strip("-.")[:LONGEST]
    plain = re.fullmatch(r"[\w.-]+(\([\w.=, -]*\))?", expression) and len(expression) <= LONGEST
    return name if plain else f"{name}-{hashlib.sha256(expression.encode()).hexdigest()[:6]}"


def write_spec(
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
    optional = {"skipped": dict(skipped), "rates": dict(rates)}
    return yaml.safe_dump(head | {name: v for name, v in optional.items() if v} | settings, sort_keys=False)


def read_spec(path: Path) -> dict[str, Any]:
    """The file of a comparison as plain values."""
    if not path.is_file():
        raise RunFolderError(f"{path.parent} holds no comparison: {SPEC} is missing")
    values = read_config(path)
    if absent := [name for name in ("methods", "seeds") if not isinstance(values.get(name), list)]:
        raise RunFolderError(f"{path} is damaged: it lists no {' and no '.join(absent)}; use another folder")
    if wrong := [name for name in ("skipped", "rates") if not isinstance(values.get(name, {}), dict)]:
        raise RunFolderError(f"{path} is damaged: {wrong[0]} must be 'name: value' lines; use another folder")
    return values


def check_folder(folder: Path, config: Config, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse a folder that holds something else, or a comparison under other settings, or finished runs of methods
    and seeds that no longer take part."""
    path = folder / SPEC
    if not path.exists():
        require_free(folder, "exists and holds no comparison")
        return
    stored = read_spec(path)
    known = {name: value for name, value in stored.items() if name in config.as_dict()}
    differ = differences(known, config, ignore=("method", "seed"))
    gone = [name for name in stored["methods"] if name not in names and any(folder.glob(f"{slug(name)}/*/{SUMMARY}"))]
    gone += [f"seed {s}" for s in stored["seeds"] if s not in seeds and any(folder.glob(f"*/seed-{s}/{SUMMARY}"))]
    differ += [f"{', '.join(gone)} took part there, but not now"] if gone else []
    require_same(folder, "a comparison", differ)


def read_finished(spec: RunSpec, conditions: Conditions) -> dict[str, Any] | None:
    """The summary of a run that is complete; None if it has to be run or continued; an error if it is another run."""
    folder = spec.folder
    if folder is None or not folder.exists():
        return None
    if not (folder / CONFIG).is_file():
        require_free(folder, "exists and holds no run", f"move it away, or {ELSEWHERE}")
        return None
    differ = differences(read_config(folder / CONFIG), spec.config)
    summary = read_summary(folder)
    if summary is not None and summary["rounds_done"] < spec.config.rounds:
        summary = None
    if summary is not None:
        for what, before, now in (
            ("data", summary.get("data_hash"), conditions.data_hash),
            ("partition", summary.get("partition", {}).get("hash"), conditions.partition_hash),
        ):
            differ += [f"{what}: {before} there, {now} now"] if before != now else []
    require_same(folder, "a run", differ)
    return summary


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run; None if it is missing or damaged: it is written again when the run is continued."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and isinstance(summary.get("rounds_done"), int) else None


def record_run(spec: RunSpec, summary: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """One run for comparison.json: where it is, and its summary."""
    where = None if folder is None or spec.folder is None else spec.folder.relative_to(folder).as_posix()
    return {"method": spec.config.method, "seed": spec.config.seed, "folder": where, "summary": dict(summary)}
