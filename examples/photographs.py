"""Photographs in folders, read when they are needed, with augmentation: by name, and in PyTorch data sets of one's own.

python examples/photographs.py

Three schools photograph real digits (from scikit-learn; the schools are made up) and keep them as files: a folder per
school, in it a folder per digit. First the folder is named as it is, then with transforms by name. Then each school is
a PyTorch data set whose own noise is new in every epoch, for training samples alone: validation and test samples have
data sets without it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import idiolect

SCHOOLS = ("Grünau", "school 2", "school 10")
TRAINING: dict[str, Any] = {"rounds": 15, "lr": 0.1, "batch_size": 10, "engine": "loop"}


def photograph(folder: Path) -> None:
    """Write the files: folder/school/digit/number.png."""
    found = load_digits()
    for number, (pixels, digit) in enumerate(zip(found.images[:450], found.target[:450], strict=True)):
        place = folder / SCHOOLS[number % 3] / f"digit {digit}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(place / f"{number}.png")


class School(Dataset[tuple[Tensor, int]]):
    """One school's files, every third from `first` on; with `noise`, as another camera would have taken them."""

    def __init__(self, folder: Path, first: int, noise: float = 0.0) -> None:
        self.files = sorted(folder.glob("*/*.png"), key=lambda path: int(path.stem))[first::3]
        self.targets = [int(path.parent.name.removeprefix("digit ")) for path in self.files]
        self.noise = noise

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(np.array(Image.open(self.files[number]))).float()[None] / 255
        return image + self.noise * torch.randn(image.shape) if self.noise else image, self.targets[number]


def network() -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(0)
    see = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(see, nn.Linear(256, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=TRAINING["rounds"])
    settings = {**TRAINING, "rounds": parser.parse_args().rounds}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        photograph(folder)
        data: dict[str, Any] = {
            "as they are": {"data": f"folder({folder}, mode=grey, lazy=true)"},
            "transforms by name": {
                "data": f"folder({folder}, mode=grey, lazy=true)",
                "transform": "crop(1), rotate(10), normalize",
            },
            "own data sets": {
                "data": {
                    name: {
                        "train": School(folder / name, 0, noise=0.1),
                        "val": School(folder / name, 1),
                        "test": School(folder / name, 2),
                    }
                    for name in SCHOOLS
                }
            },
        }
        print("test accuracy of fedavg, at the round that validation selects\n")
        print(f"{'data':20}" + "".join(f"{name:>11}" for name in SCHOOLS))
        for name, given in data.items():
            result = idiolect.run("fedavg", model=network(), **given, **settings)
            summary = result.summary
            rows = result.metrics.filter(
                round=summary["accuracy"]["selected"]["round"], point=summary["point"], split="test", metric="accuracy"
            )
            scores = dict(zip(rows["name"], rows["value"], strict=True))
            print(f"{name:20}" + "".join(f"{scores[school]:11.3f}" for school in SCHOOLS))


if __name__ == "__main__":
    main()
