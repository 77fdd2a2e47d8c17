"""Every registered method at its defaults on real data, at equal budgets: one leaderboard per data set, with intervals,
bottom decile, bytes and time. An interrupted benchmark continues where it stopped.

    IDIOLECT_DATA=... python benchmarks/all_methods.py --out results/all_methods
    IDIOLECT_DATA=... python benchmarks/all_methods.py --only cifar --rounds 2

Nothing is tuned. The learning rate is common to all; FedMD sees public data, which the others do not use.
"""

from __future__ import annotations

from typing import Any

from leaderboards import leaderboards

SETTINGS: dict[str, dict[str, Any]] = {
    "mnist by writer": {
        "methods": "all",
        "data": "mnist-writers(writers=20)",
        "public": "mnist(samples=300)",
        "model": "mlp",
        "rounds": 40,
        "batch_size": 16,
        "eval_every": 4,
        "lr": 0.1,
    },
    "cifar10, dirichlet 0.1": {
        "methods": "all",
        "data": "cifar10(samples=2000)",
        "public": 0.1,
        "partition": "dirichlet:0.1",
        "clients": 20,
        "model": "lenet5w",
        "rounds": 15,
        "batch_size": 16,
        "eval_every": 3,
        "lr": 0.1,
    },
}


if __name__ == "__main__":
    leaderboards(__doc__, SETTINGS, "results/all_methods", seeds=2)
