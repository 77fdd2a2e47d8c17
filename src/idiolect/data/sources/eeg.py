"""Brain signals: epochs of several recordings, each as the tangent vector of its covariance matrix."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import data_root
from ..formats.packed import check_rank, read_npz
from ..formats.recordings import cut_epochs, read_recordings
from .base import FileSource, Pool, sources

RECORDED = {
    "001-2014": (22, (2.0, 6.0)),
    "002-2014": (15, (3.0, 8.0)),
    "004-2014": (3, (3.0, 7.5)),
    "001-2015": (13, (0.0, 5.0)),
    "004-2015": (30, (3.0, 10.0)),
}
"""Motor imagery of BNCI Horizon 2020: how many of the first channels are EEG, and when, in seconds after a trial began,
it is imagined (as in MOABB)."""
ITERATIONS, CLOSE = 50, 1e-9
"""Steps towards a mean of covariances, and the length of a step that ends them."""


@sources.register("eeg", "bci")
@dataclass(frozen=True)
class Eeg(FileSource):
    """Mental imagery from EEG, a client per data set, as in the benchmark MOABB. A data set is a folder or a file.

    A folder PATH/NAME has recordings as they are published: .mat files of BNCI Horizon 2020, or .gdf files of the BCI
    competitions (IV 2a is 001-2014, IV 2b 004-2014), a person's files beginning alike: A01T.mat, A01E.mat. Signals are
    filtered to a `band` and cut into epochs, by a `window` in seconds after a trial began. Folders named as on
    bnci-horizon-2020.eu, such as 001-2014, or as in MOABB, BNCI2014_001, have a window and a number of channels that
    are known.

    A file PATH/NAME.npz has epochs: the arrays `X` (epochs x channels x times), `y` (a name of what was imagined per
    epoch) and, if there are some, `subject`. With MOABB, ``X, y, meta = MotorImagery(n_classes=2, events=["right_hand",
    "feet"]).get_data(dataset)`` and ``np.savez(f"{dataset.code}.npz", X=X, y=y.astype(str),
    subject=meta.subject.to_numpy(int))`` write such a file.

    The inputs are vectors: the covariance matrix of each epoch, projected to a tangent space, whose upper triangle is
    filled up with zeros to the length of the largest. The projection is at the identity, of covariances that are
    divided by their mean power, and takes nothing from other epochs; `reference=mean` is at the Riemannian mean of the
    data set's covariances, test epochs included, though not their labels.
    """

    title: ClassVar[str] = "EEG epochs, as tangent vectors of covariances"
    licence: ClassVar[str] = "that of the recordings"
    size: ClassVar[str] = "as many as there are; c (c + 1) / 2 numbers for c channels"
    groups: ClassVar[str] = "the data sets, or with by=subject the people"
    papers: ClassVar[str] = "LG-Mix (AlexMI, BNCI2014_001, BNCI2015_004, Zhou2016)"

    classes: tuple[str, ...] = option(("right_hand", "feet"), help="what to tell apart; other epochs are left out")
    by: str = option("dataset", choices=("dataset", "subject"), help="a client is a data set, or a person")
    covariance: str = option(
        "oas",
        choices=("oas", "sample"),
        help="covariances are shrunk (oracle approximating), or plain, if of full rank",
    )
    reference: str = option("identity", choices=("identity", "mean"), help="where the tangent space touches")
    band: tuple[float, ...] = option((8.0, 32.0), above=0.0, help="frequencies that recordings are filtered to, in Hz")
    window: tuple[float, ...] = option((), min=0.0, help="seconds after a trial began; none is as MOABB has it")
    channels: int | None = option(None, min=1, help="how many of the first channels are EEG; none is as is known")
    artifacts: bool = option(True, help="take trials that experts marked as having artifacts, too")

    @property
    def _sets(self) -> list[Path]:
        """The data sets: archives of epochs, and folders of recordings."""
        root = Path(self.path) if self.path else data_root() and Path(str(data_root())) / "eeg"
        there = sorted(root.iterdir()) if root and root.is_dir() else []
        return [path for path in there if (list_recordings(path) if path.is_dir() else path.suffix == ".npz")]

    def where(self) -> str:
        """Which files to put where."""
        return (
            f"put NAME.npz for each data set, with X, y and perhaps subject, into {self.path or '$IDIOLECT_DATA/eeg'}, "
            "or a folder NAME with the .mat files of BNCI Horizon 2020 or the .gdf files of a BCI competition"
        )

    def available(self) -> bool:
        """Whether there are any."""
        return bool(self._sets)

    def load(self) -> Pool:
        """The pool, with data sets or people as groups."""
        if len(set(self.classes)) < 2:
            raise DataError(f"{self.name}: classes={list(self.classes)} must name two classes or more, each once")
        if not self.available():
            raise DataError(f"{self.name}: no recordings found. To use it, {self.where()}.")
        parts = [self._read(path) for path in self._sets]
        longest = max(part[0].shape[1] for part in parts)
        x = np.concatenate([np.pad(rows, ((0, 0), (0, longest - rows.shape[1]))) for rows, _, _ in parts])
        y, groups = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
        index = self.choose_samples(len(y))
        inputs = torch.from_numpy(x[index].astype(np.float32))
        return Pool(inputs, torch.from_numpy(y[index]), groups[index], len(self.classes), self.name)

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Vectors, classes and groups of one data set."""
        content = self._cut(path) if path.is_dir() else read_npz(path, ["X", "y"], ["subject"])
        names = content["y"].astype(str)
        check_rank(path, "X", content["X"], 3)
        if names.shape != content["X"].shape[:1]:
            raise DataError(f"{path}: {len(content['X'])} epochs but labels of shape {list(names.shape)}; one for each")
        chosen = np.isin(names, self.classes)
        if not chosen.any():
            there = ", ".join(sorted(set(names))) or "nothing"
            raise DataError(f"{path} has no epoch of {', '.join(self.classes)}; it has {there}: choose classes=[...]")
        groups = np.full(len(names), path.stem, dtype=object)
        if self.by == "subject":
            if content.get("subject", names[:0]).shape != names.shape:
                raise DataError(f"{path} does not name a subject for each epoch; use by=dataset, or add one per epoch")
            groups = np.array([f"{path.stem} {subject}" for subject in content["subject"]], dtype=object)
        signals = content["X"][chosen].astype(np.float64)
        if not np.isfinite(signals).all() or signals.shape[2] < 2:
            raise DataError(f"{path}: X must hold finite numbers at two times or more; leave out what is broken")
        try:
            rows = tangent_vectors(covariances(signals, self.covariance == "oas"), self.reference == "mean")
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
        labels = np.array([self.classes.index(name) for name in names[chosen]], dtype=np.int64)
        return rows, labels, groups[chosen].astype(str)

    def _cut(self, folder: Path) -> dict[str, np.ndarray]:
        """The epochs of a folder of recordings, as an archive of epochs has them."""
        channels, window = RECORDED.get(plain_code(folder.name), (self.channels, self.window))
        channels, window = self.channels or channels, self.window or window
        if not channels or len(window) != 2 or len(self.band) != 2 or window[0] >= window[1]:
            raise DataError(
                f"{folder}: say which channels are EEG and when it is imagined, as in eeg(channels=22, window=[2, 6], "
                f"band=[8, 32]); that is known of {', '.join(RECORDED)} only"
            )
        parts: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
        for path in list_recordings(folder):
            for recording in read_recordings(path):
                if not 2 * self.band[1] < recording.rate or self.band[0] >= self.band[1]:
                    raise DataError(f"{path}: band={list(self.band)} is no band below half of {recording.rate:g} Hz")
                X, trials = cut_epochs(recording, (window[0], window[1]), (self.band[0], self.band[1]), channels)
                kept = np.flatnonzero(self.artifacts | ~recording.marked[trials])
                parts.append((X[kept], recording.names[trials[kept]], [name_subject(path)] * len(kept)))
        if len({X.shape[1:] for X, _, _ in parts}) != 1:
            found = sorted({tuple(X.shape[1:]) for X, _, _ in parts}) or "none"
            raise DataError(f"{folder}: epochs must all have the same channels and times, but there are {found}")
        return {key: np.concatenate([part[at] for part in parts]) for at, key in enumerate(("X", "y", "subject"))}


