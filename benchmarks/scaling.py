"""How a round's time and memory grow with the sampled clients, and that they do not with all clients.

    python benchmarks/scaling.py                 sampled 10 to 1,000; total 100 to 100,000
    python benchmarks/scaling.py --large         10,000 clients with 257,000 personal parameters each (10 GB on disk)
    python benchmarks/scaling.py --million       runs from a partition to a summary, of up to 1,000,000 clients

Every client is sampled from one pool of images, so that the data cost nothing. Rounds are without evaluation. Memory is
anonymous: pages that belong to no file; files that are mapped or cached can be given back at any time.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from ours import Ours, make_plan
from ratios import show

import idiolect
from idiolect.data import Client, Federation, divide
from idiolect.models import build

SAMPLES = 32


def federation(clients: int, classes: int = 10) -> Federation:
    """Clients that all hold samples of one small pool."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1, 28, 28, generator=draw)
    y = torch.randint(0, classes, (4096,), generator=draw)
    starts = [(SAMPLES * number) % (4096 - 2 * SAMPLES) for number in range(clients)]
    members = tuple(
        Client(
            f"client {number}",
            x,
            y,
            torch.arange(start, start + SAMPLES, dtype=torch.int32),
            torch.arange(0, dtype=torch.int32),
            torch.arange(start + SAMPLES, start + SAMPLES + 4, dtype=torch.int32),
        )
        for number, start in enumerate(starts)
    )
    return Federation(members, "random images", classes, "given", "0" * 12)


def run_whole(total: int, rounds: int, folder: str) -> dict[str, Any]:
    """A run of Ditto with 100 clients per round, a model of 314 parameters and 1,000 clients that are evaluated, by
    stage. Seconds are of the processor, of all processes."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5 * total, 8, generator=draw), torch.randint(0, 10, (5 * total,), generator=draw)
    before, began = anonymous_mb(), cpu_seconds()
    divide(RULE, y.numpy(), clients=total)
    dealt, marks = cpu_seconds(), list[float]()
    data = Federation.from_pool(x, y, RULE, clients=total)
    cut = cpu_seconds()
    gc.collect()
    described, peak = anonymous_mb() - before, 0.0

    def watch(progress: Any) -> None:
        nonlocal peak
        marks.append(cpu_seconds())
        peak = max(peak, anonymous_mb())

    with tempfile.TemporaryDirectory(dir=folder) as place:
        out = Path(place) / "run"
        settings: dict[str, Any] = {"rounds": rounds, "eval_every": rounds, "eval_clients": 1000, "out": out}
        idiolect.run(
            "ditto", data, model="mlp(hidden=[16])", participation=100 / total, engine=ENGINE, watch=watch, **settings
        )
        ended, stored = cpu_seconds(), sum(file.stat().st_size for file in out.rglob("*.*"))
    steps = sorted(after - earlier for earlier, after in pairwise(marks[:-1]))
    usual = steps[len(steps) // 2]
    return {
        "clients": total,
        "partition s": dealt - began,
        "federation s": cut - dealt - (dealt - began),
        "until round 1 ended s": marks[0] - cut,
        "round s": usual,
        "evaluation s": marks[-1] - marks[-2] - usual,
        "summary s": ended - marks[-1],
        "bytes per client": round_up(described * 2**20 / total),
        "peak over data MB": round_up(peak - before),
        "stored MB": stored / 1e6,
    }


RULE, ENGINE = "shards(per_client=1)", "vector(count=1)"


def cpu_seconds() -> float:
    """What this process and its children have used of the processor."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for pid in ["self", *(str(child.pid) for child in multiprocessing.active_children())]:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def anonymous_mb() -> float:
    """Anonymous memory of this process and its children, in megabytes."""
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1])
    return total / 1024


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What some work finds in a process of its own, so that nothing is left over from the one before."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(work()))
    child.start()
    found: dict[str, Any] = queue.get()
    child.join()
    return found


def measure(total: int, sampled: int, method: str, model: str, engine: str, rounds: int, folder: str) -> dict[str, Any]:
    """Rounds of one setting."""
    return apart(lambda: _measure(total, sampled, method, model, engine, rounds, folder))


def _measure(
    total: int, sampled: int, method: str, model: str, engine: str, rounds: int, folder: str
) -> dict[str, Any]:
    torch.set_num_threads(1)
    data = federation(total)
    plan = make_plan(build(model, data, seed=0), data, 32, method, participation=sampled / total)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file = Path(place) / "state.sqlite"
        ours = Ours(plan, engine, file, eval_every=10**9)
        seconds, peak = [], 0.0
        for _ in range(rounds):
            seconds.append(ours.round())
            peak = max(peak, anonymous_mb())
        stored = file.stat().st_size / 1e6
        visited = len(ours.store.visited_clients())
        ours.close()
    later = sorted(seconds[1:])
    cut = max(0, int((len(later) - 1.96 * len(later) ** 0.5) / 2))
    return {
        "clients": total,
        "sampled": sampled,
        "method": method,
        "parameters": sum(leaf.numel() for leaf in plan.tasks[0].net.params.values()),
        "seconds per round": later[len(later) // 2],
        "low": later[cut],
        "high": later[-1 - cut],
        "anonymous MB": round_up(peak),
        "stored MB": round_up(stored),
        "clients with state": visited,
    }


def round_up(number: float) -> int:
    """A whole number."""
    return int(number + 0.5)


def main() -> None:
    """Measure, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the 10 GB case, every client visited")
    parser.add_argument("--million", action="store_true", help="whole runs of 1,000 to 1,000,000 clients")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--folder", default=".", help="where the stores lie while it runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    if options.million:
        rows = [
            apart(lambda total=total: run_whole(total, options.rounds, options.folder))
            for total in (1_000, 10_000, 100_000, 1_000_000)
        ]
        show("whole runs, seconds of the processor", rows, options.out / "scaling million.json")
        return
    if options.large:
        rows = [measure(10_000, 100, "local", "mlp(hidden=[324])", "vector", 300, options.folder)]
        show("10,000 clients with a personal model each", rows, options.out / "scaling large.json")
        return
    model = "mlp(hidden=[64])"
    sampled = [
        measure(1000, n, "ditto", model, "vector", options.rounds, options.folder) for n in (10, 30, 100, 300, 1000)
    ]
    show("sampled clients, of 1,000", sampled, options.out / "scaling sampled.json")
    totals = [
        measure(n, 100, method, model, "vector", options.rounds, options.folder)
        for method in ("fedavg", "ditto")
        for n in (100, 1_000, 10_000, 100_000)
    ]
    show("all clients, 100 sampled", totals, options.out / "scaling total.json")


if __name__ == "__main__":
    main()
