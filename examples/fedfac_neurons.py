"""FedFac's motivation and its look inside (figures 1, 2 and 10 of its paper): which neurons do the same at all clients?

    python examples/fedfac_neurons.py --out results/fedfac_neurons
    python examples/fedfac_neurons.py --data mnist --clients 100      # the paper's setting; needs the files of MNIST

Every client trains a network with one hidden layer of 200 units alone, once where all clients hold all classes and once
where each holds one. `neurons.png` (figure 1) shows the mean output of every hidden unit at every client on its own
samples, `neuron-entropies.png` (figure 2) how dispersed these are over clients. For `feature-maps.png` (figure 10) a
network with two convolutions is trained by FedAvg and by FedFac with half of the second one's channels personal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import idiolect
from idiolect.report import feature_map_picture, neuron_pictures
from idiolect.report.figures.picture import Picture

HIDDEN = "mlp(hidden=[200])"


def draw_neurons(data: str, clients: int, rounds: int, out: Path) -> list[Path]:
    """Figures 1 and 2: local training, with equal and with unequal clients."""
    results = {
        name: idiolect.run("local", data, partition=partition, clients=clients, rounds=rounds, model=HIDDEN, lr=0.1)
        for name, partition in (("IID", "iid"), ("one class per client", "pathological:1"))
    }
    modules = results["IID"].plan.tasks[0].net.module.named_modules()
    layer = next(name for name, module in modules if isinstance(module, nn.ReLU))
    return save(neuron_pictures(results, layer), out)


def draw_features(data: str, clients: int, rounds: int, out: Path) -> list[Path]:
    """Figure 10: one image, seen by personal and by shared channels, and by the same channels after FedAvg."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    module = nn.Sequential(
        first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )
    results = {
        name: idiolect.run(
            method, data, model=module, clients=clients, rounds=rounds, partition="dirichlet:0.5", lr=0.1
        )
        for name, method in (("FedFac", "fedfac(tau=0.5, estimator=pc)"), ("FedAvg", "fedavg"))
    }
    fedfac = results["FedFac"]
    shared = fedfac.store.server(fedfac.store.fact("selected"))["split.shared"]["2"]
    sides = {"personal": (~shared).nonzero().flatten().tolist(), "shared": shared.nonzero().flatten().tolist()}
    client = fedfac.plan.data.seen[0]
    sample = fedfac.plan.split(client, "test")[0][0]
    return save([feature_map_picture(results, client, "3", sample, sides)], out)


def save(pictures: list[Picture], out: Path) -> list[Path]:
    """Write pictures; where they are."""
    paths = [out / f"{picture.name}.png" for picture in pictures]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    return paths


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/fedfac_neurons"), help="folder for the figures")
    parser.add_argument("--data", default="digits", help="a data set of grey images")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for draw in (draw_neurons, draw_features):
        print(*draw(given.data, given.clients, given.rounds, given.out), sep="\n")


if __name__ == "__main__":
    main()
