"""FedLAG's toy problem (the paper's figure 2a and appendix G): when do clients pull a model apart?

Four clients fit a line, w1 x + w2 y + b = 0, between two classes. Over all clients together the best line is y = 0.
With different domains, each client's own best line is upright, and the updates of clients 1 and 3, and of 2 and 4,
oppose each other. With the same domain everywhere, all clients move the same way.

    python examples/fedlag_toy.py --out results/fedlag_toy.png

`fedlag(k=0)` is FedAvg that also counts the conflicts. With k=1, the one layer becomes personal if it has conflicts.
Once FedAvg has come so near its optimum that the updates are mostly noise, the same domain shows conflicts too.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import idiolect
from idiolect.analysis import cosine_matrix
from idiolect.data.sources import fedlag_rectangles

CLIENTS = range(4)
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
CLASSES = (("_", "negative"), ("+", "positive"))
SETTINGS = {"different domains": False, "same domain": True}


@dataclass(frozen=True)
class Findings:
    """What one setting shows: points, lines, first updates, conflicts by round, and accuracies."""

    data: idiolect.Federation
    updates: Tensor
    cosines: Tensor
    own: list[Tensor]
    shared: Tensor
    conflicts: list[float]
    fedavg: float
    fedlag: float

    @property
    def pairs(self) -> list[str]:
        """The clients that conflict in the first round."""
        return [f"{u + 1}-{v + 1}" for u in CLIENTS for v in CLIENTS if u < v and self.cosines[u, v] < 0]


def study(iid: bool, rounds: int, steps: int, seed: int) -> Findings:
    """Run FedAvg, FedLAG and local training in one setting."""
    data = fedlag_rectangles(iid=iid, seed=seed)

    def run(method: str, rounds: int, **settings: Any) -> idiolect.Result:
        line = nn.Linear(2, 1)
        for leaf in line.parameters():
            nn.init.zeros_(leaf)
        usual = {"batch_size": len(data.clients[0]), "lr": 0.05, "eval_every": rounds, "engine": "loop", "seed": seed}
        return idiolect.run(method, data, model=line, loss="bce", rounds=rounds, **(usual | settings))

    def line(result: idiolect.Result, client: int) -> Tensor:
        params = result.personal_slots(client, -1)["params"]
        return torch.cat([params["weight"].flatten(), params["bias"]])

    measured = run("fedlag(k=0, xi=0)", rounds)
    metrics = measured.metrics
    conflicts = metrics.filter(metrics["metric"].str.starts_with("conflicts/")).sort("round")["value"].to_list()
    # Alone, a client's first round is its first update, since all start from 0; after many steps it has its own line.
    first, alone = run("local", 1), run("local", 1, local_epochs=steps, optimizer="adam", lr=0.5)
    updates = torch.stack([line(first, client) for client in CLIENTS])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is one layer: if it is personal, all are
        chosen = run("fedlag(k=1, xi=0, warmup=0)", rounds)
    return Findings(
        data,
        updates,
        cosine_matrix(updates),
        [line(alone, client) for client in CLIENTS],
        line(measured, 0),
        conflicts,
        *(each.summary["accuracy"]["last"]["weighted"] for each in (measured, chosen)),
    )


def table(found: dict[str, Findings]) -> str:
    """The findings in words and numbers."""
    head = ("", "conflicts per round (of 6)", "in round 1", "accuracy FedAvg", "accuracy FedLAG")
    rows = [head] + [
        (
            name,
            f"{min(each.conflicts):.0f} to {max(each.conflicts):.0f}",
            ", ".join(each.pairs) or "none",
            f"{each.fedavg:.3f}",
            f"{each.fedlag:.3f}",
        )
        for name, each in found.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# -- the figure -------------------------------------------------------------------------------------------------


def draw(found: dict[str, Findings]) -> Figure:
    """Points and lines, the clients' first updates, and the conflicts over the rounds."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    rows = [["points 0", "updates 0", "rounds"], ["points 1", "updates 1", "rounds"]]
    places = figure.subplot_mosaic(rows, width_ratios=[1.25, 1.25, 0.8])
    for row, (name, each) in enumerate(found.items()):
        draw_points(places[f"points {row}"], name, each)
        draw_updates(places[f"updates {row}"], name, each)
    draw_rounds(places["rounds"], found)
    axes = places["points 0"]
    names = [f"client {client + 1}" for client in CLIENTS]
    marks = [axes.plot([], [], color=colour, linewidth=3, label=n)[0] for n, colour in zip(names, COLOURS, strict=True)]
    marks += [axes.scatter([], [], s=40, marker=marker, color="grey", label=label) for marker, label in CLASSES]
    marks += axes.plot([], [], color="black", linewidth=2.5, label="all clients (FedAvg)")
    marks += axes.plot([], [], color="grey", linestyle="--", label="a client alone")
    figure.legend(handles=marks, ncols=len(marks), loc="outside lower center", frameon=False, columnspacing=1.4)
    return figure


