"""How often advice is right: the advised method beside the best of a tuned comparison, on six federations.

    python benchmarks/advice.py --out results/advice             # all that is not done yet, then the table
    python benchmarks/advice.py --out results/advice heart text  # these

For each federation: `advise` with its race; then every method of the line-up, the three that the rules recommend and
the winner get the same trials on validation data (learning rate and options) and compete over seeds. Everything is
remembered in the folder, so the same command goes on where it was stopped. The table is Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

import idiolect
from idiolect.data import load

torch.set_num_threads(1)
LINEUP = (
    *("fedavg", "finetune(fedavg)", "local", "fedper", "fedrep", "ditto", "apfl", "fedala", "fedbn", "fedem", "fedamp"),
    *("scaffold", "lgmix"),
)
"""At least one of each family, and local training."""
SMALL = {"engine": "loop", "batch_size": 16, "lr": 0.1, "eval_every": 2}


HEART_RATE = 5
"""Among the inputs of `heart`: the highest heart rate in a test under strain."""


def heart_rate() -> dict[str, Any]:
    """Four hospitals' patients, whose highest heart rate is told from the rest: a regression."""
    clients = {}
    for client in load("heart").clients:
        x, _ = client.take(client.indices.long())
        rest = torch.cat([x[:, :HEART_RATE], x[:, HEART_RATE + 1 :]], 1)
        clients[client.name] = (rest, x[:, HEART_RATE : HEART_RATE + 1])
    return clients


FEDERATIONS: dict[str, dict[str, Any]] = {
    "heart": {"title": "natural clients: heart disease, 4 hospitals", "data": "heart", "model": "mlp(hidden=[16])",
              "rounds": 12},
    "regression": {"title": "regression: their highest heart rate", "data": heart_rate,
                   "model": "mlp(hidden=[16])", "rounds": 12, "lr": 0.03},
    "survival": {"title": "survival: TCGA-BRCA, 6 regions", "data": "tcga-brca", "model": "mlp(hidden=[16])",
                 "rounds": 12, "lr": 0.03},
    "labels": {"title": "label skew: MNIST, Dirichlet 0.1, 10 clients", "data": "mnist(samples=1000)",
               "partition": "dirichlet(0.1, balanced=true, min_size=10)", "clients": 10, "model": "mlp(hidden=[32])",
               "rounds": 12},
    "text": {"title": "text: AG News, Dirichlet 0.3, 8 clients", "data": "ag-news(samples=800, length=60)",
             "partition": "dirichlet(0.3, balanced=true, min_size=10)", "clients": 8, "model": "fasttext",
             "rounds": 16, "lr": 1.0},
    "inputs": {"title": "feature shift: four digit domains", "model": "mlp(hidden=[32])", "rounds": 12,
               "data": "digits5(domains=[mnist, svhn, usps, mnistm], per_domain=200, side=12)"},
}  # fmt: skip


def study(name: str, folder: Path, trials: int, seeds: int) -> dict[str, Any]:
    """Advice and a tuned comparison of one federation, as plain values."""
    settings = {**SMALL, **{key: value for key, value in FEDERATIONS[name].items() if key != "title"}}
    given = settings.pop("data")
    data = given() if callable(given) else given
    if callable(given):
        settings.pop("partition", None)
    started = time.process_time()
    place = folder / f"{name}-advice.json"
    if not place.is_file():
        advice = idiolect.advise(
            data, **{k: v for k, v in settings.items() if k != "rounds"}, rounds=settings["rounds"]
        )
        place.write_text(json.dumps(advice.as_dict(), default=str))
    told = json.loads(place.read_text())
    recommended = [choice["method"] for choice in told["recommended"]]
    methods = list(dict.fromkeys([*LINEUP, *recommended, told["best"]]))
    found, board = idiolect.compare_tuned(
        runnable(methods, data, settings), data, trials=trials, seeds=seeds, out=folder / name, **settings
    )
    by_given = {tuned.expression: tuned.method for tuned in found.methods}
    scores = {by_given[row.method]: row.selected.mean for row in board.rows}
    return {
        "name": name, "title": FEDERATIONS[name]["title"], "metric": board.protocol["metric"],
        "direction": board.protocol["direction"], "scores": scores, "advised": told["best"], "sure": told["sure"],
        "first": recommended[0], "sentence": told["sentence"], "trials": trials, "seeds": seeds,
        "cpu": time.process_time() - started,
    }  # fmt: skip


def runnable(methods: list[str], data: Any, settings: dict[str, Any]) -> list[str]:
    """The methods that can run on these data."""
    from idiolect.comparison.conditions import find_errors
    from idiolect.comparison.entrants import resolve_methods
    from idiolect.runs.setup import separate

    config, objects = separate({"data": data, **settings})
    errors = find_errors(resolve_methods(methods), config, objects)
    return [method for method in methods if method not in errors]


def gap(result: dict[str, Any], method: str) -> float:
    """By how much of the best score a method is worse; NaN where it could not be scored."""
    sign = -1 if result["direction"] == "lower" else 1
    known = {name: sign * score for name, score in result["scores"].items() if score == score}
    best = max(known.values())
    return (best - known[method]) / abs(best) if method in known else float("nan")


def write_table(results: list[dict[str, Any]]) -> str:
    """The table, as Markdown."""
    lines = [
        "| federation | advised | its gap | sure | the rules' first | its gap | best of the tuned comparison |",
        "|---|---|---:|---|---|---:|---|",
    ]
    for each in results:
        sign = -1 if each["direction"] == "lower" else 1
        best = max((name for name in each["scores"]), key=lambda name: sign * each["scores"][name])
        lines.append(
            f"| {each['title']} | `{each['advised']}` | {100 * gap(each, each['advised']):.1f} % |"
            f" {'yes' if each['sure'] else 'no'} | `{each['first']}` | {100 * gap(each, each['first']):.1f} % |"
            f" `{best}`, {each['metric']} {each['scores'][best]:.4g} ({len(each['scores'])} methods,"
            f" {each['trials']} trials, {each['seeds']} seeds) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Do what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(FEDERATIONS), help=f"of {', '.join(FEDERATIONS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    done = []
    for name in given.names:
        place = given.out / f"{name}.json"
        if not place.is_file():
            result = study(name, given.out, given.trials, given.seeds)
            part = place.with_suffix(".part")
            part.write_text(json.dumps(result))
            os.replace(part, place)
        done.append(json.loads(place.read_text()))
        print(f"{name}: advised {done[-1]['advised']}, {done[-1]['cpu']:.0f} s of CPU", flush=True)
    print(write_table(done))


if __name__ == "__main__":
    main()
