"""Conflicts of FedAvg's clients, layer by layer, with alike and with different clients (FedLAG's figures 12 to 15).

    python examples/fedlag_conflicts.py --data digits --out results/fedlag_conflicts.png

`fedlag(k=0)` is FedAvg that also counts, for every layer and round, the pairs of clients whose updates point apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import idiolect


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run both settings, draw the figure, and print the mean number of conflicts per round."""
    parser = argparse.ArgumentParser(description="Conflicts of FedAvg's clients, with alike and with different ones.")
    parser.add_argument("--data", default="digits", help="the data, such as mnist or cifar10")
    parser.add_argument("--model", default="mlp(hidden=[64, 32, 32])", help="the network, such as cnn6")
    parser.add_argument("--alpha", type=float, default=0.1, help="how alike different clients are (Dirichlet)")
    parser.add_argument("--clients", type=int, default=10, help="how many clients there are")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of FedAvg")
    parser.add_argument("--lr", type=float, default=0.05, help="the learning rate")
    parser.add_argument("--xi", type=float, default=0.0, help="the cosine below which two clients conflict")
    parser.add_argument("--seed", type=int, default=0, help="determines everything random")
    parser.add_argument("--out", type=Path, default=Path("results/fedlag_conflicts.png"), help="the figure")
    options = parser.parse_args(arguments)
    usual = {name: getattr(options, name) for name in ("model", "clients", "rounds", "lr", "seed")}
    folders, found = [], {}
    for partition in ("iid", f"dirichlet:{options.alpha}"):
        folders.append(options.out.with_suffix("") / partition.partition(":")[0])
        method = f"fedlag(k=0, xi={options.xi})"
        metrics = idiolect.run(method, options.data, partition=partition, out=folders[-1], **usual).metrics
        conflicts = metrics.filter(metrics["metric"].str.starts_with("conflicts/"))["value"]
        found[partition] = float(conflicts.sum() or 0) / options.rounds
        print(f"{partition}: {found[partition]:.1f} conflicts per round in all layers together")
    print(f"the figure is in {idiolect.report.write_conflicts(folders, options.out)}")
    return found


if __name__ == "__main__":
    main()