def draw_points(axes: Axes, name: str, found: Findings) -> None:
    """The training points of all clients, each client's own line and FedAvg's."""
    for client, colour in zip(CLIENTS, COLOURS, strict=True):
        x, y = found.data.clients[client].split("train")
        for kind, (marker, _) in enumerate(CLASSES):
            axes.scatter(*x[y == kind].T, s=24, marker=marker, color=colour, linewidths=1, alpha=0.7)
        axes.plot(*upright_or_flat(found.own[client]), color=colour, linestyle="--", linewidth=2)
    axes.plot(*upright_or_flat(found.shared), color="black", linewidth=2.5)
    axes.set(title=f"Data and lines: {name}", xlabel="x", ylabel="y", xlim=(-11, 11), ylim=(-2.3, 2.3))


def upright_or_flat(line: Tensor) -> tuple[list[float], list[float]]:
    """Two points of the line w1 x + w2 y + b = 0 within the picture."""
    w1, w2, b = line.tolist()
    if abs(w1) * 11 > abs(w2) * 2.3:
        return [-(b + w2 * y) / w1 for y in (-2.3, 2.3)], [-2.3, 2.3]
    return [-11, 11], [-(b + w1 * x) / w2 for x in (-11, 11)]


def draw_updates(axes: Axes, name: str, found: Findings) -> None:
    """The clients' first updates and their mean, as arrows in the plane of w1 and w2, with true angles."""
    for update, colour in [*zip(found.updates, COLOURS, strict=True), (found.updates.mean(0), "black")]:
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", update[:2].tolist(), (0, 0), arrowprops=arrow)
    axes.axhline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.axvline(0, color="lightgrey", linewidth=0.8, zorder=0)
    axes.set(title=f"First updates: {name}", xlabel="update of $w_1$", ylabel="update of $w_2$")
    axes.set(xlim=(-0.065, 0.065), ylim=(-0.01, 0.04), aspect="equal", yticks=[0, 0.02, 0.04])


def draw_rounds(axes: Axes, found: dict[str, Findings]) -> None:
    """Conflicting pairs of clients in every round."""
    for (name, each), colour in zip(found.items(), ("#d55e00", "#56b4e9"), strict=True):
        axes.plot(range(1, len(each.conflicts) + 1), each.conflicts, color=colour, linewidth=2.5, label=name)
    axes.set(title="Conflicts", xlabel="round", ylabel="pairs of clients with opposed updates, of 6", ylim=(-0.2, 6.2))
    axes.legend(loc="upper right", frameon=False)


def main(arguments: list[str] | None = None) -> dict[str, Findings]:
    """Run both settings, print the table and write the figure."""
    parser = argparse.ArgumentParser(description="FedLAG's toy problem: conflicts of clients that fit a line.")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of FedAvg and FedLAG")
    parser.add_argument("--steps", type=int, default=1000, help="steps of a client alone, for its own line")
    parser.add_argument("--seed", type=int, default=0, help="determines the points")
    parser.add_argument("--out", type=Path, default=Path("results/fedlag_toy.png"), help="where the figure goes")
    options = parser.parse_args(arguments)
    found = {name: study(iid, options.rounds, options.steps, options.seed) for name, iid in SETTINGS.items()}
    print(table(found))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(found).savefig(options.out, dpi=150)
    print(f"the figure is in {options.out}")
    return found


if __name__ == "__main__":
    main()
