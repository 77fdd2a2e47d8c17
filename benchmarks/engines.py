"""Whole rounds of each engine over the bare PyTorch steps of the same work, over pfl, and over a naive federation.

python benchmarks/engines.py --pairs 9
python benchmarks/engines.py --only LeNet --without pfl naive
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ours import Ours, make_plan
from peers import Pfl
from ratios import interleaved, ratio, show
from workload import WORKS, Work, bare, federation, naive, network

from idiolect.contract import Batch, ClientContext, Slots
from idiolect.kernels import has_bf16
from idiolect.methods.fedavg import FedAvg

OTHERS = ("pfl", "naive")


@dataclass(frozen=True)
class Stepwise(FedAvg):
    """FedAvg with a step of its own, so that engines cannot know that it is the plain one."""

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """The plain step."""
        return super().step(ctx, work, batch)


def contestants(work: Work, clients: int, without: list[str]) -> dict[str, Any]:
    """The bare steps, our engines and the others."""
    data = federation(work, clients)

    def ours(engine: str, method: str | FedAvg = "fedavg", precision: str = "fp32") -> Ours:
        return Ours(make_plan(network(work, data), data, work.batch, method, precision), engine)

    running: dict[str, Any] = {"bare steps": bare(work, clients)}
    if work.model.startswith("mlp"):
        running["vector, plain SGD"] = ours("vector")
        running["vector, any step"] = ours("vector", Stepwise())
    running["workers"] = ours("workers")
    if not work.model.startswith("mlp"):
        if has_bf16("cpu"):
            running["workers, bf16"] = ours("workers", precision="bf16")
        else:
            print("no bf16: this processor has no instructions for it")
    if "pfl" not in without:
        running["pfl"] = Pfl(work, clients)
    if "naive" not in without:
        running["naive"] = naive(work, clients)
    return running


def main() -> None:
    """Measure, print a table per network, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved rounds of each contestant")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--without", nargs="*", default=[], choices=OTHERS)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    for work in WORKS:
        if options.only not in work.name:
            continue
        running = contestants(work, options.clients, options.without)
        try:
            seconds = interleaved(running, options.pairs)
        finally:
            for contestant in running.values():
                contestant.close()
        rows = []
        for name in running:
            bare = ratio(seconds[name], seconds["bare steps"])
            row: dict[str, Any] = {"": name, "seconds": sorted(seconds[name])[len(seconds[name]) // 2]}
            row |= {"over bare": bare["median"], "low": bare["low"], "high": bare["high"]}
            for other in OTHERS:
                if other in running:
                    times = ratio(seconds[other], seconds[name])
                    row |= {
                        f"{other} over it": times["median"],
                        f"low {other}": times["low"],
                        f"high {other}": times["high"],
                    }
            rows.append(row)
        title = f"{work.name}, {options.clients} clients x 320 samples, {options.pairs} interleaved rounds"
        show(title, rows, options.out / f"engines {work.name}.json")


if __name__ == "__main__":
    main()
