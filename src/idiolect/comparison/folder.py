"""The folder of a comparison: what was asked for, a folder for every run, and which of them are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..contract import Method
from ..core.errors import RunFolderError
from ..core.files import remove_folder
from ..core.names import slug
from ..core.registry import describe
from ..runs.folder import CONFIG, ELSEWHERE, SAME, STATE, SUMMARY, differences, require_free, require_same
from ..runs.identity import read_identity
from ..runs.settings import Config, read_config
from ..runs.summary import read_summary as parse_summary
from .conditions import Conditions

SPEC, TUNING = "comparison.yaml", "tuning"
"""The file of a comparison, and the folder of the tuning that came before it, if there was one."""
OWN_VALUES = {"rates": "lr", "rounds_of": "rounds"}
"""What gives single methods values of their own, and of which setting."""


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
    methods: Sequence[Method],
    config: Config,
    seeds: Sequence[int],
    rates: Mapping[str, float],
    rounds: Mapping[str, int],
    folder: Path | None,
) -> list[RunSpec]:
    """The runs of a comparison, seed by seed; `rates` and `rounds` are those of methods that have their own."""

    def configure(name: str, seed: int) -> Config:
        lr, length = rates.get(name, config.lr), rounds.get(name, config.rounds)
        return replace(config, method=name, seed=seed, lr=lr, rounds=length)

    return [
        RunSpec(method, configure(name, seed), folder and folder / slug(name) / f"seed-{seed}")
        for seed in seeds
        for method, name in ((method, describe(method)) for method in methods)
    ]


def write_spec(
    config: Config,
    names: Sequence[str],
    seeds: Sequence[int],
    baseline: str,
    skipped: Mapping[str, str],
    rates: Mapping[str, float],
    budget: str,
    rounds: Mapping[str, int],
) -> str:
    """The comparison as YAML, from which it can be continued or repeated; `rounds` are those of single methods."""
    settings = {k: v for k, v in config.as_dict().items() if k not in ("method", "seed")}
    head = {"methods": list(names), "seeds": list(seeds), "baseline": baseline, "budget": budget}
    optional = {"skipped": dict(skipped), "rates": dict(rates), "rounds_of": dict(rounds)}
    return yaml.safe_dump(head | {name: v for name, v in optional.items() if v} | settings, sort_keys=False)


def read_spec(path: Path) -> dict[str, Any]:
    """The file of a comparison as plain values."""
    if not path.is_file():
        raise RunFolderError(f"{path.parent} holds no comparison: {SPEC} is missing")
    values = read_config(path)
    if absent := [name for name in ("methods", "seeds") if not isinstance(values.get(name), list)]:
        raise RunFolderError(f"{path} is damaged: it lists no {' and no '.join(absent)}; use another folder")
    if wrong := [name for name in ("skipped", *OWN_VALUES) if not isinstance(values.get(name, {}), dict)]:
        raise RunFolderError(f"{path} is damaged: {wrong[0]} must be 'name: value' lines; use another folder")
    return values


def read_measured(folder: Path | None) -> dict[str, int]:
    """The rounds of methods that were measured for a budget in gradients when a comparison began, if any were."""
    if folder is None or not (folder / SPEC).is_file():
        return {}
    stored = read_spec(folder / SPEC)
    return dict(stored.get("rounds_of", {})) if stored.get("budget") == "gradients" else {}


def check_folder(folder: Path, config: Config, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse a folder that holds something else, or a comparison under other settings, or finished runs of methods
    and seeds that no longer take part."""
    path = folder / SPEC
    if not path.exists():
        require_free(folder, "exists and holds no comparison", beside=(TUNING,))
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
    if conditions.identity is not None and not differ:
        identity = conditions.identity.of_method(spec.method, spec.config)
        differ = identity.differences(read_identity(folder / STATE) or (summary or {}).get("identity", {}))
    if summary is not None and summary["rounds_done"] < spec.config.rounds:
        summary = None
    if summary is not None:
        for what, before, now in (
            ("data", summary.get("data_hash"), conditions.data_hash),
            ("partition", summary.get("partition", {}).get("hash"), conditions.partition_hash),
        ):
            differ += [f"{what}: {before} there, {now} now"] if before != now else []
    again = f"run it anew with --rerun '{spec.config.method}' (in Python rerun=[...]), or {SAME}"
    require_same(folder, "a run", list(dict.fromkeys(differ)), again)
    return summary


def remove_runs(specs: Sequence[RunSpec]) -> None:
    """Remove the folders of runs that are to be run anew."""
    for spec in specs:
        if spec.folder is not None and ((spec.folder / CONFIG).is_file() or not spec.folder.exists()):
            remove_folder(spec.folder)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run; None if it is missing or damaged: it is written again when the run is continued."""
    try:
        summary = parse_summary((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary.get("rounds_done"), int) else None


def record_run(spec: RunSpec, summary: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """One run for comparison.json: where it is, and its summary."""
    where = None if folder is None or spec.folder is None else spec.folder.relative_to(folder).as_posix()
    return {"method": spec.config.method, "seed": spec.config.seed, "folder": where, "summary": dict(summary)}
