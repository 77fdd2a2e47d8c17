"""FedFac's simulation study (section 4.3 of its paper): does factor analysis find a partition that serves the clients?

    python examples/fedfac_simulation.py --out results/fedfac_simulation

Labels come from a network with one hidden layer, of whose units a share p is the same at all clients, and whose
inputs have the same distribution everywhere for a share alpha. The same network is trained under six partitions of its
hidden units, all with the true number of shared units:

    true         the units that are shared in the network that made the labels
    oracle       factor analysis of that network's weights
    static       FedFac, one analysis after a set-up round
    dynamic      FedFac, an analysis after every round
    random       drawn anew after every round
    random once  drawn before the first round and kept

It writes the curves (`curves.csv`), the paper's figures 6 and 7 redrawn (`accuracy.png`, `stability.png`), and says of
each of the paper's claims whether it holds. Started again, it goes on where it was stopped.

Two things to know when comparing with the paper:

- Before training, hidden units are exchangeable: nothing tells the units that are shared in the true network from the
  others, so *any* partition of the right size that is kept throughout is as good as the true one. That is why `random
  once` is here. A random partition is inferior when it changes from round to round, as then no unit is ever personal
  for long, and no unit is ever common.
- Taken literally, the recipe gives nearly all samples the same label for most seeds, because the output weights of
  units that are nearly always active add up to anything. By default the output weights are centred; `--literal` takes
  the recipe as it stands.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from torch import Tensor

import idiolect
from idiolect.analysis import communalities, shared_units
from idiolect.data import Federation
from idiolect.data.sources import SimulationTruth, fedfac_simulation
from idiolect.methods.fedfac.method import FedFac
from idiolect.methods.fedsplit import FedSplit

VARIED = (0.3, 0.5, 0.7)
FIXED_ALPHA, FIXED_P = 0.4, 0.5
KAPPA = 0.85
# Name -> colour, line and its width. The four that the paper finds equal lie on each other: dashes let all show.
LINES = {
    "true": ("#08306b", "-", 2.4),
    "oracle": ("#6baed6", "-", 1.4),
    "static": ("#41ab5d", (0, (5, 3)), 1.6),
    "dynamic": ("#00441b", (0, (1, 1.5)), 1.8),
    "random once": ("#737373", (0, (6, 2, 1, 2)), 1.3),
    "random": ("#d94801", "-", 1.6),
}


@dataclass(frozen=True)
class Study:
    """The size of the study; the paper's is the default."""

    clients: int = 100
    features: int = 100
    hidden: int = 200
    rounds: int = 40
    seeds: tuple[int, ...] = (0,)
    p: tuple[float, ...] = VARIED
    alpha: tuple[float, ...] = VARIED
    centred: bool = True
    engine: str = "auto"

    @property
    def settings(self) -> list[tuple[float, float]]:
        """Pairs (p, alpha): one varies, the other is fixed."""
        return [(p, FIXED_ALPHA) for p in self.p] + [(FIXED_P, alpha) for alpha in self.alpha]


QUICK = Study(clients=8, features=20, hidden=20, rounds=6, p=(0.5,), alpha=())


def partitions(truth: SimulationTruth) -> dict[str, FedSplit | FedFac]:
    """The six ways to split the hidden layer, as methods."""
    share = float(truth.shared.double().mean())
    tau = 1 - share
    columns = truth.weight.transpose(1, 2).flatten(0, 1)  # [clients x features, hidden]
    oracle = shared_units(communalities(columns, KAPPA), tau)
    return {
        "true": FedSplit(shared=units(truth.shared)),
        "oracle": FedSplit(shared=units(oracle)),
        "static": FedFac(schedule="static", tau=tau, kappa=KAPPA),
        "dynamic": FedFac(tau=tau, kappa=KAPPA),
        "random once": FedSplit(share=share),
        "random": FedFac(estimator="random", tau=tau),
    }


def units(shared: Tensor) -> tuple[int, ...]:
    """The numbers of the shared units."""
    return tuple(shared.nonzero().flatten().tolist())


