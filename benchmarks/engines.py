"""Whole rounds of each engine over the bare PyTorch steps of the same work, and over a naive federation.

python benchmarks/engines.py --pairs 9
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ratios import interleaved, ratio, show
from workload import WORKS, Bare, Naive, Ours, federation


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved rounds of each contestant")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--naive", action="store_true", help="also time the naive federation")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    for work in WORKS:
        if options.only not in work.name:
            continue
        data = federation(work, options.clients)
        ours = {"workers": ("workers", "fp32"), "workers bf16": ("workers", "bf16")}
        if work.model.startswith("mlp"):
            ours = {"vector": ("vector", "fp32"), "workers": ("workers", "fp32")}
        contestants = {"bare": Bare(work, data)}
        contestants |= {name: Ours(work, data, *how[:1], precision=how[1]) for name, how in ours.items()}
        if work.model.startswith("mlp"):
            contestants["vector, any method"] = Ours(work, data, "vector", "fedprox")
        if options.naive:
            contestants["naive"] = Naive(work, data)
        seconds = interleaved(contestants, options.pairs)
        rows = []
        for name in contestants:
            bare = ratio(seconds[name], seconds["bare"])
            row = {
                "engine": name,
                "seconds": sorted(seconds[name])[len(seconds[name]) // 2],
                "over bare": bare["median"],
            }
            row |= {"low": bare["low"], "high": bare["high"]}
            if options.naive:
                row["naive over it"] = ratio(seconds["naive"], seconds[name])["median"]
            rows.append(row | {"pairs": options.pairs})
        show(f"{work.name}, {options.clients} clients x 320 samples", rows, options.out / f"engines {work.name}.json")
        for each in contestants.values():
            each.close()


if __name__ == "__main__":
    main()
