"""One small run per data set: does it load, train and beat chance, with FedAvg and with one of the papers' methods?

    IDIOLECT_DATA=... python benchmarks/data_smoke.py [--rounds-share 1.0] [--only heart,har]

Prints one table in Markdown: set, clients, model, parameters, samples, score, chance, seconds, MB. Sets whose files are
not there are listed at the end. `--rounds-share 0.2` does a fifth of the rounds.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

import idiolect
from idiolect.data import Federation, load
from idiolect.data.sources import sources
from idiolect.models import build


@dataclass(frozen=True)
class Case:
    """A set, how it is dealt, and what is trained on it."""

    data: str
    model: str
    method: str
    rounds: int
    lr: float = 0.05
    clients: int | None = None
    partition: str | None = None
    batch_size: int = 32
    local_epochs: int = 1
    loss: str | None = None
    optimizer: str = "sgd"


SKEW, MILD = "dirichlet:0.1", "dirichlet:0.5"
CASES = (
    Case("mnist(samples=2000)", "leaf-cnn", "fedlag(fedavg)", 10, lr=0.1, clients=10, partition=SKEW, batch_size=16),
    Case(
        "mnist-writers(writers=20)",
        "mlp",
        "pfedgate",
        40,
        lr=0.1,
        batch_size=16,
        optimizer="sgd(momentum=0.9)",
    ),
    Case(
        "emnist-letters(samples=4000)", "cnn4", "fedlag(fedavg)", 12, lr=0.1, clients=10, partition=SKEW, batch_size=16
    ),
    Case(
        "cifar10(samples=3000)",
        "cnn4",
        "flayer(fedavg)",
        15,
        lr=0.001,
        clients=10,
        partition=MILD,
        batch_size=16,
        optimizer="adam",
    ),
    Case(
        "tiny-imagenet-100",
        "cnn4",
        "flayer(fedavg)",
        8,
        lr=0.001,
        clients=5,
        partition=MILD,
        batch_size=16,
        local_epochs=2,
        optimizer="adam",
    ),
    Case("digits5(per_domain=300)", "digitmodel", "lgmix", 8, lr=0.02),
    Case("office-caltech10(side=32)", "cnn4", "lgmix", 15, batch_size=16),
    Case("office-caltech10(features=surf)", "mlp", "lgmix", 20),
    Case("retina(side=64)", "unet(width=8)", "lgmix", 25, lr=0.01, batch_size=8, loss="dice", optimizer="adam"),
    Case("har", "mlp", "fedfac", 15, lr=0.02),
    Case("heart", "mlp(hidden=[32])", "fedlag(fedavg, k=1)", 20),
    Case(
        "ag-news(samples=6000, length=48)",
        "fasttext",
        "flayer(fedavg)",
        20,
        lr=0.01,
        clients=20,
        partition=SKEW,
        batch_size=16,
        optimizer="adam",
    ),
    Case(
        "shakespeare(roles=50, stride=80, every=true)",
        "lstm(width=64)",
        "fedlag(fedavg, k=1)",
        10,
        lr=0.01,
        batch_size=16,
        local_epochs=2,
        optimizer="adam",
    ),
)


def chance(federation: Federation, metric: str) -> float:
    """The score of the best constant guess: the commonest class of all; all foreground for Dice."""
    labels = torch.cat([client.y[client.indices].flatten() for client in federation.clients])
    counts = torch.bincount(labels, minlength=federation.classes or 1)
    share = float(counts.max() / counts.sum())
    if metric != "dice":
        return share
    found = float(counts[1] / counts.sum())
    return 2 * found / (found + 1)


def alone() -> ProcessPoolExecutor:
    """A process of its own."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def line(case: Case, method: str, share: float) -> str:
    """A line of the table: one method on one set."""
    federation = load(case.data, partition=case.partition, clients=case.clients)
    size = sum(each.numel() for each in build(case.model, federation).parameters())
    samples = sum(len(client.indices) for client in federation.clients)
    started = time.perf_counter()
    result = idiolect.run(
        method,
        federation,
        model=case.model,
        rounds=max(1, math.ceil(share * case.rounds)),
        lr=case.lr,
        batch_size=case.batch_size,
        local_epochs=case.local_epochs,
        loss=case.loss,
        optimizer=case.optimizer,
        eval_every=max(1, case.rounds // 3),
        engine="loop",
    )
    seconds, metric = time.perf_counter() - started, result.summary["metric"]
    score = result.summary[metric]["selected"]["weighted"]
    memory = result.summary["peak_memory_mb"]
    return (
        f"| {case.data} | {len(federation)} | {case.model} | {size:,} | {samples:,} | {method} |"
        f" {metric} {score:.3f} | {chance(federation, metric):.3f} | {seconds:.0f} | {memory:.0f} |"
    )


def main() -> None:
    """Run all sets that are there and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds-share", type=float, default=1.0)
    parser.add_argument("--only", default="", help="names of sources, with commas between them")
    given = parser.parse_args()
    wanted = {name.strip() for name in given.only.split(",") if name.strip()}
    print("| set | clients | model | parameters | samples | method | score | chance | seconds | MB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    missing = []
    for case in CASES:
        source = sources.build(case.data)
        if wanted and source.name not in wanted:
            continue
        if not source.available():
            missing.append(source.name)
            continue
        for method in ("fedavg", case.method):
            with alone() as process:  # so that memory is that of one run
                print(process.submit(line, case, method, given.rounds_share).result(), flush=True)
    if missing:
        print(f"\nNot on this machine: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