def run_study(study: Study, file: Path) -> None:
    """Run what is not in the file yet; accuracy and stability by round for each setting, seed and partition."""
    table = pl.read_csv(file) if file.exists() else pl.DataFrame()
    size = {"clients": study.clients, "hidden": study.hidden, "rounds": study.rounds, "centred": study.centred}
    if len(table) and table.select(*size).unique().rows() != [tuple(size.values())]:
        raise SystemExit(f"{file} holds a study of another size; choose another folder with --out")
    done = table.select("seed", "p", "alpha", "partition").unique().rows() if len(table) else []
    for seed in study.seeds:
        for p, alpha in study.settings:
            federation, truth = fedfac_simulation(
                study.clients, p, alpha, seed, features=study.features, hidden=study.hidden, centred=study.centred
            )
            for name, method in partitions(truth).items():
                run = {"seed": seed, "p": p, "alpha": alpha, "partition": name}
                if tuple(run.values()) not in done:
                    print(*(f"{key} = {value}" for key, value in run.items()), sep=", ", flush=True)
                    found = curve(study, federation, method, seed).with_columns(
                        pl.lit(value).alias(key) for key, value in (run | size).items()
                    )
                    table = pl.concat([table, found], how="vertical_relaxed") if len(table) else found
                    table.write_csv(file)


def curve(study: Study, federation: Federation, method: FedSplit | FedFac, seed: int) -> pl.DataFrame:
    """Test accuracy (the clients' mean) and share of units that did not change sides, by round."""
    result = idiolect.run(
        method,
        federation,
        model=f"simulation(hidden={study.hidden})",
        metrics={"accuracy": accuracy},
        rounds=study.rounds,
        local_epochs=1,
        batch_size=50,
        lr=0.1,
        seed=seed,
        engine=study.engine,
    )
    if not result.complete:
        raise SystemExit("interrupted")
    rows = result.metrics.filter(pl.col("round") > 0)  # 0 is the set-up round
    tested = rows.filter((pl.col("metric") == "accuracy") & (pl.col("split") == "test"))
    stable = rows.filter(pl.col("metric").str.starts_with("stable_units"))
    return (
        tested.group_by("round")
        .agg(pl.col("value").mean().alias("accuracy"))
        .join(stable.select("round", pl.col("value").alias("stable")), on="round", how="left")
        .sort("round")
    )


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of right labels; the study needs no other metric."""
    return float((outputs.argmax(1) == labels).double().mean())


# -- what it says --------------------------------------------------------------------------------------


def finals(table: pl.DataFrame) -> pl.DataFrame:
    """Accuracy over the last quarter of the rounds, by setting and partition."""
    late = table.filter(pl.col("round") > 0.75 * table["round"].max())
    order = {name: at for at, name in enumerate(LINES)}
    by_seed = late.group_by("p", "alpha", "partition", "seed").agg(pl.col("accuracy").mean())
    return (
        by_seed.group_by("p", "alpha", "partition")
        .agg(pl.col("accuracy").mean())
        .sort("p", "alpha", pl.col("partition").replace_strict(order))
        .pivot("partition", index=["p", "alpha"], values="accuracy")
    )


def verdicts(table: pl.DataFrame) -> list[tuple[str, bool, str]]:
    """The paper's claims: in words, whether they hold here, and the number that decides."""
    final = finals(table)
    four = final.select("true", "oracle", "static", "dynamic").to_numpy()
    apart = float((four.max(axis=1) - four.min(axis=1)).max())
    ahead = float((four.min(axis=1) - final["random"].to_numpy()).min())
    once = float(abs(four.mean(axis=1) - final["random once"].to_numpy()).max())
    last = table["round"].max()
    late = table.filter((pl.col("partition") == "dynamic") & (pl.col("round") >= last - 4))
    least = float(late.group_by("p", "alpha", "seed").agg(pl.col("stable").mean())["stable"].min())
    return [
        ("true, oracle, static and dynamic agree (within 0.02)", apart <= 0.02, f"they differ by at most {apart:.3f}"),
        ("all four beat a random partition", ahead > 0, f"by at least {ahead:.3f}"),
        ("a random partition that is kept is as good as they are", once <= 0.02, f"it differs by at most {once:.3f}"),
        ("the dynamic partition settles", least >= 0.95, f"at least {least:.1%} of the units stay in the last rounds"),
    ]


