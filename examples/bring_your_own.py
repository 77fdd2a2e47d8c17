"""Own data, own network, own metric: six hospitals, each with a device that is calibrated its own way.

python examples/bring_your_own.py

The measurements are real (breast tumours, from scikit-learn); that they come from six hospitals, and how the devices
distort them, is made up. What a hospital cares about here is balanced accuracy: how many of the malignant and how
many of the benign tumours are recognised, both counted alike.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import idiolect

HOSPITALS = ("Alster", "Bode", "Isar", "Lahn", "Saale", "Weser")
METHODS = ("local", "fedavg", "finetune(fedavg)", "ditto", "fedper")


def measurements(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each hospital holds: arrays (x, y), which never leave it."""
    draw = np.random.default_rng(seed)
    found = load_breast_cancer()
    x = (found.data - found.data.mean(0)) / found.data.std(0)
    held = {}
    for name, mine in zip(HOSPITALS, np.array_split(draw.permutation(len(x)), len(HOSPITALS)), strict=True):
        gain, offset = draw.choice([-1.0, 1.0], x.shape[1]), draw.normal(0.0, 0.5, x.shape[1])
        held[name] = ((x[mine] * gain + offset).astype("float32"), found.target[mine])
    return held


def balanced_accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over the classes that occur of the share that is recognised."""
    right = (outputs.argmax(1) == y).double()
    return torch.stack([right[y == label].mean() for label in y.unique()]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
    data = measurements()
    metric = {"balanced_accuracy": balanced_accuracy}

    print("balanced test accuracy of every hospital's own model, at the round that validation selects\n")
    print(f"{'method':18}" + "".join(f"{name:>8}" for name in HOSPITALS) + f"{'mean':>8}{'worst':>8}{'MB sent':>9}")
    results = {}
    for method in METHODS:
        result = idiolect.run(method, data, model=network, metrics=metric, rounds=rounds, batch_size=16, lr=0.1)
        summary, results[method] = result.summary, result
        block = summary["balanced_accuracy"]["selected"]
        scores = result.metrics.filter(
            round=block["round"], point=summary["point"], split="test", metric="balanced_accuracy"
        ).sort("client")["value"]
        cells = "".join(f"{score:8.3f}" for score in (*scores, block["mean"], block["worst"]))
        print(f"{method:18}{cells}{summary['bytes_up'] / 1e6:9.2f}")

    best = max(METHODS, key=lambda method: results[method].summary["balanced_accuracy"]["selected"]["mean"])
    x, y = data["Lahn"]
    model = results[best].model("Lahn")  # an nn.Module in evaluation mode, ready to use
    right = int((model(torch.from_numpy(x)).argmax(1).numpy() == y).sum())
    print(f"\nBest for these hospitals: {best}. Its model for Lahn is right on {right} of Lahn's {len(y)} tumours,")
    print("of which it was trained on 60 %.")

    newcomer = idiolect.run(
        best, data, model=network, metrics=metric, rounds=rounds, batch_size=16, lr=0.1, unseen=1 / len(HOSPITALS)
    )
    (left_out,) = (newcomer.clients()[index] for index in newcomer.plan.data.unseen)
    score = newcomer.summary["unseen"]["selected"]["mean"]
    print(f"Had {left_out} joined only after the training, it would have reached {score:.3f}.")


if __name__ == "__main__":
    main()
