"""What each registered method costs over FedAvg: whole rounds (training and evaluation) on the same work.

python benchmarks/methods.py --pairs 9
python benchmarks/methods.py --methods "fedlag, lgmix" --only LeNet
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from ratios import ratio, show
from workload import WORKS, Ours, federation

from idiolect.errors import IdiolectError
from idiolect.method import methods
from idiolect.registry import split

EXTRA = ("pfedgate(s=1)", "pfedgate(s=0.3, split=structured)", "pfedgate(s=0.3, split=structured, gate_pool=4)")


def main() -> None:
    """Time every method in turn with FedAvg, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="expressions; by default all, and pfedgate's variants")
    parser.add_argument("--only", default="LeNet", help="part of a workload's name")
    parser.add_argument("--engine", default="", help="by default vector for the MLP, workers for convolutions")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    chosen = list(split(options.methods)) if options.methods else [n for n in methods if n != "fedavg"] + list(EXTRA)
    for work in (each for each in WORKS if options.only in each.name):
        data = federation(work, options.clients)
        draw = torch.Generator().manual_seed(1)
        public = (torch.randn(200, *work.shape, generator=draw), torch.randint(0, 10, (200,), generator=draw))
        data = type(data)(data.clients, data.name, 10, "given", "0" * 12, public)
        engine = options.engine or ("vector" if work.model.startswith("mlp") else "workers")
        base, rows = Ours(work, data, engine), list[dict[str, Any]]()
        base.round()
        for name in chosen:
            try:
                ours = Ours(work, data, engine, name)
            except IdiolectError as error:
                print(f"{name}: {error}")
                continue
            for _ in range(2):  # the first round also makes every client's state
                ours.round()
            pairs = [(ours.round(), base.round()) for _ in range(options.pairs)]
            ours.close()
            cost = ratio(*map(list, zip(*pairs, strict=True)))
            rows.append({"method": name, "over fedavg": cost["median"], "low": cost["low"], "high": cost["high"]})
            print(f"{name}: {cost['median']:.2f} [{cost['low']:.2f}, {cost['high']:.2f}]", flush=True)
        base.close()
        show(
            f"{work.name}, {engine}, {options.clients} clients, {options.pairs} pairs",
            rows,
            options.out / f"methods {work.name}.json",
        )


if __name__ == "__main__":
    main()
