"""Own data, own network, own metric: six post offices that read digits, three of them with an odd scanner.

python examples/bring_your_own.py

The digits are real (from scikit-learn); the offices are made up. Each has 150 digits of its own and keeps them. Three
scanners work alike, one turns the page, one holds it upside down, one gives negatives. Which method serves whom?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import idiolect

SCANNERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain-1": lambda x: x,
    "plain-2": lambda x: x,
    "plain-3": lambda x: x,
    "turned": lambda x: np.rot90(x, 1, axes=(2, 3)),
    "overhead": lambda x: np.rot90(x, 2, axes=(2, 3)),
    "negative": lambda x: 1 - x,
}
METHODS = ("local", "fedavg", "finetune(fedavg)", "ditto(lam=0.1)", "fedper")
TRAINING: dict[str, Any] = {"rounds": 30, "lr": 0.1, "batch_size": 10}


def digits_of_each(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each office holds: arrays (x, y)."""
    found = load_digits()
    x, order = found.images[:, None].astype("float32") / 16, np.random.default_rng(seed).permutation(1797)
    return {
        name: (scanner(x[mine]), found.target[mine])
        for (name, scanner), mine in zip(SCANNERS.items(), order[:900].reshape(6, 150), strict=True)
    }


class Reader(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten())
        self.tell = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.tell(self.see(x))
        return out


def recall(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over the digits that occur of the share that is recognised."""
    right = (outputs.argmax(1) == y).double()
    return torch.stack([right[y == digit].mean() for digit in range(10) if digit in y]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=TRAINING["rounds"])
    settings = {**TRAINING, "rounds": parser.parse_args().rounds}
    torch.manual_seed(0)
    own: dict[str, Any] = {"data": digits_of_each(), "model": Reader(), "metrics": {"recall": recall}}

    print("test recall of every office's own model, at the round that validation selects\n")
    print(f"{'method':18}" + "".join(f"{name:>10}" for name in SCANNERS) + f"{'mean':>8}{'worst':>8}{'MB sent':>9}")
    results = {}
    for method in METHODS:
        result = results[method] = idiolect.run(method, **own, **settings)
        summary, block = result.summary, result.summary["recall"]["selected"]
        tests = result.metrics.filter(round=block["round"], point=summary["point"], split="test", metric="recall")
        cells = "".join(f"{score:10.3f}" for score in tests.sort("client")["value"])
        print(f"{method:18}{cells}{block['mean']:8.3f}{block['worst']:8.3f}{summary['bytes_up'] / 1e6:9.1f}")

    best = max(METHODS, key=lambda method: results[method].summary["recall"]["selected"]["mean"])
    x, y = own["data"]["overhead"]
    reader = results[best].model("overhead")  # a Reader in evaluation mode, ready to use
    told = reader(torch.from_numpy(x[:10].copy())).argmax(1).tolist()
    print(f"\nBest on average: {best}. Ten digits of the office 'overhead', as its model reads them and as written:")
    print(f"  {told}\n  {y[:10].tolist()}")


if __name__ == "__main__":
    main()
