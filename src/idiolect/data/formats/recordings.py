"""Recordings of brain signals with trials in them: the files of BNCI Horizon 2020 (.mat) and of the BCI competitions
(.gdf), and epochs that are cut from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...core.errors import DataError
from .files import BROKEN, unreadable
from .gdf import read_gdf
from .packed import read_mat

FIELDS = {"X", "trial", "y", "fs", "classes"}
"""What every run of a .mat file has."""
NAMES = {
    "both_feet": "feet",
    "foot": "feet",
    "hand": "right_hand",
    "nav": "navigation",
    "sub": "subtraction",
    "word": "word_association",
}
"""What the files call what MOABB calls otherwise."""
TRIAL, CUES, UNKNOWN, REJECTED = 768, (769, 770, 771, 772), 783, 1023
"""The kinds of events in .gdf files: a trial begins, which class is shown, an unknown one is, the trial is rejected."""
CUE_NAMES = ("left_hand", "right_hand", "feet", "tongue")
ORDER = 4
"""Of the Butterworth filter that goes over a recording there and back."""


class Recording(NamedTuple):
    """Signals (times x channels) without a break, with the trials in them: where each begins (in samples, from 0 on),
    what was imagined, and whether experts marked it as having artifacts."""

    signals: np.ndarray
    starts: np.ndarray
    names: np.ndarray
    marked: np.ndarray
    rate: float


def read_recordings(path: Path) -> list[Recording]:
    """The recordings in a .mat or .gdf file, those without trials left out."""
    return read_competition(path) if path.suffix.lower() == ".gdf" else read_bnci(path)


def read_bnci(path: Path) -> list[Recording]:
    """The runs of a .mat file of BNCI Horizon 2020: `data` has one structure per run, with `X` (times x channels),
    `trial` (where trials begin, from 1 on), `y` (the number of a class each, from 1 on), `classes` (their names), `fs`
    and perhaps `artifacts`."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, simplify_cells=True).get("data")
    except (MatReadError, NotImplementedError, TypeError, LookupError, *BROKEN) as error:
        raise unreadable(path, error) from error
    runs = [content] if isinstance(content, dict) else [] if content is None else list(content)
    if not runs or not all(isinstance(run, dict) and run.keys() >= FIELDS for run in runs):
        raise DataError(
            f"{path} holds no runs with X, trial, y, fs and classes in a variable named data; it is no file of BNCI "
            "Horizon 2020 with motor imagery"
        )
    return [_run(path, run) for run in runs if np.size(run["trial"])]


def _run(path: Path, run: dict[str, Any]) -> Recording:
    signals, names = np.asarray(run["X"], float), np.atleast_1d(run["classes"])
    starts, y = (np.atleast_1d(run[key]).astype(np.int64).reshape(-1) for key in ("trial", "y"))
    marked = np.atleast_1d(run.get("artifacts", np.zeros(len(y)))).reshape(-1) != 0
    if signals.ndim != 2 or not len(starts) == len(y) == len(marked) or not np.isin(y, np.arange(len(names)) + 1).all():
        raise DataError(
            f"{path}: a run has signals of the shape {list(signals.shape)}, {len(starts)} trials, {len(y)} labels and "
            f"{len(names)} classes, which do not fit each other; fetch it again"
        )
    known = np.array([name_class(str(name)) for name in names])
    return Recording(signals, starts - 1, known[y - 1], marked, float(run["fs"]))


def read_competition(path: Path) -> list[Recording]:
    """The recording in a .gdf file of the BCI competitions' motor imagery data (IV 2a and 2b). Where classes are not
    shown, `classlabel` of the .mat file with the same name tells them, as the organisers published them."""
    file = read_gdf(path)
    cues = np.isin(file.kinds, (*CUES, UNKNOWN))
    if not cues.any():
        return []
    places, kinds = file.places[cues], file.kinds[cues]
    begins = np.sort(file.places[file.kinds == TRIAL])
    before = np.searchsorted(begins, places, side="right") - 1
    if (before < 0).any():
        raise DataError(f"{path}: a class is shown before any trial begins (event {TRIAL}); fetch it again")
    starts = begins[before]
    y = kinds - CUES[0]
    if (kinds == UNKNOWN).any():
        y = _told(path, len(kinds))
    marked = np.isin(starts, file.places[file.kinds == REJECTED])
    return [Recording(file.signals, starts, np.array(CUE_NAMES)[y], marked, file.rate)]


def _told(path: Path, count: int) -> np.ndarray:
    beside = path.with_suffix(".mat")
    if not beside.is_file():
        raise DataError(f"{path} does not say which classes its trials are of; put {beside.name} with classlabel there")
    labels = read_mat(beside, ["classlabel"])["classlabel"].reshape(-1).astype(np.int64)
    if len(labels) != count or not np.isin(labels, (1, 2, 3, 4)).all():
        raise DataError(f"{beside}: {len(labels)} labels for {count} trials, or others than 1 to 4; fetch it again")
    told: np.ndarray = labels - 1
    return told


def name_class(name: str) -> str:
    """A class as MOABB calls it.

    >>> name_class("both feet"), name_class("right hand"), name_class("FEET")
    ('feet', 'right_hand', 'feet')
    """
    plain = name.strip().lower().replace(" ", "_")
    return NAMES.get(plain, plain)


def cut_epochs(
    recording: Recording, window: tuple[float, float], band: tuple[float, float] | None, channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Epochs (epochs x channels x times) of the first `channels`, from `window` in seconds after each trial began and
    filtered to a `band` in Hz; and which trials they are of: those that end before the recording does and hold
    numbers only."""
    signals, rate = recording.signals[:, :channels], recording.rate
    fine = np.isfinite(signals).all(1)
    signals = np.where(fine[:, None], signals, 0.0)
    if band is not None:
        from scipy.signal import butter, sosfiltfilt

        signals = sosfiltfilt(butter(ORDER, band, "bandpass", fs=rate, output="sos"), signals, axis=0)
    first, last = (round(seconds * rate) for seconds in window)
    whole = np.array([fine[s + first : s + last].sum() == last - first for s in recording.starts], dtype=bool)
    chosen = np.flatnonzero(whole)
    epochs = [signals[start + first : start + last].T for start in recording.starts[chosen]]
    return np.stack(epochs) if epochs else np.zeros((0, signals.shape[1], last - first)), chosen
