"""From folders of runs to a study. Whatever cannot be read, or does not belong together, is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..comparison.conditions import Conditions, protocol
from ..comparison.entrants import resolve_baseline
from ..comparison.folder import OWN_VALUES, SPEC, read_spec
from ..comparison.leaderboard import Comparison, rank
from ..core.errors import InputError, RunFolderError
from ..core.files import is_part
from ..runs.folder import differences
from ..runs.identity import differences as identity_differences
from ..runs.result import SCHEMA_VERSION
from ..runs.settings import Config, read_config
from ..runs.summary import read_summary
from .study import Run, Study, settings_of

NEEDED = {
    **dict.fromkeys(("seed", "rounds", "rounds_done"), int),
    **dict.fromkeys(("method", "metric", "direction", "point", "selection", "headline"), str),
    **dict.fromkeys(("data", "data_hash", "engine", "config_hash"), str),
    "versions": dict,
}
"""What a summary must hold beside scores and costs, and as what."""
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a file of another form ends in."""


def read_study(folders: Sequence[str | Path], baseline: str | None = None, trust: bool = False) -> Study:
    """The runs of some folders, which may be folders of runs, of comparisons, or folders of such.

    Runs that are not complete are left out with a note, and so are seeds that not every method has. Runs that may not
    stand in one table, since their settings, data or partitions differ, are an error. Code that the folders name runs
    with `trust`, or if runs on this machine have used it; else what needs models or data is left out with a note.
    """
    places = [place for folder in folders for place in find_runs(Path(folder))]
    notes: list[str] = []
    runs = []
    for place in dict.fromkeys(places):
        if (run := read_run(place)) is not None:
            runs.append(run)
        else:
            notes.append(f"{place} is left out: the run is not complete. Continue it with: idiolect resume {place}.")
    if not runs:
        raise RunFolderError(f"none of the runs is complete, so there is nothing to report. {notes[0]}")
    specs = [read_spec(path) for folder in folders for path in sorted(Path(folder).rglob(SPEC))]
    check_together(runs, {setting: merge_by_method(specs, name) for name, setting in OWN_VALUES.items()})
    by_method: dict[str, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_method.setdefault(run.method, {})[run.seed] = run
    common = sorted(set.intersection(*(set(by_seed) for by_seed in by_method.values())))
    if not common:
        raise RunFolderError(
            "there is no seed that all methods have, so they cannot be compared: "
            + "; ".join(f"{method} has {_listing(by_seed)}" for method, by_seed in by_method.items())
        )
    for method, by_seed in by_method.items():
        if extra := [seed for seed in by_seed if seed not in common]:
            notes.append(f"{method}: {_listing(extra)} left out, since not every method has it.")
    comparable = {method: {seed: by_seed[seed] for seed in common} for method, by_seed in by_method.items()}
    against = baseline or next((spec["baseline"] for spec in specs if spec.get("baseline") in comparable), None)
    against = against if against in comparable else resolve_baseline(against, list(comparable))
    return Study(make_comparison(comparable, against, specs, folders), comparable, notes, trust)


def merge_by_method(specs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What comparisons say of single methods under one name."""
    return {method: value for spec in specs for method, value in spec.get(name, {}).items()}


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder, or the folder itself."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give the folders of runs or of comparisons")
    places = sorted(path.parent for path in folder.rglob("config.yaml") if not is_part(path.parent))
    if not places:
        raise RunFolderError(f"{folder} holds no runs: there is no config.yaml in it; start one with: idiolect run")
    return places


def read_run(folder: Path) -> Run | None:
    """A run, or None if it is not complete."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    config = read_config(folder / "config.yaml")
    try:
        settings = settings_of(config)
    except InputError as error:
        raise RunFolderError(f"{folder / 'config.yaml'} is damaged: {error}") from error
    try:
        summary = read_summary(path.read_text(encoding="utf-8"))
        version = summary["schema"]
        if summary.get(summary["metric"]) == {}:
            raise RunFolderError(f"{folder} has no scores on test data, so there is nothing to report")
        whole = version != SCHEMA_VERSION or is_whole(summary)
    except (OSError, *MALFORMED):
        whole = False
    if not whole:
        raise RunFolderError(f"{path} is damaged; write it again with: idiolect resume {folder}")
    if version != SCHEMA_VERSION:
        raise RunFolderError(f"{path} is of version {version}, but this is for version {SCHEMA_VERSION}; run it again")
    if replace(settings, method=summary["method"]).hash != summary.get("config_hash"):
        raise RunFolderError(
            f"{folder / 'config.yaml'} is not that of the run: it was edited or damaged after the run began; undo that"
        )
    return Run(folder, config, summary) if summary["rounds_done"] >= summary["rounds"] else None


def is_whole(summary: Mapping[str, Any]) -> bool:
    """Whether a summary has all that a table needs; what is missing deep inside it is an error."""
    rank({summary["method"]: {summary["seed"]: summary}}, summary["method"], {summary["seed"]: 0})
    parts = (summary[summary["metric"]]["selected"]["round"], *map(summary["partition"].get, ("name", "hash")))
    known = all(isinstance(summary.get(name), kind) for name, kind in NEEDED.items())
    return known and None not in parts


def check_together(runs: Sequence[Run], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse runs that do not belong into one table; `own` are values of settings that single methods have."""
    usual = (run for run in runs if not any(run.method in values for values in own.values()))
    first, seen = next(usual, runs[0]), dict[tuple[str, int], Run]()
    first_of_seed: dict[int, Run] = {}
    first_of_method: dict[str, Run] = {}
    for run in runs:
        if (before := seen.setdefault((run.method, run.seed), run)) is not run:
            raise RunFolderError(
                f"{before.folder} and {run.folder} are both {run.method} with seed {run.seed}; give one of them"
            )
        chosen = [setting for setting, values in own.items() if run.method in values or first.method in values]
        wrong = [s for s in chosen if run.method in own[s] and run.config.get(s) != own[s][run.method]]
        differ = differences(run.config, settings_of(first.config), ignore=("method", "seed", "engine", *chosen))
        differ += [f"{s}: {run.config.get(s)} there, {own[s][run.method]} now" for s in wrong]
        if run.summary["metric"] != first.summary["metric"]:
            differ.append(f"metric: {run.summary['metric']} there, {first.summary['metric']} now")
        same = first_of_seed.setdefault(run.seed, run)
        for what, actual, expected in (
            ("data", run.summary["data_hash"], same.summary["data_hash"]),
            ("partition", run.summary["partition"]["hash"], same.summary["partition"]["hash"]),
        ):
            differ += [f"{what}: {actual} there, {expected} now"] if actual != expected else []
        kin = first_of_method.setdefault(run.method, run)
        differ += compare_identities(run.summary.get("identity", {}), same.summary.get("identity", {}))
        differ += compare_code(run.summary.get("identity", {}), kin.summary.get("identity", {}))
        if differ:
            text = "; ".join(differ).replace(" there,", f" in {run.folder},").replace(" now", f" in {first.folder}")
            raise RunFolderError(f"these runs do not belong into one table ({text}); report them apart")


def compare_identities(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the identities of two methods' runs under one seed differ, in what all methods share."""
    shared = {name: value for name, value in now.items() if name not in ("data", "partition")}
    if "code" in before and "code" in shared:
        shared["code"] = {**shared["code"], "method": before["code"].get("method")}
    return identity_differences(before, shared)


def compare_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the code of one method differs from seed to seed."""
    method = [identity.get("code", {}).get("method") for identity in (before, now)]
    return ["the code of the method has changed"] if method[0] != method[1] else []


def make_comparison(
    runs: Mapping[str, Mapping[int, Run]],
    baseline: str,
    specs: Sequence[Mapping[str, Any]],
    folders: Sequence[str | Path],
) -> Comparison:
    """The leaderboard of complete runs."""
    seeds = list(runs[baseline])
    first = runs[baseline][seeds[0]]
    written = _read_protocol(folders[0]) if len(folders) == 1 else {}
    model = written.get("model") or first.config.get("model") or "chosen by the data"
    conditions, of_fedavg = {}, runs.get("fedavg")
    for seed in seeds:
        summary = runs[baseline][seed].summary
        conditions[seed] = Conditions(
            data_hash=summary["data_hash"],
            partition_hash=summary["partition"]["hash"],
            partition=summary["partition"]["name"],
            data=summary["data"],
            clients=summary["partition"]["clients"],
            model=model,
            fedavg_gradients=written.get("fedavg_gradients", 0)
            if of_fedavg is None
            else of_fedavg[seed].summary["gradients"],
        )
    summaries = {method: {seed: run.summary for seed, run in by_seed.items()} for method, by_seed in runs.items()}
    own: dict[str, Any] = {"budget": specs[0].get("budget", "rounds")} if specs else {}
    for name, setting in OWN_VALUES.items():
        if values := merge_by_method(specs, name):
            own |= {setting: specs[0].get(setting, getattr(Config, setting)), name: values}
    return Comparison(
        protocol(settings_of(first.config), seeds, baseline, conditions, first.summary) | own,
        rank(summaries, baseline, {seed: condition.fedavg_gradients for seed, condition in conditions.items()}),
        tuple(
            {"method": run.method, "seed": run.seed, "folder": str(run.folder), "summary": dict(run.summary)}
            for by_seed in runs.values()
            for run in by_seed.values()
        ),
        merge_by_method(specs, "skipped"),
        {name: reason for folder in folders for name, reason in read_failed(folder).items() if name not in runs},
    )


def read_failed(folder: str | Path) -> dict[str, str]:
    """The methods of a comparison that learned nothing, and why."""
    try:
        failed = json.loads((Path(folder) / "comparison.json").read_text(encoding="utf-8"))["failed"]
        return {str(name): str(reason) for name, reason in failed.items()}
    except (OSError, *MALFORMED):
        return {}


def _read_protocol(folder: str | Path) -> dict[str, Any]:
    """The protocol of a comparison that is complete, for what single runs do not know."""
    try:
        return dict(json.loads((Path(folder) / "comparison.json").read_text(encoding="utf-8"))["protocol"])
    except (OSError, *MALFORMED):
        return {}


def _listing(seeds: Sequence[int] | Mapping[int, Any]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
