"""Own data in eight forms: a frame, a folder of CSV files, a folder of images, a data set of Hugging Face, a PyTorch
data set with augmentation, two inputs, sequences, labels of each client's own.

python examples/forms_of_data.py

The same forms on the command line, for example:

idiolect run ditto --data examples/forms_of_data.py:two_inputs --model examples/forms_of_data.py:Two

The patients (breast cancer, Wisconsin) and digits are real and come with scikit-learn; which clinic or office they
belong to is made up, and so are the sentences.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import idiolect
from idiolect.data import load, table

CLINICS = ("Elm Street", "clinic 2", "clinic 10")


def patients() -> pl.DataFrame:
    """A table with a column of clients, numbers of very different size, a column of text, and gaps."""
    found, draw = load_breast_cancer(), np.random.default_rng(0)
    columns = {str(name): found.data[:, at] for at, name in enumerate(found.feature_names[:6])}
    size = len(found.target)
    columns["mean radius"] = np.where(draw.random(size) < 0.1, np.nan, columns["mean radius"])
    scanner, clinic = draw.choice(["old", "new"], size), draw.choice(CLINICS, size)
    result = np.array(found.target_names)[found.target]
    return pl.DataFrame(
        {**columns, "scanner": scanner, "clinic": clinic, "day": draw.permutation(size), "result": result}
    ).with_columns(pl.col("mean radius").fill_nan(None))


COLUMNS: dict[str, Any] = {"target": "result", "scale": "federated", "gaps": "mean", "encode": "onehot", "time": "day"}
"""What the columns are: `day` decides the splits, so that models are tested on later patients than they learnt from."""


def frame() -> Any:
    """A frame; for the command line as a pool, in Python `load(patients(), client=..., ...)` does the same."""
    return table(patients(), client="clinic", **COLUMNS)


def folder(path: Path) -> Path:
    """A folder with a CSV file per clinic."""
    path.mkdir(exist_ok=True)
    for (clinic,), part in patients().group_by("clinic"):
        part.drop("clinic").write_csv(path / f"{clinic}.csv")
    return path


def hub() -> Any:
    """A data set of Hugging Face, where the package `datasets` is installed."""
    import datasets

    return datasets.Dataset.from_dict(patients().to_dict(as_series=False))


def images(path: Path) -> Path:
    """A folder of images: a folder per office, and in it one per digit."""
    found = load_digits()
    for at in range(240):
        digit = str(found.target_names[found.target[at]])
        office = path / f"office {at % 3 + 1}" / digit
        office.mkdir(parents=True, exist_ok=True)
        pixels = (found.images[at] * 15.9).astype("uint8")
        Image.fromarray(pixels).save(office / f"{at}.png")
    return path


class Scans(Dataset[tuple[Tensor, int]]):
    """Digits of an office; augmented, each is moved by up to a pixel, anew in every epoch."""

    def __init__(self, office: int, augmented: bool) -> None:
        self.office, self.augmented = office, augmented
        self.images, self.labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return 150

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        at = 150 * self.office + number
        x = torch.tensor(self.images[at].reshape(1, 8, 8) / 16, dtype=torch.float32)
        if self.augmented:
            right, down = torch.randint(-1, 2, (2,)).tolist()
            x = x.roll((down, right), (1, 2))
        return x, int(self.labels[at])


def augmented() -> dict[str, Any]:
    """Samples for validation and test are cut from the plain ones."""
    return {f"office {at + 1}": {"train": Scans(at, True), "plain": Scans(at, False)} for at in range(3)}


def own_labels() -> Any:
    """Offices that tell different digits apart, each with names of its own."""
    found, names = load_digits(), np.array(["nought", "one", "two", "three", "four", "five", "six"])
    clients = {}
    for office, digits in {"office 1": (0, 1), "office 2": (2, 3, 4), "office 3": (5, 6)}.items():
        mine = np.flatnonzero(np.isin(found.target, digits))[:120]
        clients[office] = (found.data[mine].astype("float32") / 16, names[found.target[mine]])
    return load(clients, labels="own")


def two_inputs() -> dict[str, Any]:
    """An image and a table per sample: the upper half of a digit, and how much ink each row of the lower one has."""
    found = load_digits()
    images = torch.from_numpy(found.images[:450].astype("float32") / 16)
    inputs = {"image": images[:, None, :4], "ink": images[:, 4:].mean(2)}
    parts = torch.arange(450).reshape(3, 150)
    return {
        f"office {at}": ({name: leaf[mine] for name, leaf in inputs.items()}, found.target[:450][mine])
        for at, mine in enumerate(parts, start=1)
    }


class Two(nn.Module):
    """A network with a parameter of `forward` for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.read = nn.Conv2d(1, 8, 3), nn.Linear(4, 8)
        self.tell = nn.Linear(8 * 12 + 8, 10)

    def forward(self, image: Tensor, ink: Tensor) -> Tensor:
        seen, read = self.see(image).relu().flatten(1), self.read(ink).relu()
        out: Tensor = self.tell(torch.cat([seen, read], 1))
        return out


def sentences() -> dict[str, Any]:
    """Sequences of tokens, of different length: are there more words above 25 than below? Each writer has"
    " favourites."""
    draw = np.random.default_rng(0)
    clients = {}
    for writer in range(3):
        lengths = draw.integers(1, 6 + 3 * writer, 120)
        words = [torch.from_numpy(draw.integers(1 + 5 * writer, 50, length)) for length in lengths]
        clients[f"writer {writer}"] = (
            words,
            np.array([int((sentence > 25).float().mean() > 0.5) for sentence in words]),
        )
    return clients


class Reader(nn.Module):
    """A network that is told by `mask` which of the tokens are real; `lengths` would do as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.tell = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        mean = (self.embed(words) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out: Tensor = self.tell(mean)
        return out


def forms(path: Path) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Each form of data, and the network for it."""
    found: dict[str, tuple[Callable[[], Any], Any]] = {
        "frame": (lambda: load(patients(), client="clinic", **COLUMNS), "linear"),
        "folder": (lambda: load(folder(path / "clinics"), **COLUMNS), "linear"),
        "images": (lambda: load(f"folder('{images(path / 'offices')}')"), "mlp"),
        "augmented": (lambda: load(augmented()), "mlp"),
        "hub": (lambda: load(hub(), client="clinic", **COLUMNS), "linear"),
        "two inputs": (lambda: load(two_inputs()), Two),
        "sequences": (lambda: load(sentences(), inputs="tokens"), Reader),
        "own labels": (own_labels, "mlp"),
    }
    try:
        import datasets  # noqa: F401
    except ImportError:
        del found["hub"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"{'':12}{'fedper':>8}{'local':>8}   clients")
    with tempfile.TemporaryDirectory() as path:
        for name, (data, model) in forms(Path(path)).items():
            federation = data()
            results = [idiolect.run(m, federation, model=model, rounds=rounds, lr=0.5) for m in ("fedper", "local")]
            scores = "".join(f"{result.summary['accuracy']['selected']['weighted']:8.3f}" for result in results)
            print(f"{name:12}{scores}   {', '.join(client.name for client in federation.clients)}")


if __name__ == "__main__":
    main()
