"""What a method's options do to its accuracy on *validation* data: how defaults were chosen, and what they were checked
on. Seeds begin at 100, since those below were looked at while methods were written. What was run is not run again.

    IDIOLECT_DATA=... python benchmarks/choices.py fedlag
    IDIOLECT_DATA=... python benchmarks/choices.py fedmask --seeds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import polars as pl

import idiolect

SKEWED = {"partition": "dirichlet:0.1", "clients": 20, "batch_size": 16, "lr": 0.1, "engine": "loop"}
DIGITS = SKEWED | {"data": "digits", "model": "mlp", "rounds": 40}
MNIST = SKEWED | {"data": "mnist(samples=3000)", "model": "mlp", "rounds": 30}
LENET = SKEWED | {"data": "mnist(samples=1000)", "model": "lenet5w", "rounds": 12}
CONVOLUTIONS = SKEWED | {
    "data": "mnist(samples=1500)",
    "model": "lenet5w(channels=[8, 16], dense=[64])",
    "rounds": 30,
    "eval_every": 5,
    "engine": "workers(count=1)",
}
KEPT = {"momentum": 0.9, "optimizer_state": "keep"}
BATCH_NORM = {"model": "lenet5w(channels=[8, 16], dense=[64], norm=batch)"}
DEEP = SKEWED | {"data": "digits", "model": "mlp(hidden=[64, 64, 32])", "rounds": 40}
RETINA = {
    "data": "retina(side=64)",
    "model": "unet(width=8)",
    "loss": "dice",
    "metrics": "dice",
    "optimizer": "adam",
    "lr": 0.01,
    "batch_size": 8,
    "rounds": 50,
    "norm_stats": "recompute",
    "eval_every": 2,
    "engine": "loop",
}
TWO = {
    "digits": DIGITS | {"rounds": 30, "eval_every": 2},
    "MNIST": MNIST | {"data": "mnist(samples=2000)", "rounds": 20, "eval_every": 2},
}

PULLS = {
    **TWO,
    "digits, learning rate 0.01": TWO["digits"] | {"lr": 0.01},
    "MNIST, convolutions": CONVOLUTIONS,
    "MNIST, convolutions, a fifth takes part": CONVOLUTIONS | {"participation": 0.2, "rounds": 100, "eval_every": 10},
}

STUDIES: dict[str, tuple[dict[str, dict[str, Any]], tuple[str, ...]]] = {
    "fedlag": (
        {
            "digits, MLP": DIGITS,
            "digits, deeper MLP": DEEP,
            "MNIST, MLP": MNIST,
            "MNIST, LeNet": LENET,
            "MNIST, LeNet, longer": LENET | {"data": "mnist(samples=2000)", "rounds": 20},
            "digits IID, MLP": DIGITS | {"partition": "iid"},
            "digits IID, deeper MLP": DEEP | {"partition": "iid"},
        },
        ("fedlag(schedule=steady)", "fedlag(schedule=cumulative)", "fedlag(preset=paper)", "fedavg", "local"),
    ),
    "flayer": (
        TWO,
        tuple(
            expression
            for inner in ("ditto", "fedamp")
            for expression in (
                inner,
                f"flayer({inner}, mixed=shared)",
                f"flayer({inner}, mixed=own)",
                f"flayer({inner}, head_mixing=false)",
            )
        ),
    ),
    "accuracy": (
        {f"{name}, batches of {size}": TWO[name] | {"batch_size": size} for name in TWO for size in (16, 64)},
        ("flayer", "flayer(acc_source=running)", "flayer(lr_max_mult=null)", "flayer(head_mixing=false)"),
    ),
    "fedmask": (
        TWO,
        (
            "fedmask",
            *(f"fedmask(agree={share})" for share in (0.5, 0.75, 1.0)),
            "fedmask(combine=scores)",
            "fedmask(layers=1)",
            "fedmask(weights=drawn)",
            *(f"fedmask(lr={lr})" for lr in (1, 30)),
            "fedmask(preset=paper)",
        ),
    ),
    "onboard": (
        {name: setting | {"unseen": 0.3, "eval_every": 5} for name, setting in TWO.items()},
        tuple(
            f"{method}onboard_epochs={passes})"
            for method in ("fedpac(", "fedrod(", "fedrod(hyper=true, ")
            for passes in (1, 3, 10)
        ),
    ),
    "pfedgate": (
        {
            f"{name}, {optimizer}": setting | changes
            for optimizer, changes in (
                ("plain SGD", {}),
                ("momentum kept", KEPT),
            )
            for name, setting in (
                ("digits", DIGITS | {"rounds": 20, "eval_every": 5}),
                ("MNIST", MNIST | {"data": "mnist(samples=1000)", "rounds": 15, "eval_every": 5}),
            )
        },
        (
            "pfedgate(scale_max=1, gate_rate=1)",
            "pfedgate(scale_max=2, gate_rate=5)",
            "fedavg",
            "pfedgate(scale_max=2, gate_rate=1)",
            "pfedgate(scale_max=1, gate_rate=5)",
            *(f"pfedgate(s={s}, scale_max={n}, gate_rate={rate})" for s in (1, 0.3) for n, rate in ((1, 1), (2, 5))),
        ),
    ),
    "solver": (
        {
            "MNIST, mlp, momentum kept": DIGITS | KEPT | {"data": "mnist(samples=1000)", "rounds": 15, "eval_every": 5},
            "MNIST, convolutions, plain SGD": CONVOLUTIONS | {"rounds": 60},
            "MNIST, convolutions, momentum kept": CONVOLUTIONS | KEPT,
            "MNIST, batch norm, plain SGD": CONVOLUTIONS | BATCH_NORM,
            "MNIST, batch norm, momentum kept": CONVOLUTIONS | BATCH_NORM | KEPT,
            "MNIST, wide convolutions, plain SGD": CONVOLUTIONS | {"model": "lenet5w", "rounds": 40},
            "letters, convolutions, momentum kept": CONVOLUTIONS
            | KEPT
            | {"data": "emnist-letters(samples=2400, normalise=mnist)", "rounds": 60},
            "CIFAR-10, convolutions, momentum kept": CONVOLUTIONS
            | KEPT
            | {"data": "cifar10(samples=1800, normalise=half)", "model": "lenet5w(channels=[8, 16])", "rounds": 60},
        },
        (
            "fedavg",
            "pfedgate(solver=greedy)",
            "pfedgate(solver=density)",
            "pfedgate(solver=exact)",
            "pfedgate(solver=greedy, decimals=1)",
        ),
    ),
    "width": (
        {
            f"letters, {width} units": CONVOLUTIONS
            | KEPT
            | {
                "data": "emnist-letters(samples=1800, normalise=mnist)",
                "partition": "dirichlet(preset=fedem)",
                "clients": 15,
                "model": f"lenet5w(channels=[8, 16], dense=[{width}])",
                "batch_size": 32,
                "rounds": 60,
                "lr": 0.03,
                "weight_decay": 0.0005,
            }
            for width in (64, 1024)
        },
        ("fedavg", "pfedgate(s=0.5)", "pfedgate(s=0.3)", "pfedgate(s=1)"),
    ),
    **{
        name: (PULLS, ("fedavg", *(f"{name}({option}={value})" for value in values)))
        for name, option, values in (("feddbe", "kappa", (50, 10, 3, 1, 0.1, 0)), ("fedcp", "lam", (5, 1, 0.3, 0.1, 0)))
    },
    "retina": ({"retina": RETINA}, ("fedavg", "lgmix", "local")),
    "apple": (TWO, ("apple", "apple(start=drawn)")),
}


def main() -> None:
    """Run a study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/choices.jsonl"))
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--only", default="", help="part of a setting's name")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    settings, methods = STUDIES[given.study]
    for name, setting in settings.items():
        if given.only not in name:
            continue
        print(f"\n{name}: {', '.join(f'{key} {value}' for key, value in setting.items())}\n")
        print("| method | validation, selected | last ten rounds | test, selected | last | lowest last | changes |")
        print("|---" * 7 + "|")
        for method in methods:
            runs = [
                find_or_run(given.out, {"method": method, "seed": given.first + seed, **setting})
                for seed in range(given.seeds)
            ]
            print(f"| `{method}` | {' | '.join(describe(runs))} |", flush=True)


