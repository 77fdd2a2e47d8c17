"""What methods cost over FedAvg in time of the processor, for machines that are busy with other work: whole rounds on
an MLP, written as a class, in one process and in stacks, split into training, the server's step, and evaluation with
the messages. `--profile` also prints where that time goes.

    python benchmarks/cpu_costs.py
    python benchmarks/cpu_costs.py --methods "fedprox, ditto" --clients 32 --rounds 9
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from ours import make_plan
from ratios import show
from torch import Tensor, nn
from workload import federation, find_work

from idiolect.contract import Slots
from idiolect.core.allocator import tune_allocator
from idiolect.core.expressions import split
from idiolect.data import Federation
from idiolect.engines.client_evaluation import evaluate_group
from idiolect.engines.slots import aggregate, first_server
from idiolect.engines.stacking import train_stack

WORK = find_work("MLP b32")
METHODS = "fedprox, ditto, scaffold, pfedme, fedlag, lgmix, flayer, fedfac, pfedgate(s=0.3, split=structured)"
CHUNK, GROUP = 13, 8  # of training and of evaluation, as with 100 clients


class MLP(nn.Module):
    """784-200-10, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(784, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(F.relu(self.body(x.flatten(1))))  # type: ignore[no-any-return]


class Rounds:
    """A method's rounds, all of them in this process."""

    def __init__(self, data: Federation, method: str) -> None:
        torch.manual_seed(0)
        self.plan = make_plan(MLP(), data, WORK.batch, method)
        self.server = first_server(self.plan.server(0))
        self.states: dict[int, Slots | None] = dict.fromkeys(self.plan.participants(0))
        self.number = -self.plan.method.needs.setup_rounds

    def round(self) -> tuple[float, float, float]:
        """Seconds of the processor for training, for the server's step, and for the rest."""
        plan, number, ids, marks = self.plan, self.number, list(self.states), [time.process_time()]
        message = plan.method.download(plan.server(number), self.server, ids)
        marks.append(time.process_time())
        outcomes = dict(train_stack(plan, number, dict(self.states), message, CHUNK))
        marks.append(time.process_time())
        self.states |= {index: outcome.state for index, outcome in outcomes.items()}
        uploads = {index: outcome.upload for index, outcome in outcomes.items() if outcome.upload is not None}
        self.server = aggregate(plan.server(number), self.server, uploads)
        marks.append(time.process_time())
        message = plan.method.download(plan.server(number + 1), self.server, ids)
        for at in range(0, len(ids), GROUP):
            evaluate_group(plan, number, {i: self.states[i] for i in ids[at : at + GROUP]}, message, False)
        marks.append(time.process_time())
        self.number += 1
        return marks[2] - marks[1], marks[3] - marks[2], marks[1] - marks[0] + marks[4] - marks[3]


def main() -> None:
    """Let methods take turns with FedAvg; print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_allocator()  # as in workers
    data = federation(WORK, options.clients)
    running = {name: Rounds(data, name) for name in ("fedavg", *split(options.methods))}
    for each in running.values():
        each.round()
        each.round()
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in running}
    for _ in range(options.rounds):
        for name, each in running.items():
            times[name].append(each.round())
    usual = [sum(parts) for parts in times["fedavg"]]
    rows = []
    for name, taken in times.items():
        training, server, rest = (median(part) / median(usual) for part in zip(*taken, strict=True))
        total = median(sum(parts) / base for parts, base in zip(taken, usual, strict=True))
        rows.append({"": name, "over FedAvg": total, "training": training, "server": server, "the rest": rest})
    title = f"{WORK.name}, {options.clients} clients, {options.rounds} rounds: time of the processor over FedAvg's"
    show(title, rows, options.out / "cpu costs.json")
    for name, each in running.items() if options.profile else ():
        print(f"\n{name}")
        with cProfile.Profile(time.process_time) as profile:
            each.round()
        pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(24)


if __name__ == "__main__":
    main()
