"""Fed-TCGA-BRCA with the patients of all regions in one place, beside what `idiolect compare` says of them apart: one
model is trained on all training patients, and scored on each region's own test patients.

    python benchmarks/pooled_survival.py --rounds 30 --seeds 5
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

import idiolect
from idiolect.comparison.statistics import interval
from idiolect.data import Federation, load
from idiolect.runs.summary import average
from idiolect.task.scores import c_index


def main() -> None:
    """Train for each seed, and print a row of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    rows = [score(seed, given.rounds) for seed in range(given.seeds)]
    mean, half = interval([overall for overall, _ in rows])
    worst = sum(lowest for _, lowest in rows) / len(rows)
    print(f"| pooled | {mean:.3f} ± {half:.3f} | worst region {worst:.3f} |")


def score(seed: int, rounds: int) -> tuple[float, float]:
    """The concordance of the pooled model of the selected round, over regions: weighted by patients, and the lowest."""
    regions = load("tcga-brca", seed=seed)
    data = Federation.from_clients({"all": pool(regions)}, seed=seed)
    settings: dict[str, Any] = {"loss": regions.loss, "rounds": rounds, "seed": seed, "engine": "loop"}
    model = idiolect.run("local", data, model="linear", **settings).model("all")
    scores = {}
    for at, region in enumerate(regions.clients):
        x, y = region.split("test")
        with torch.no_grad():
            scores[at] = (float(c_index(model(x), y)), len(y))
    return average(scores), min(value for value, _ in scores.values())


def pool(regions: Federation) -> dict[str, tuple[Tensor, Tensor]]:
    """The training, validation and test patients of all regions."""
    parts = {which: [client.split(which) for client in regions.clients] for which in ("train", "val", "test")}
    return {which: (torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for which, part in parts.items()}


if __name__ == "__main__":
    main()