def list_recordings(folder: Path) -> list[Path]:
    """The recordings in a folder: .gdf files, beside which .mat files hold labels, or else .mat files."""
    return sorted(folder.glob("*.gdf")) or sorted(folder.glob("*.mat"))


def plain_code(name: str) -> str:
    """A data set's number as BNCI Horizon 2020 writes it.

    >>> plain_code("BNCI2014_001"), plain_code("004-2015")
    ('001-2014', '004-2015')
    """
    found = re.fullmatch(r"BNCI(\d{4})[-_]?(\d{3})", name)
    return f"{found[2]}-{found[1]}" if found else name


def name_subject(path: Path) -> str:
    """Whose recording it is: the file's name without the letter of the session.

    >>> name_subject(Path("A01T.mat")), name_subject(Path("C.mat"))
    ('A01', 'C')
    """
    return re.sub(r"(?<=\d)[A-Z]$", "", path.stem)


def covariances(signals: np.ndarray, shrunk: bool = True) -> np.ndarray:
    """The covariance matrix of each epoch, from epochs x channels x times; shrunk towards a multiple of the identity by
    the oracle approximating estimate (Chen et al., 2010), so that it has full rank.

    >>> covariances(np.array([[[1.0, -1.0], [2.0, -2.0]]]), shrunk=False).tolist()
    [[[1.0, 2.0], [2.0, 4.0]]]
    """
    channels, times = signals.shape[1:]
    centred = signals - signals.mean(2, keepdims=True)
    plain: np.ndarray = centred @ centred.transpose(0, 2, 1) / times
    if not shrunk:
        return plain
    power, spread = np.trace(plain, axis1=1, axis2=2) / channels, (plain**2).mean((1, 2))
    beyond = (times + 1) * (spread - power**2 / channels)
    share = np.minimum(1, np.divide(spread + power**2, beyond, out=np.ones_like(beyond), where=beyond > 0))
    mixed: np.ndarray = (1 - share)[:, None, None] * plain + (share * power)[:, None, None] * np.eye(channels)
    return mixed