def find_or_run(path: Path, run: dict[str, Any]) -> dict[str, float]:
    """The scores of a run: as they are in the file, or made and written there."""
    key = json.dumps(run, sort_keys=True)
    for line in path.read_text().splitlines() if path.exists() else ():
        known = json.loads(line)
        if known["key"] == key:
            scores: dict[str, float] = known["scores"]
            return scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = measure(idiolect.run(**run))
    with path.open("a") as file:
        file.write(json.dumps({"key": key, "scores": scores}) + "\n")
    return scores


def measure(result: idiolect.Result) -> dict[str, float]:
    """The headline metric weighted by samples, of clients that never trained where there are some: on validation data
    in the selected round and in the mean of the last ten, on test data in the selected and in the last round; and how
    often FedLAG's choice changed."""
    table, metric = result.metrics, result.summary["metric"]
    cohort = "unseen" if "unseen" in table["cohort"] else "seen"
    rows = table.filter((pl.col("cohort") == cohort) & (pl.col("metric") == metric))
    points = rows["point"].unique().to_list()
    rows = rows.filter(pl.col("point") == ("adapted" if "adapted" in points else "personal"))
    weighted = (pl.col("value") * pl.col("samples")).sum() / pl.col("samples").sum()
    curve = {
        split: dict(rows.filter(pl.col("split") == split).group_by("round").agg(weighted).iter_rows())
        for split in ("val", "test")
    }
    picked, last = result.summary[metric]["selected"]["round"], max(curve["test"])
    changes = table.filter((pl.col("metric") == "personal_changes") & (pl.col("round") == last))["value"]
    return {
        "val": curve["val"][picked],
        "val_last": statistics.fmean(value for round, value in curve["val"].items() if round > last - 10),
        "test": curve["test"][picked],
        "test_last": curve["test"][last],
        "changes": float(changes[0]) if len(changes) else 0.0,
    }


def describe(runs: list[dict[str, float]]) -> list[str]:
    """The cells of a row: means over seeds with deviations, the lowest last score, changes seed by seed."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    cells = [
        f"{statistics.fmean(columns[name]):.3f} ± {statistics.stdev(columns[name]):.3f}"
        for name in ("val", "val_last", "test", "test_last")
    ]
    changes = " ".join(f"{count:.0f}" for count in columns["changes"])
    return [*cells, f"{min(columns['test_last']):.3f}", changes if any(columns["changes"]) else ""]


if __name__ == "__main__":
    main()
