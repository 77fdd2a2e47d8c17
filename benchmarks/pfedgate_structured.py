"""What pFedGate's structured split saves: a local training step, a prediction and their memory on LeNet-5w, against
FedAvg's dense ones.

    python benchmarks/pfedgate_structured.py [--pairs 15] [--batch 128] [--fast]

One thread; each variant is timed in turn with FedAvg, pair by pair, in CPU time, which other processes disturb least.
The table gives the median of the pairs' ratios and an interval that holds it with about 95 % confidence. Memory is what
a step holds at its peak (slots that exist before it included), in tensors. pFedGate's own numbers (table 2, GPU, batch
128) are 1.05, 0.83 and 0.72 of FedAvg's time and 1.03, 0.82 and 0.66 of its memory for s = 1, 0.5 and 0.3.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from ours import make_plan
from torch.profiler import ProfilerActivity, profile
from workload import federation, find_work, network

from idiolect.contract import Batch, ClientContext, Slots
from idiolect.core import tree
from idiolect.kernels import speed_up
from idiolect.testing.scalar import personal_model, start_training

VARIANTS = [f"pfedgate(s={s}, split=structured{pool})" for pool in (", gate_pool=1", "") for s in ("1.0", "0.5", "0.3")]


@dataclass
class Client:
    """One client of a method at the start of a round, with one batch."""

    ctx: ClientContext
    work: Slots
    model: Slots
    batch: Batch

    def step(self) -> Slots:
        """A step of training."""
        return self.ctx.phase.step(self.ctx, self.work, self.batch)

    def predict(self) -> None:
        """The personal model's outputs."""
        with torch.no_grad():
            self.ctx.method.predict(self.ctx, self.model, self.batch.x)

    def memory(self) -> int:
        """The bytes of the slots that exist before a step."""
        return sum(leaf.numel() * leaf.element_size() for each in self.work.values() for leaf in each.values())


def client(expression: str, batch: Batch, fast: bool) -> Client:
    work = find_work("LeNet-5w b32")
    data = federation(work, 1)
    plan = make_plan(network(work, data), data, len(batch.x), expression)
    if fast:
        speed_up(plan.tasks[0].net.module)
    plan.method.check(plan.tasks[0])
    ctx, slots = start_training(plan)
    return Client(ctx, slots, personal_model(plan)[1], batch)


def seconds(action) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def ratio(one, other, pairs: int) -> tuple[float, float, float]:
    """The median of one's time in units of the other's, and an order-statistics interval for it."""
    for _ in range(2):
        one(), other()
    found = []
    for pair in range(pairs):
        order = (one, other) if pair % 2 else (other, one)
        times = {action: seconds(action) for action in order}
        found.append(times[one] / times[other])
    found.sort()
    cut = max(0, int((pairs - 1.96 * pairs**0.5) / 2))
    return statistics.median(found), found[cut], found[-1 - cut]


def peak(action) -> int:
    """The most bytes of tensors that an action holds at once."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        action()
    now = most = 0
    events = [each for each in watched.profiler.kineto_results.events() if each.name() == "[memory]"]
    for each in sorted(events, key=lambda each: each.start_ns()):
        now += each.nbytes()
        most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="timed pairs per variant, at least 9")
    parser.add_argument("--batch", type=int, default=128, help="samples per batch")
    parser.add_argument("--fast", action="store_true", help="the network arranged as worker processes arrange it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = chosen.batch
    batch = Batch(torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,)), torch.ones(size))
    dense = client("fedavg", batch, chosen.fast)
    base = dense.memory() + peak(dense.step)
    step, guess = (statistics.median(seconds(action) for _ in range(9)) for action in (dense.step, dense.predict))
    print(f"LeNet-5w, batch {size}, one thread, {max(9, chosen.pairs)} pairs, torch {torch.__version__}")
    print(f"FedAvg: step {1000 * step:.1f} ms, prediction {1000 * guess:.1f} ms, memory {base / 2**20:.1f} MB\n")
    print(f"{'of FedAvg':44} {'step':>20} {'prediction':>20} {'memory':>7} {'active':>7} {'gate':>9}")
    for expression in VARIANTS:
        each = client(expression, batch, chosen.fast)
        times = [
            ratio(getattr(each, action), getattr(dense, action), max(9, chosen.pairs)) for action in ("step", "predict")
        ]
        texts = [f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in times]
        after = each.step()
        active, gate = float(after["pfedgate.tally"]["density"]), tree.size(each.work["pfedgate.gate"])
        memory = (each.memory() + peak(each.step)) / base
        print(f"{expression:44} {texts[0]:>20} {texts[1]:>20} {memory:7.2f} {active:7.3f} {gate:9,d}", flush=True)


if __name__ == "__main__":
    main()