def draw(table: pl.DataFrame, out: Path) -> None:
    """Figures 6 and 7 of the paper."""
    import matplotlib

    matplotlib.use("Agg")
    known = table.select("p", "alpha").unique().rows()
    rows = [
        [each for each in wanted if each in known]
        for wanted in ([(p, FIXED_ALPHA) for p in VARIED], [(FIXED_P, alpha) for alpha in VARIED])
    ]
    rows = [row for row in rows if row]
    draw_accuracy(table, rows, out / "accuracy.png")
    draw_stability(table, rows, out / "stability.png")


def draw_accuracy(table: pl.DataFrame, rows: list[list[tuple[float, float]]], file: Path) -> None:
    """Accuracy by round, a panel per setting; the mean over seeds, and their range as a band."""
    import matplotlib.pyplot as plt

    columns = max(map(len, rows))
    size = (3.4 * columns + 0.6, 2.6 * len(rows) + 1.0)
    figure, axes = plt.subplots(len(rows), columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis, (p, alpha) in zip(axes.flat, [setting for row in rows for setting in row], strict=True):
        here = table.filter((pl.col("p") == p) & (pl.col("alpha") == alpha))
        for name, (colour, style, width) in LINES.items():
            value = pl.col("accuracy")
            band = (
                here.filter(pl.col("partition") == name)
                .group_by("round")
                .agg(value.mean(), value.min().alias("low"), value.max().alias("high"))
                .sort("round")
            )
            axis.plot(band["round"], band["accuracy"], linestyle=style, color=colour, label=name, linewidth=width)
            axis.fill_between(band["round"], band["low"], band["high"], color=colour, alpha=0.15, linewidth=0)
        axis.set_title(f"p = {p}, α = {alpha}", fontsize=10)
        axis.grid(alpha=0.25)
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle("Six partitions of the hidden layer", fontsize=11)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw_stability(table: pl.DataFrame, rows: list[list[tuple[float, float]]], file: Path) -> None:
    """Of the dynamic partition, the share of units that did not change sides, by round."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(rows), figsize=(3.8 * len(rows) + 0.8, 3.2), sharey=True, squeeze=False)
    # The first analysis splits a layer that was shared as a whole, so the count begins with the second.
    dynamic = table.filter((pl.col("partition") == "dynamic") & (pl.col("round") > 1))
    for axis, row in zip(axes[0], rows, strict=True):
        of_p = row[0][1] == FIXED_ALPHA
        for (p, alpha), colour in zip(row, ("#08306b", "#4292c6", "#9ecae1"), strict=False):
            own = dynamic.filter((pl.col("p") == p) & (pl.col("alpha") == alpha))
            mean = own.group_by("round").agg(pl.col("stable").mean()).sort("round")
            label = f"p = {p}" if of_p else f"α = {alpha}"
            axis.plot(mean["round"], mean["stable"], color=colour, label=label, linewidth=1.6)
        axis.set_title(f"α = {FIXED_ALPHA}" if of_p else f"p = {FIXED_P}", fontsize=10)
        axis.set_xlabel("round")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=9, loc="lower right")
    axes[0][0].set_ylabel("share of units that\ndid not change sides")
    figure.suptitle("How settled the partition of dynamic FedFac is", fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/fedfac_simulation"), help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a minute's miniature of the study")
    parser.add_argument("--literal", action="store_true", help="do not centre the output weights")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--clients", type=int, default=Study.clients)
    parser.add_argument("--rounds", type=int, default=Study.rounds)
    parser.add_argument("--engine", default=Study.engine, help="how clients are carried out")
    parser.add_argument("--draw", action="store_true", help="only draw what an earlier run wrote")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "curves.csv"
    if not given.draw:
        full = Study(
            given.clients,
            rounds=given.rounds,
            seeds=tuple(given.seeds),
            centred=not given.literal,
            engine=given.engine,
        )
        run_study(QUICK if given.quick else full, file)
    table = pl.read_csv(file)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=3, tbl_hide_dataframe_shape=True, tbl_width_chars=120):
        print("\ntest accuracy, mean of the last quarter of the rounds", finals(table), sep="\n")
    for claim, holds, number in verdicts(table):
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {claim}: {number}")
    draw(table, given.out)
    print(f"figures and curves: {given.out}")


if __name__ == "__main__":
    main()
