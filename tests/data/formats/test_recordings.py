"""Recordings of brain signals: .mat files of BNCI Horizon 2020 and .gdf files, written here byte by byte."""

import struct

import numpy as np
import pytest
from scipy.io import savemat

from idiolect.core.errors import DataError
from idiolect.data.formats.gdf import read_gdf
from idiolect.data.formats.recordings import Recording, cut_epochs, read_recordings

NOISE = np.random.default_rng(0)


def bnci_run(trials, y, times=1000, channels=5, fs=100, **more):
    """A run as BNCI Horizon 2020 publishes it: columns, numbers of trials and classes from 1 on."""
    run = {
        "X": NOISE.standard_normal((times, channels)),
        "trial": np.array(trials, dtype=float).reshape(-1, 1),
        "y": np.array(y, dtype=float).reshape(-1, 1),
        "fs": float(fs),
        "classes": np.array(["left hand", "right hand", "feet", "tongue"], dtype=object),
        "artifacts": np.zeros((len(y), 1)),
        "gender": "male",
        "age": 22.0,
    }
    return {**run, **more}


def save_bnci(path, *runs):
    """MATLAB's cell array of structures."""
    cells = np.empty(len(runs), dtype=object)
    cells[:] = runs
    savemat(path, {"data": cells})


def gdf_bytes(signals, rate, events, version="1.25"):
    """A .gdf file of 16-bit numbers, a sample per record as in competition IV 2a; one unit is half a microvolt."""
    times, channels = signals.shape
    later = float(version) >= 1.9
    fixed = f"GDF {version}".encode().ljust(184, b" ")
    fixed += struct.pack("<H6x", channels + 1) if later else struct.pack("<q", 256 * (channels + 1))
    fixed = fixed.ljust(236, b"\0") + struct.pack("<qII", times, 1, rate)
    fixed += struct.pack("<HH", channels, 0) if later else struct.pack("<I", channels)
    limit = "<d" if later else "<q"
    fields = [(b"EEG".ljust(16), channels), (bytes(80 + 8), channels)]
    fields += [(struct.pack("<d", -1000.0), channels), (struct.pack("<d", 1000.0), channels)]
    fields += [(struct.pack(limit, -2000), channels), (struct.pack(limit, 2000), channels)]
    fields += [(bytes(80), channels), (struct.pack("<I", 1), channels), (struct.pack("<I", 3), channels)]
    fields += [(bytes(32), channels)]
    header = fixed + b"".join(value * count for value, count in fields)
    places, kinds = (np.array(column) for column in zip(*events, strict=True)) if events else (np.zeros(0),) * 2
    count = struct.pack("<I", len(kinds))
    begin = count[:3] + struct.pack("<f", rate) if later else struct.pack("<I", rate)[:3] + count
    table = b"\x01" + begin + (places + 1).astype("<u4").tobytes() + kinds.astype("<u2").tobytes()
    return header + signals.astype("<i2").tobytes() + (table if events else b"")


def test_the_runs_of_a_bnci_file_with_trials_are_read(tmp_path):
    eyes = bnci_run([], [])
    run = bnci_run([1, 401], [3, 2], artifacts=np.array([[0.0], [1.0]]))
    save_bnci(tmp_path / "A01T.mat", eyes, run)
    (found,) = read_recordings(tmp_path / "A01T.mat")
    assert np.array_equal(found.signals, run["X"])
    assert found.starts.tolist() == [0, 400]
    assert found.names.tolist() == ["feet", "right_hand"]
    assert found.marked.tolist() == [False, True]
    assert found.rate == 100.0


def test_a_bnci_file_may_hold_one_run_of_one_trial_with_names_of_its_own(tmp_path):
    savemat(tmp_path / "A.mat", {"data": bnci_run([11], [5], classes=np.array(["WORD", "SUB", "NAV", "HAND", "FEET"]))})
    (found,) = read_recordings(tmp_path / "A.mat")
    assert (found.starts.tolist(), found.names.tolist()) == ([10], ["feet"])


@pytest.mark.parametrize("version", ["1.25", "2.20"])
def test_a_gdf_file_is_read_in_microvolts_with_its_events(tmp_path, version):
    signals = NOISE.integers(-2000, 2000, (30, 3))
    (tmp_path / "a.gdf").write_bytes(gdf_bytes(signals, 250, [(4, 768), (9, 770)], version))
    found = read_gdf(tmp_path / "a.gdf")
    assert np.allclose(found.signals, signals / 2)
    assert found.rate == 250.0
    assert list(zip(found.places, found.kinds, strict=True)) == [(4, 768), (9, 770)]


