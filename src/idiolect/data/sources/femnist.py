"""The JSON files of LEAF: users, and for each the inputs x and the targets y; FEMNIST, which comes in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import COMPRESSIONS, Layout, read_text, unreadable
from ..formats.packed import check_labels
from .base import FileSource, Pool, sources
from .mnist import in_groups


def leaf_files(folder: Path) -> list[Path]:
    """The JSON files in a folder and in its folders (train, test), in order."""
    endings = tuple(f".json{ending}" for ending in COMPRESSIONS)
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(endings))


def read_leaf(paths: Sequence[Path]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The users of LEAF files, each with its inputs and targets; one whose numbers do not fit is a `DataError`.

    >>> path = getfixture("tmp_path") / "all.json"
    >>> _ = path.write_text('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": ["to b"], "y": ["e"]}}}')
    >>> list(read_leaf([path]))
    [('a', ['to b'], ['e'])]
    """
    for path in paths:
        try:
            content = json.loads(read_text(path))
            users, data = list(content["users"]), dict(content["user_data"])
            for user, count in zip(users, content.get("num_samples", [None] * len(users)), strict=True):
                x, y = data[user]["x"], data[user]["y"]
                if len(x) != len(y) or count not in (None, len(y)):
                    raise DataError(
                        f"{path}: user {user!r} has {len(x)} inputs, {len(y)} targets and num_samples {count}"
                    )
                yield str(user), x, y
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(path, f"no LEAF file: {type(error).__name__} {error}") from error


@sources.register("femnist")
@dataclass(frozen=True)
class Femnist(FileSource):
    """Handwritten digits and letters by writer, in LEAF's JSON files. LEAF's images are black on white (1 is white);
    they are kept so."""

    title: ClassVar[str] = "FEMNIST: handwritten characters (LEAF)"
    licence: ClassVar[str] = "BSD 2-clause (LEAF), public domain (NIST Special Database 19)"
    size: ClassVar[str] = "805,263 samples, 1 x 28 x 28, 62 classes"
    groups: ClassVar[str] = "3,550 writers"
    papers: ClassVar[str] = "pFedGate, FedFac"
    layouts: ClassVar[dict[str, Layout]] = {"leaf": Layout(".", ("femnist/",), "a folder of LEAF's JSON files")}
    note: ClassVar[str] = "The script data/femnist/preprocess.sh of github.com/TalwalkarLab/leaf makes them"

    writers: int | None = option(None, min=1, help="take a random choice of this many writers")

    def load(self) -> Pool:
        """The pool, with the writers as groups."""
        _, paths = self.find()
        files = leaf_files(paths["femnist/"])
        images, labels, writers = [], [], []
        for user, x, y in read_leaf(files):
            try:
                images.append(np.asarray(x, np.float32).reshape(len(y), 1, 28, 28))
            except ValueError as error:
                raise DataError(f"femnist: the images of writer {user!r} are not 28 x 28 numbers ({error})") from error
            labels.append(np.asarray(y))
            writers += [user] * len(y)
        if not writers:
            raise DataError(f"femnist: {paths['femnist/']} holds no LEAF files; {self.where()}")
        numbered = check_labels("femnist", np.concatenate(labels), 62)
        groups = np.array(writers)
        index = in_groups(self.name, "writers", groups, self.writers, self.seed)
        index = index[self.choose_samples(len(index))]
        return Pool(
            torch.from_numpy(np.concatenate(images)[index]),
            torch.from_numpy(numbered[index]),
            groups[index],
            62,
            self.name,
        )
