"""Clients that never trained: their scores by epochs of onboarding, for every method that has a way of its own for
them, beside fine-tuned FedAvg.

    python benchmarks/onboarding.py --out onboarding.png    # prints the table as Markdown, and draws the picture

Digits, 12 clients of few classes, of which 3 never train; every method trains for the same rounds with the same
learning rate, which is not tuned. Epoch 0 is the model as a new client gets it; a method with several phases of
onboarding, such as head and body in turn, has so many epochs of each.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

import idiolect
from idiolect.contract import Method, methods
from idiolect.engines.client_evaluation import adapt_phases, score_model
from idiolect.engines.phases import run_phases
from idiolect.engines.slots import first_client, gather

torch.set_num_threads(1)
EPOCHS = (0, 1, 2, 4, 8)
REFERENCE = "finetune(fedavg)"
SETTINGS = {
    "data": "digits", "partition": "dirichlet(0.3, balanced=true, min_size=20)", "clients": 12, "unseen": 0.25,
    "model": "mlp(hidden=[32])", "lr": 0.1, "engine": "loop", "eval_every": 15, "rounds": 15, "select": "last",
}  # fmt: skip


def claiming() -> list[str]:
    """The methods that say what an unseen client trains, other than the whole model."""
    chosen = [name for name in methods if methods.get(name).onboard is not Method.onboard]
    built = {name: methods.build(name) for name in chosen if name != "finetune"}  # which is the reference
    return [name for name, method in built.items() if not method.needs.public and not method.needs.networks]


def by_epochs(expression: str) -> list[float]:
    """The mean test accuracy over unseen clients after so many epochs of onboarding."""
    result = idiolect.run(expression, **SETTINGS)
    plan, at = result.plan, result.plan.rounds - 1
    server, unseen = result.store.server(), sorted(plan.data.unseen)
    message = plan.method.download(plan.server(at), server, unseen)
    means = []
    for epochs in EPOCHS:
        scores = []
        for index in unseen:
            ctx = plan.context(index, at)
            model = plan.method.personal_model(ctx, gather(ctx, first_client(ctx), message.of(index), training=False))
            phases = adapt_phases(ctx) or plan.method.onboard(ctx)  # both in a run; here each epoch counts once
            if epochs:
                phases = tuple(replace(phase, epochs=epochs, steps=None) for phase in phases)
                adapted, _ = run_phases(plan, ctx, phases, dict(model))
                model = {slot: value for slot, value in adapted.items() if slot in model}
            found = score_model(plan, ctx, model, "adapted")
            scores += [score.value for score in found if (score.split, score.metric) == ("test", "accuracy")]
        means.append(fmean(scores))
    return means


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """A line per method; the reference is black."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.4, 4.6))
    for at, (name, values) in enumerate(curves.items()):
        colour, line = pyplot.cm.tab20(at % 20), "--" if at >= 20 else "-"
        style = {"color": "black", "linewidth": 3} if name == REFERENCE else {"color": colour, "linestyle": line}
        axes.plot(range(len(EPOCHS)), [100 * value for value in values], marker=".", label=name, **style)
    axes.set_xticks(range(len(EPOCHS)), [str(epochs) for epochs in EPOCHS])
    axes.set_xlabel("epochs on the new client's own data")
    axes.set_ylabel("test accuracy of unseen clients (%)")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    curves = {}
    print(f"| method | {' | '.join(f'{epochs} epochs' for epochs in EPOCHS)} |")
    print("|---|" + "---:|" * len(EPOCHS))
    for expression in (REFERENCE, *claiming()):
        try:
            curves[expression] = by_epochs(expression)
        except idiolect.IdiolectError as error:
            print(f"{expression} cannot run here: {error}")
            continue
        print(f"| `{expression}` | {' | '.join(f'{100 * value:.1f}' for value in curves[expression])} |", flush=True)
    if given.out is not None:
        draw(curves, given.out)


if __name__ == "__main__":
    main()