def test_records_of_several_samples_lie_channel_after_channel(tmp_path):
    signals = np.arange(12).reshape(6, 2)
    content = bytearray(gdf_bytes(signals.reshape(2, 3, 2).transpose(0, 2, 1).reshape(6, 2), 6, []))
    content[236:252] = struct.pack("<qII", 2, 1, 2)
    content[256 + 216 * 2 : 256 + 220 * 2] = struct.pack("<II", 3, 3)
    (tmp_path / "a.gdf").write_bytes(content)
    found = read_gdf(tmp_path / "a.gdf")
    assert np.allclose(found.signals, signals / 2)
    assert (found.rate, len(found.kinds)) == (6.0, 0)


def test_trials_of_a_competition_file_begin_before_the_cue(tmp_path):
    events = [(0, 32766), (10, 768), (20, 769), (40, 768), (40, 1023), (50, 772)]
    (tmp_path / "A01T.gdf").write_bytes(gdf_bytes(np.zeros((90, 2)), 250, events))
    (found,) = read_recordings(tmp_path / "A01T.gdf")
    assert found.starts.tolist() == [10, 40]
    assert found.names.tolist() == ["left_hand", "tongue"]
    assert found.marked.tolist() == [False, True]


def test_classes_that_are_not_shown_are_told_by_the_file_beside(tmp_path):
    (tmp_path / "A01E.gdf").write_bytes(gdf_bytes(np.zeros((90, 2)), 250, [(1, 768), (9, 783), (20, 768), (29, 783)]))
    with pytest.raises(DataError, match=r"put A01E\.mat with classlabel there"):
        read_recordings(tmp_path / "A01E.gdf")
    savemat(tmp_path / "A01E.mat", {"classlabel": np.array([[3], [2]])})
    assert read_recordings(tmp_path / "A01E.gdf")[0].names.tolist() == ["feet", "right_hand"]
    savemat(tmp_path / "A01E.mat", {"classlabel": np.array([[3]])})
    with pytest.raises(DataError, match="1 labels for 2 trials"):
        read_recordings(tmp_path / "A01E.gdf")


def recorded(signals, starts, rate=100.0):
    starts = np.array(starts)
    return Recording(signals, starts, np.array(["feet"] * len(starts)), np.zeros(len(starts), bool), rate)


def test_epochs_are_cut_after_the_trials_began():
    signals = np.arange(300.0)[:, None] + np.array([0.0, 1000.0, 5.0])
    epochs, trials = cut_epochs(recorded(signals, [0, 50, 250]), (0.5, 1.5), None, channels=2)
    assert trials.tolist() == [0, 1]  # the third ends after the recording
    assert epochs.shape == (2, 2, 100)
    assert epochs[1, 1, 0] == 1100.0


def test_trials_with_lost_samples_are_left_out_and_do_not_spoil_others():
    signals = NOISE.standard_normal((600, 2))
    signals[350] = np.nan
    epochs, trials = cut_epochs(recorded(signals, [0, 300]), (0.0, 1.0), (8.0, 32.0), channels=2)
    assert trials.tolist() == [0]
    assert np.isfinite(epochs).all()


def test_the_band_passes_and_the_rest_does_not():
    times = np.arange(1000) / 100.0
    signals = np.stack([np.sin(2 * np.pi * hertz * times) for hertz in (2.0, 16.0, 45.0)], axis=1)
    epochs, _ = cut_epochs(recorded(signals, [300]), (0.0, 4.0), (8.0, 32.0), channels=3)
    low, middle, high = epochs[0].std(1)
    assert middle == pytest.approx(np.sqrt(0.5), rel=0.01)
    assert max(low, high) < 0.02


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: savemat(path, {"signal": np.zeros(3)}), "holds no runs with X, trial, y, fs and classes"),
        (lambda path: save_bnci(path, {"X": np.zeros((4, 2))}), "holds no runs with X, trial, y, fs and classes"),
        (lambda path: save_bnci(path, bnci_run([1, 2], [1])), "2 trials, 1 labels and 4 classes"),
        (lambda path: save_bnci(path, bnci_run([1], [5])), "do not fit each other"),
        (lambda path: path.write_bytes(b"nothing of MATLAB"), r"A01T\.mat"),
    ],
)
def test_what_is_wrong_with_a_bnci_file_is_said(tmp_path, write, message):
    write(tmp_path / "A01T.mat")
    with pytest.raises(DataError, match=message):
        read_recordings(tmp_path / "A01T.mat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"EDF of another kind", "is no .gdf file: it begins with b'EDF '"),
        (gdf_bytes(np.zeros((9, 2)), 250, [])[:-20], r"a\.gdf"),
        (gdf_bytes(np.zeros((9, 2)), 250, [(3, 769)]), "shown before any trial begins"),
        (gdf_bytes(np.zeros((9, 0)), 250, []), "its channels differ in rate or type"),
    ],
)
def test_what_is_wrong_with_a_gdf_file_is_said(tmp_path, content, message):
    (tmp_path / "a.gdf").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_recordings(tmp_path / "a.gdf")
