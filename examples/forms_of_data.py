"""Own data in five forms: a frame, a folder of CSV files, a data set of Hugging Face, two inputs, sequences.

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
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

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
    for (clinic,), part in patients().group_by("clinic"):
        part.drop("clinic").write_csv(path / f"{clinic}.csv")
    return path


def hub() -> Any:
    """A data set of Hugging Face, where the package `datasets` is installed."""
    import datasets

    return datasets.Dataset.from_dict(patients().to_dict(as_series=False))


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
        "folder": (lambda: load(folder(path), **COLUMNS), "linear"),
        "hub": (lambda: load(hub(), client="clinic", **COLUMNS), "linear"),
        "two inputs": (lambda: load(two_inputs()), Two),
        "sequences": (lambda: load(sentences(), inputs="tokens"), Reader),
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
    print(f"{'':12}{'fedavg':>8}{'ditto':>8}   clients")
    with tempfile.TemporaryDirectory() as path:
        for name, (data, model) in forms(Path(path)).items():
            federation = data()
            results = [idiolect.run(m, federation, model=model, rounds=rounds, lr=0.5) for m in ("fedavg", "ditto")]
            scores = "".join(f"{result.summary['accuracy']['selected']['weighted']:8.3f}" for result in results)
            print(f"{name:12}{scores}   {', '.join(client.name for client in federation.clients)}")


if __name__ == "__main__":
    main()
