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
from idiolect.engines.client import fresh_optimizer
from torch.profiler import ProfilerActivity, profile

from idiolect import Batch, Task
from idiolect.contract.context import Context
from idiolect.contract.method import methods
from idiolect.core import tree
from idiolect.kernels import speed_up
from idiolect.models import LeNet5w
from idiolect.task.network import Net
from idiolect.task.optimizers import SGD

VARIANTS = [f"pfedgate(s={s}, split=structured{pool})" for pool in (", gate_pool=1", "") for s in ("1.0", "0.5", "0.3")]


@dataclass
class Client:
    """One client of a method at the start of a round, with one batch."""

    ctx: Context
    work: dict
    view: dict
    batch: Batch

    def step(self):
        self.ctx.method.step(self.ctx, self.work, self.batch)

    def predict(self):
        with torch.no_grad():
            self.ctx.method.predict(self.ctx, self.view, self.batch.x)

    def held(self):
        """The bytes of the slots that exist before a step."""
        return sum(leaf.numel() * leaf.element_size() for slot in self.work.values() for leaf in slot.values())


def client(expression: str, batch: Batch, fast: bool) -> Client:
    torch.manual_seed(0)
    method = methods.build(expression)
    task = Task(LeNet5w().build((3, 32, 32), 10), (batch.x[:2], batch.y[:2]), classes=10)
    if fast:
        speed_up(task.net.module)
    method.check(task)
    nets = {name: Net(module) for name, module in method.modules(task).items()}
    ctx = Context(method, task, nets, SGD(), lr=0.01, round=0, rounds=1, seed=0, variant=method.variant(0))
    own = method.client_init(ctx)
    work = method.begin(ctx, own, task.initial)
    ctx.phase = method.phases(ctx)[0]
    work = {
        **fresh_optimizer(ctx, ctx.phase, work),
        **work,
        "log": {"loss": torch.zeros(()), "samples": torch.zeros(())},
    }
    return Client(ctx, work, method.view(ctx, own, task.initial), batch)


def seconds(action) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def ratio(one, other, pairs: int) -> tuple[float, float, float]:
    """The median of one's time in units of the other's, and an order-statistics interval for it."""
    for _ in range(2):
        one(), other()
    ratios = []
    for pair in range(pairs):
        order = (one, other) if pair % 2 else (other, one)
        times = {action: seconds(action) for action in order}
        ratios.append(times[one] / times[other])
    ratios.sort()
    cut = max(0, int((pairs - 1.96 * pairs**0.5) / 2))
    return statistics.median(ratios), ratios[cut], ratios[-1 - cut]


def peak(action) -> int:
    """The most bytes of tensors that an action holds at once."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        action()
    now = most = 0
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
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
    base = dense.held() + peak(dense.step)
    step, guess = (statistics.median(seconds(action) for _ in range(9)) for action in (dense.step, dense.predict))
    print(f"LeNet-5w, batch {size}, one thread, {max(9, chosen.pairs)} pairs, torch {torch.__version__}")
    print(f"FedAvg: step {1000 * step:.1f} ms, prediction {1000 * guess:.1f} ms, memory {base / 2**20:.1f} MB\n")
    print(f"{'of FedAvg':44} {'step':>20} {'prediction':>20} {'memory':>7} {'active':>7} {'gate':>9}")
    for expression in VARIANTS:
        gated = client(expression, batch, chosen.fast)
        times = [
            ratio(getattr(gated, action), getattr(dense, action), max(9, chosen.pairs))
            for action in ("step", "predict")
        ]
        texts = [f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in times]
        after = gated.ctx.method.step(gated.ctx, gated.work, batch)
        active, gate = float(after["pfedgate.tally"]["density"]), tree.size(gated.work["pfedgate.gate"])
        memory = (gated.held() + peak(gated.step)) / base
        print(f"{expression:44} {texts[0]:>20} {texts[1]:>20} {memory:7.2f} {active:7.3f} {gate:9,d}", flush=True)


if __name__ == "__main__":
    main()
