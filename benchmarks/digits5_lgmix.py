"""LG-Mix against FedAvg, FedPer and fine-tuned FedAvg on the domains of Digits-Five that are there, with DigitModel.

    IDIOLECT_DATA=... python benchmarks/digits5_lgmix.py [--per-domain 250] [--rounds 12] [--seeds 3]

The paper: five domains with all samples, SGD 0.01, batches of 128, 100 rounds of one epoch, splits 60/20/20, best
round by validation, three seeds. Here everything is smaller, as the first line of the output says. Scores are test
accuracy of the validation-selected round: per domain, and their plain mean with its deviation over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import idiolect
from idiolect.contract.method import methods as registry
from idiolect.data import load

METHODS = ("fedavg", "fedper", "finetune(fedavg)", "fedbn", "lgmix")


def main() -> None:
    """Run all methods and seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-domain", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    given = parser.parse_args()
    chosen = [each for each in METHODS if each.partition("(")[0] in registry]
    data = f"digits5(per_domain={given.per_domain}, normalise=half)"
    names = [client.name for client in load(data).clients]
    print(
        f"{given.per_domain} samples per domain, {given.rounds} rounds of one epoch, batches of {given.batch_size},"
        f" SGD {given.lr}, {given.seeds} seeds, DigitModel\n"
    )
    print(f"| method | {' | '.join(names)} | mean | deviation over seeds | seconds |")
    print("|---" * (len(names) + 4) + "|")
    for method in chosen:
        scores, started = [], time.perf_counter()
        for seed in range(given.seeds):
            result = idiolect.run(
                method,
                data,
                model="digitmodel",
                rounds=given.rounds,
                lr=given.lr,
                batch_size=given.batch_size,
                seed=seed,
                eval_every=2,
            )
            table, picked = result.metrics, result.summary["accuracy"]["selected"]["round"]
            held = table.filter(
                (table["round"] == picked)
                & (table["split"] == "test")
                & (table["metric"] == "accuracy")
                & (table["point"] == result.summary["point"])
            ).sort("client")
            scores.append(held["value"].to_list())
        means = [statistics.fmean(each) for each in scores]
        domains = " | ".join(f"{statistics.fmean(column):.3f}" for column in zip(*scores, strict=True))
        spread = f"{statistics.stdev(means):.3f}" if len(means) > 1 else "one seed"
        seconds = time.perf_counter() - started
        print(f"| {method} | {domains} | {statistics.fmean(means):.3f} | {spread} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
