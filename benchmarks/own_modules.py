"""Users' own modules: whole rounds of FedAvg on `workers` and `vector` over the bare PyTorch steps of the same work.

    python benchmarks/own_modules.py --pairs 9
    python benchmarks/own_modules.py --quick
    python benchmarks/own_modules.py --only MLP --method fedprox

Clients have 320 samples to train on, 32 for validation and 32 for test; the yardstick, two processes of one thread,
trains and scores the same. All take turns, round by round; a ratio is that of two rounds beside each other, and the
table gives the median with an interval of about 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ours import Ours, make_plan
from own_networks import NETWORKS, Own
from ratios import interleaved, ratio, show
from torch import nn
from workload import LR, Apart

from idiolect.data import Client, Federation
from idiolect.engines.stackability import why_not_stackable

SPLITS, BATCH = (320, 32, 32), 32


def federation(own: Own, clients: int) -> Federation:
    """Clients of random samples; speed does not depend on what they show."""
    draw = torch.Generator().manual_seed(0)
    each = sum(SPLITS)
    shape = (clients * each, *own.shape)
    x = torch.randint(0, own.tokens, shape, generator=draw) if own.tokens else torch.randn(shape, generator=draw)
    y = torch.randint(0, 10, (clients * each,), generator=draw)
    members = []
    for number in range(clients):
        train, val, test = (torch.arange(each) + number * each).split(SPLITS)
        members.append(Client(f"client {number}", x, y, train, val, test))
    return Federation(tuple(members), "random samples", 10, "given", "0" * 12)


def build(own: Own) -> nn.Module:
    """The network, with the same initial values for everybody."""
    torch.manual_seed(0)
    return own.build()


def prepare_bare(name: str, clients: int, number: int, processes: int) -> Callable[[], None]:
    """The bare PyTorch steps of some clients: plain SGD on one module, then validation and test data through it."""
    torch.set_num_threads(1)
    own = NETWORKS[name]
    members = federation(own, clients).clients[number::processes]
    mine = [[client.split(split) for split in ("train", "val", "test")] for client in members]
    model = build(own)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def do() -> None:
        for (x, y), *held_out in mine:
            model.train()
            for chosen in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, y in held_out:
                    outputs = model(x)
                    F.cross_entropy(outputs, y).item()
                    (outputs.argmax(1) == y).float().mean().item()

    return do


def compare(name: str, method: str, clients: int, pairs: int) -> dict[str, Any]:
    """A row of the table: one network."""
    own = NETWORKS[name]
    data = federation(own, clients)
    plan = make_plan(build(own), data, BATCH, method)
    problem = why_not_stackable(plan)
    wanted = ["workers"] if problem else ["workers", "vector"]
    running = {text: Ours(make_plan(build(own), data, BATCH, method), text) for text in wanted}
    bare = Apart(prepare_bare, *((name, clients, number, 2) for number in range(2)))
    seconds = interleaved({"bare": bare, **running}, pairs)
    for ours in running.values():
        ours.close()
    bare.close()
    ratios = {text: ratio(seconds[text], seconds["bare"]) for text in wanted}
    best = min(ratios, key=lambda text: ratios[text]["median"])
    row: dict[str, Any] = {"own module": name, "bare, s": sorted(seconds["bare"])[pairs // 2], "best": best}
    row |= {"over bare": ratios[best]["median"], "low": ratios[best]["low"], "high": ratios[best]["high"]}
    row |= {text: ratios[text]["median"] if text in ratios else "" for text in ("workers", "vector")}
    return {**row, "aim": own.aim, "not stacked": problem[:40]}


def main() -> None:
    """Time all networks, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="10 clients, 5 pairs")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    clients, pairs = (10, 5) if options.quick else (options.clients, options.pairs)
    rows = []
    for name in (name for name in NETWORKS if options.only in name):
        rows.append(compare(name, options.method, clients, pairs))
        shown = [
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in rows[-1].items()
        ]
        print(", ".join(shown), flush=True)
    title = f"{options.method}, {clients} clients, {pairs} pairs: whole rounds over the bare steps"
    show(title, rows, options.out / "own modules.json")


if __name__ == "__main__":
    main()