def tangent_vectors(matrices: np.ndarray, at_mean: bool = False) -> np.ndarray:
    r"""Covariance matrices as vectors: the upper triangles of :math:`\log(M^{-1/2} C M^{-1/2})`, entries beside the
    diagonal times :math:`\sqrt 2`, so that lengths are those of the matrices (Barachant et al., 2012).

    M is the matrices' Riemannian mean, or a multiple of the identity, the mean power of each matrix.

    >>> tangent_vectors(np.array([np.diag([1.5, 0.5])])).round(4).tolist()
    [[0.4055, 0.0, -0.6931]]
    """
    channels = matrices.shape[1]
    if at_mean:
        root = _power(riemannian_mean(matrices)[None], -0.5)
        scaled = root @ matrices @ root
    else:
        scaled = matrices / (np.trace(matrices, axis1=1, axis2=2) / channels).clip(np.finfo(float).tiny)[:, None, None]
    rows, columns = np.triu_indices(channels)
    logs: np.ndarray = _log(scaled)[:, rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2))
    return logs


def riemannian_mean(matrices: np.ndarray) -> np.ndarray:
    """The covariance matrix with the least sum of squared affine-invariant distances to all."""
    mean: np.ndarray = matrices.mean(0)
    for _ in range(ITERATIONS):
        root, inverse = (_power(mean[None], power)[0] for power in (0.5, -0.5))
        step = _log(inverse @ matrices @ inverse).mean(0)
        mean = root @ _apply(step[None], np.exp)[0] @ root
        if np.linalg.norm(step) < CLOSE:
            break
    return mean


def _log(matrices: np.ndarray) -> np.ndarray:
    return _apply(_positive(matrices), np.log)


def _power(matrices: np.ndarray, power: float) -> np.ndarray:
    return _apply(_positive(matrices), lambda values: values**power)


def _positive(matrices: np.ndarray) -> np.ndarray:
    values = np.linalg.eigvalsh(matrices)
    if (values <= 1e-12 * values.max()).any():
        raise ValueError("a covariance matrix is not of full rank (a flat or repeated channel?); use covariance=oas")
    return matrices


def _apply(matrices: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A function of the eigenvalues."""
    values, vectors = np.linalg.eigh(matrices)
    result: np.ndarray = (vectors * function(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return result
