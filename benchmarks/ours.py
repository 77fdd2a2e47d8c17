"""Whole rounds of Idiolect as a contestant, one at a time."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn
from workload import LR

from idiolect import Federation, Method, Task
from idiolect.contract import Training, methods
from idiolect.core.allocator import tune_allocator
from idiolect.engines import Plan, engines
from idiolect.engines.machine import threads
from idiolect.engines.slots import first_server
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store


def make_plan(
    module: nn.Module,
    data: Federation,
    batch_size: int,
    method: str | Method = "fedavg",
    precision: str = "fp32",
    participation: float = 1.0,
    device: str = "cpu",
) -> Plan:
    """A run without an end: a network, a federation and a method, trained with plain SGD."""
    x, y = data.clients[0].split("train")
    task = Task(module, (x[:2], y[:2]), classes=data.classes)
    task.net.precision = torch.bfloat16 if precision == "bf16" else None
    task.net.to(device)
    training = Training(lr=LR, batch_size=batch_size, device=device)
    return Plan(methods.build(method), (task,), data, rounds=10**6, training=training, participation=participation)


class Ours:
    """Whole rounds: sampling, training, aggregation, evaluation, commit. State is in the file `path` or in memory."""

    def __init__(self, plan: Plan, engine: str, path: Path | None = None, eval_every: int = 1) -> None:
        tune_allocator()  # as the command line does
        self.plan, self.store = plan, Store(path)
        self.engine = engines.build(engine).make(plan)
        self.loop = RoundLoop(plan, self.engine, self.store, eval_every)
        self.rounds = self.loop.first_round
        self.server = first_server(plan.server(self.rounds))

    def round(self) -> float:
        """Seconds of one round."""
        with threads(1):
            started = time.perf_counter()
            self.server = self.loop.do_round(self.rounds, self.server, lambda _: None)
            seconds = time.perf_counter() - started
        self.rounds += 1
        return seconds

    @property
    def sent(self) -> dict[str, int]:
        """The bytes of training so far, up and down."""
        return {"up": self.store.facts.bytes_up, "down": self.store.facts.bytes_down}

    def close(self) -> None:
        """Stop the engine and close the store."""
        self.engine.close()
        self.store.close()
