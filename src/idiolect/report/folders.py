"""From folders of runs to a study. Whatever cannot be read, or does not belong together, is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..comparison.conditions import Conditions, protocol
from ..comparison.entrants import resolve_baseline
from ..comparison.folder import SPEC, read_spec
from ..comparison.leaderboard import Comparison, rank
from ..core.errors import InputError, RunFolderError
from ..runs.folder import differences
from ..runs.result import SCHEMA_VERSION
from ..runs.settings import Config, read_config
from .study import Run, Study, settings_of

NEEDED = {
    **dict.fromkeys(("seed", "rounds", "rounds_done"), int),
    **dict.fromkeys(("method", "metric", "direction", "point", "selection"), str),
    **dict.fromkeys(("data", "data_hash", "engine", "config_hash"), str),
    "versions": dict,
}
"""What a summary must hold beside scores and costs, and as what."""
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a file of another form ends in."""


def read_study(folders: Sequence[str | Path], baseline: str | None = None) -> Study:
    """The runs of some folders, which may be folders of runs, of comparisons, or folders of such.

    Runs that are not complete are left out with a note, and so are seeds that not every method has. Runs that may not
    stand in one table, since their settings, data or partitions differ, are an error.
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
    check_together(runs, merge_by_method(specs, "rates"))
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
    kept = {method: {seed: by_seed[seed] for seed in common} for method, by_seed in by_method.items()}
    against = baseline or next((each["baseline"] for each in specs if each.get("baseline") in kept), None)
    against = against if against in kept else resolve_baseline(against, list(kept))
    return Study(make_comparison(kept, against, specs, folders), kept, notes)


def merge_by_method(specs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What comparisons say of single methods under one name."""
    return {method: each for spec in specs for method, each in spec.get(name, {}).items()}


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder, or the folder itself."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give the folders of runs or of comparisons")
    places = sorted(path.parent for path in folder.rglob("config.yaml"))
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
        settings_of(config)
    except InputError as error:
        raise RunFolderError(f"{folder / 'config.yaml'} is damaged: {error}") from error
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
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
    return Run(folder, config, summary) if summary["rounds_done"] >= summary["rounds"] else None


def is_whole(summary: Mapping[str, Any]) -> bool:
    """Whether a summary has all that a table needs; what is missing deep inside it is an error."""
    rank({summary["method"]: {summary["seed"]: summary}}, summary["method"], {summary["seed"]: 0})
    parts = (summary[summary["metric"]]["selected"]["round"], *map(summary["partition"].get, ("name", "hash")))
    known = all(isinstance(summary.get(name), kind) for name, kind in NEEDED.items())
    return known and None not in parts


def check_together(runs: Sequence[Run], rates: Mapping[str, float]) -> None:
    """Refuse runs that do not belong into one table; `rates` are learning rates of methods that have their own."""
    first, seen = next((run for run in runs if run.method not in rates), runs[0]), dict[tuple[str, int], Run]()
    grounds: dict[int, Run] = {}
    for run in runs:
        if (before := seen.setdefault((run.method, run.seed), run)) is not run:
            raise RunFolderError(
                f"{before.folder} and {run.folder} are both {run.method} with seed {run.seed}; give one of them"
            )
        own = ("lr",) if run.config.get("lr") == rates.get(run.method) else ()
        differ = differences(run.config, settings_of(first.config), ignore=("method", "seed", "engine", *own))
        if run.summary["metric"] != first.summary["metric"]:
            differ.append(f"metric: {run.summary['metric']} there, {first.summary['metric']} now")
        same = grounds.setdefault(run.seed, run)
        for what, here, there in (
            ("data", run.summary["data_hash"], same.summary["data_hash"]),
            ("partition", run.summary["partition"]["hash"], same.summary["partition"]["hash"]),
        ):
            differ += [f"{what}: {here} there, {there} now"] if here != there else []
        if differ:
            text = "; ".join(differ).replace(" there,", f" in {run.folder},").replace(" now", f" in {first.folder}")
            raise RunFolderError(f"these runs do not belong into one table ({text}); report them apart")


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
    grounds = {}
    for seed in seeds:
        summary = runs[baseline][seed].summary
        grounds[seed] = Conditions(
            data_hash=summary["data_hash"],
            partition_hash=summary["partition"]["hash"],
            partition=summary["partition"]["name"],
            data=summary["data"],
            clients=summary["partition"]["clients"],
            model=model,
            fedavg_steps=runs["fedavg"][seed].summary["steps"] if "fedavg" in runs else written.get("fedavg_steps", 0),
        )
    summaries = {method: {seed: run.summary for seed, run in by_seed.items()} for method, by_seed in runs.items()}
    rates = merge_by_method(specs, "rates")
    own = {"lr": specs[0].get("lr", Config.lr), "rates": rates} if rates else {}
    return Comparison(
        protocol(settings_of(first.config), seeds, baseline, grounds, first.summary) | own,
        rank(summaries, baseline, {seed: ground.fedavg_steps for seed, ground in grounds.items()}),
        tuple(
            {"method": run.method, "seed": run.seed, "folder": str(run.folder), "summary": dict(run.summary)}
            for by_seed in runs.values()
            for run in by_seed.values()
        ),
        merge_by_method(specs, "skipped"),
    )


def _read_protocol(folder: str | Path) -> dict[str, Any]:
    """The protocol of a comparison that is complete, for what single runs do not know."""
    try:
        return dict(json.loads((Path(folder) / "comparison.json").read_text(encoding="utf-8"))["protocol"])
    except (OSError, *MALFORMED):
        return {}


def _listing(seeds: Sequence[int] | Mapping[int, Any]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
