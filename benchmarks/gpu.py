"""The tables of `engines.py`, `own_modules.py` and `methods.py` on a machine with a GPU, by one command.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cuda:1 --clients 20 --pairs 3 --methods "fedprox, ditto"

Whole rounds on the device, by the loop and by stacks of clients, over the bare PyTorch steps on the same device; then
what methods cost over FedAvg. Rounds take turns, each ends when the device has finished, and a ratio is that of two
beside each other. Nothing in the documents comes from this script unless they say on which machine it was run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ours import Ours, make_plan
from ratios import interleaved, ratio, show
from workload import LR, WORKS, Work, federation, network

from idiolect.core.expressions import split
from idiolect.data import Federation

METHODS = "fedprox, ditto, fedlag, lgmix, flayer, fedfac, pfedgate(s=0.3, split=structured)"
ENGINES = ("loop", "vector(count=1)")


class OnDevice(Ours):
    """A method on a device; a round is over when the device has finished."""

    def __init__(self, work: Work, data: Federation, method: str, engine: str, device: str) -> None:
        torch.manual_seed(0)
        super().__init__(make_plan(network(work, data), data, work.batch, method, device=device), engine)
        self.device = device

    def round(self) -> float:
        """Seconds of one round."""
        started = time.perf_counter()
        super().round()
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - started


class BareOnDevice:
    """The bare steps and the evaluation of the same work: one module, one optimiser, no federation."""

    def __init__(self, work: Work, data: Federation, device: str) -> None:
        torch.manual_seed(0)
        self.model, self.work, self.device = network(work, data).to(device), work, device
        self.parts = [[leaf.to(device) for leaf in (*c.split("train"), *c.split("test"))] for c in data.clients]

    def round(self) -> float:
        """Seconds of one round."""
        started, optimizer = time.perf_counter(), torch.optim.SGD(self.model.parameters(), lr=LR)
        for x, y, test_x, _ in self.parts:
            for at in torch.randperm(len(x), device=self.device).split(self.work.batch):
                optimizer.zero_grad()
                F.cross_entropy(self.model(x[at]), y[at]).backward()
                optimizer.step()
            with torch.no_grad():
                self.model(test_x)
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing is held."""


def table(running: dict[str, Any], pairs: int, title: str, out: Path) -> None:
    """Let contestants take turns, and show their times over the first one's."""
    for each in running.values():
        each.round()  # what the first round compiles and loads is not counted
        each.round()
    seconds = interleaved(running, pairs)
    first = next(iter(running))
    rows = [{"": name, "seconds": min(times), **ratio(times, seconds[first])} for name, times in seconds.items()]
    for each in running.values():
        each.close()
    show(title, rows, out)


def main() -> None:
    """Measure on the device that is asked for, print the tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; the same tables for processors are those of engines.py and methods.py")
    name = torch.cuda.get_device_name(options.device)
    for work in (each for each in WORKS if options.only in each.name):
        data = federation(work, options.clients)
        start = (work, data)
        running: dict[str, Any] = {"bare steps": BareOnDevice(*start, options.device)}
        running |= {engine: OnDevice(*start, "fedavg", engine, options.device) for engine in ENGINES}
        title = f"{work.name}, {options.clients} clients, {options.pairs} pairs, {name}"
        table(running, options.pairs, f"{title}: over the bare steps", options.out / f"gpu {work.name}.json")
        for engine in ENGINES:
            methods = {m: OnDevice(*start, m, engine, options.device) for m in ("fedavg", *split(options.methods))}
            path = options.out / f"gpu methods {work.name} {engine}.json"
            table(methods, options.pairs, f"{title}, {engine}: over FedAvg", path)


if __name__ == "__main__":
    main()
