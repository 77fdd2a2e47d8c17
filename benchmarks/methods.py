"""What each registered method costs over FedAvg: seconds of whole rounds (training and evaluation), gradients of the
model and forward passes beside them, and bytes of the training, on the same work.

python benchmarks/methods.py --pairs 9
python benchmarks/methods.py --methods "fedlag, lgmix" --only LeNet
python benchmarks/methods.py --only "LeNet-5w b32" --own

With `--own` the network is a class with functional calls, as users write it. A row is marked where the time exceeds the
gradients, a forward pass being a third of one, by more than a third.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from ours import Ours, make_plan
from own_networks import NETWORKS
from ratios import interleaved, ratio, show
from workload import WORKS, Work, federation, network

from idiolect.contract import methods
from idiolect.core.errors import IdiolectError
from idiolect.core.expressions import split
from idiolect.data import Federation

# Methods that take turns with one FedAvg.
GROUP = 7
EXTRA = ("pfedgate(s=1)", "pfedgate(s=0.3, split=structured)", "pfedgate(s=0.3, split=structured, gate_pool=1)")


OWN = {"MLP b32": "MLP 784-200-10", "LeNet-5w b32": "LeNet-5w"}


def start(work: Work, data: Federation, engine: str, method: str, own: bool) -> Ours:
    """A method before its first round."""
    torch.manual_seed(0)
    module = NETWORKS[OWN[work.name]].build() if own else network(work, data)
    return Ours(make_plan(module, data, work.batch, method), engine)


def count(ours: Ours) -> dict[str, float]:
    """What a method has done so far."""
    facts = ours.store.facts
    return {
        "gradients": facts.gradients,
        "passes": facts.passes,
        "bytes up": facts.bytes_up,
        "bytes down": facts.bytes_down,
    }


def start_all(work: Work, data: Federation, engine: str, names: list[str], own: bool) -> dict[str, Ours]:
    """Methods after their set-up rounds and the first, in which every client gets its state; what cannot run here is
    left out."""
    running = {}
    for name in names:
        try:
            running[name] = start(work, data, engine, name, own)
        except IdiolectError as error:
            print(f"{name}: {error}")
            continue
        while running[name].rounds < 1:
            running[name].round()
    return running


def main() -> None:
    """Time all methods in turn with FedAvg, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="expressions; by default all, and pfedgate's variants")
    parser.add_argument("--only", default="LeNet", help="part of a workload's name")
    parser.add_argument("--own", action="store_true", help="the MLP and LeNet-5w as classes with functional calls")
    parser.add_argument("--engine", default="", help="by default vector for the MLP, workers for convolutions")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    chosen = list(split(options.methods)) if options.methods else [n for n in methods if n != "fedavg"] + list(EXTRA)
    for work in (each for each in WORKS if options.only in each.name and (each.name in OWN or not options.own)):
        data = federation(work, options.clients)
        draw = torch.Generator().manual_seed(1)
        public = (torch.randn(200, *work.shape, generator=draw), torch.randint(0, 10, (200,), generator=draw))
        data = type(data)(data.clients, data.name, 10, "given", "0" * 12, public)
        engine = options.engine or ("vector" if work.model.startswith("mlp") else "workers")
        base, rows = start(work, data, engine, "fedavg", options.own), list[dict[str, Any]]()
        base.round()
        usual = count(base)
        for at in range(0, len(chosen), GROUP):
            running = start_all(work, data, engine, chosen[at : at + GROUP], options.own)
            before = {name: count(ours) for name, ours in running.items()}
            seconds = interleaved({"fedavg": base, **running}, options.pairs)
            for name, ours in running.items():
                cost, done = ratio(seconds[name], seconds["fedavg"]), options.pairs + 1
                row = {"method": name, "time": cost["median"], "low": cost["low"], "high": cost["high"]}
                after = count(ours)
                each = {what: (after[what] - before[name][what]) / done for what in usual}
                gradients = each["gradients"] / usual["gradients"]
                row |= {"gradients": gradients, "passes": each["passes"] / usual["gradients"]}
                row["more"] = "*" if cost["median"] > 4 / 3 * (gradients + row["passes"] / 3) else ""
                row |= {what: each[what] / usual[what] for what in ("bytes up", "bytes down")}
                rows.append(row)
                print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else v for k, v in row.items()), flush=True)
                ours.close()
        base.close()
        title = f"{work.name}, {engine}, {options.clients} clients, {options.pairs} pairs: over FedAvg"
        title = f"own class, {title}" if options.own else title
        show(title, rows, options.out / f"methods {work.name}.json")


if __name__ == "__main__":
    main()
