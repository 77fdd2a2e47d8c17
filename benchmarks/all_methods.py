"""Every registered method at its defaults on real data, at equal budgets: one leaderboard per data set, with intervals,
bottom decile, bytes and time. An interrupted benchmark continues where it stopped.

    IDIOLECT_DATA=... python benchmarks/all_methods.py --out results/all_methods
    IDIOLECT_DATA=... python benchmarks/all_methods.py --only cifar --rounds 2

Nothing is tuned. The learning rate is common to all; FedMD sees public data, which the others do not use.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from idiolect import compare

SETTINGS: dict[str, dict[str, Any]] = {
    "mnist by writer": {
        "data": "mnist-writers(writers=20)",
        "public": "mnist(samples=300)",
        "model": "mlp",
        "rounds": 40,
        "batch_size": 16,
        "eval_every": 4,
        "lr": 0.1,
    },
    "cifar10, dirichlet 0.1": {
        "data": "cifar10(samples=3000)",
        "public": 0.1,
        "partition": "dirichlet:0.1",
        "clients": 20,
        "model": "lenet5w",
        "rounds": 30,
        "batch_size": 16,
        "eval_every": 5,
        "lr": 0.05,
    },
}


def main() -> None:
    """Run every setting, print its leaderboard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/all_methods"))
    parser.add_argument("--only", default="", help="part of a setting's name")
    parser.add_argument("--methods", default="all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="fewer, to see how long it takes")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for name, setting in SETTINGS.items():
        if options.only not in name:
            continue
        given = setting | ({"rounds": options.rounds} if options.rounds else {})
        folder = options.out / name.replace(", ", "-").replace(" ", "_")
        print(f"\n{name}: {', '.join(f'{key} {value}' for key, value in given.items())}")
        print(compare(options.methods, seeds=options.seeds, out=folder, engine="loop", jobs=options.jobs, **given))


if __name__ == "__main__":
    main()
