"""EEG epochs: files as MOABB's epochs are saved, covariances, tangent vectors, padding."""

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.covariance import oas

import idiolect
from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.data.sources.eeg import Eeg, covariances, riemannian_mean, tangent_vectors

NOISE = np.random.default_rng(0)


def record(folder, name, epochs, channels, times=40, labels=("right_hand", "feet"), **more):
    """A file as the class's documentation says to write it: signals in volts, names of classes, subjects."""
    y = np.array([labels[i % len(labels)] for i in range(epochs)])
    X = 1e-5 * NOISE.standard_normal((epochs, channels, times))
    X[:, 0] *= np.where(y == labels[0], 3.0, 1.0)[:, None]
    arrays = {"X": X, "y": y, "subject": np.arange(epochs) % 2 + 1, **more}
    np.savez(folder / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})
    return X, y


def positive(count, size):
    roots = NOISE.standard_normal((count, size, 2 * size))
    return roots @ roots.transpose(0, 2, 1) / size


def test_every_data_set_is_a_client_and_short_vectors_end_in_zeros(tmp_path):
    record(tmp_path, "AlexMI", 12, 3)
    record(tmp_path, "Zhou2016", 16, 5, labels=("left_hand", "right_hand", "feet", "tongue"))
    federation = load(f"eeg(path='{tmp_path}')", split=(1.0, 0.0, 0.0))
    assert [(client.name, len(client)) for client in federation.clients] == [("AlexMI", 12), ("Zhou2016", 8)]
    assert (federation.classes, federation.input_shape) == (2, (15,))
    x, y = federation.clients[0].split("train")
    assert not x[:, 6:].any()
    assert x[y == 0][:, :6].all()
    assert y.tolist() == [0, 1] * 6


def test_people_may_be_clients_and_other_classes_chosen(tmp_path):
    record(tmp_path, "one", 12, 3, labels=("left_hand", "right_hand"))
    pool = Eeg(path=str(tmp_path), by="subject", classes=("right_hand", "left_hand")).load()
    assert sorted(set(pool.groups)) == ["one 1", "one 2"]
    assert pool.y.tolist() == [1, 0] * 6


def test_covariances_are_those_of_scikit_learn():
    signals = NOISE.standard_normal((3, 4, 30)) * np.array([1.0, 2, 3, 4])[:, None]
    for epoch, plain, shrunk in zip(signals, covariances(signals, False), covariances(signals), strict=True):
        assert np.allclose(plain, np.cov(epoch, bias=True))
        assert np.allclose(shrunk, oas(epoch.T)[0])


def test_a_tangent_vector_has_the_length_of_the_logarithm_and_nothing_of_the_scale():
    matrices = positive(5, 4)
    vectors = tangent_vectors(matrices)
    assert vectors.shape == (5, 10)
    assert np.allclose(vectors, tangent_vectors(1e-10 * matrices))
    values = np.linalg.eigvalsh(matrices / (np.trace(matrices, axis1=1, axis2=2) / 4)[:, None, None])
    assert np.allclose((vectors**2).sum(1), (np.log(values) ** 2).sum(1))


def test_at_the_mean_vectors_are_the_same_however_electrodes_are_mixed_and_sum_to_zero():
    """The affine-invariant geometry: C -> W C W' moves the mean likewise, and keeps all lengths."""
    matrices, mixing = positive(6, 3), NOISE.standard_normal((3, 3))
    vectors = tangent_vectors(matrices, at_mean=True)
    assert np.allclose(vectors.sum(0), 0, atol=1e-7)
    mixed = tangent_vectors(mixing @ matrices @ mixing.T, at_mean=True)
    assert np.allclose((mixed**2).sum(1), (vectors**2).sum(1))
    pair = np.array([np.diag([1.0, 4.0]), np.diag([4.0, 1.0])])
    assert np.allclose(riemannian_mean(pair), 2 * np.eye(2))  # the geometric mean of numbers


def test_by_default_a_vector_takes_nothing_from_other_epochs(tmp_path):
    X, y = record(tmp_path, "a", 10, 3)
    whole = Eeg(path=str(tmp_path)).load().x
    record(tmp_path, "a", 4, 3, X=X[:4], y=y[:4], subject=None)
    assert torch.equal(Eeg(path=str(tmp_path)).load().x, whole[:4])
    record(tmp_path, "a", 10, 3, X=X, y=y)
    at_mean = Eeg(path=str(tmp_path), reference="mean").load().x
    assert torch.allclose(at_mean.sum(0), torch.zeros(6), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"y": None}, {}, "has no y; it holds X, subject"),
        ({"X": np.zeros((4, 3))}, {}, r"X must be numbers in 3 dimensions, but have the shape \[4, 3\]"),
        ({"X": np.ones((7, 3, 9))}, {}, r"7 epochs but labels of shape \[4\]"),
        ({"X": np.full((4, 3, 9), np.nan)}, {}, "X must hold finite numbers"),
        ({"X": np.ones((4, 3, 9))}, {}, "not of full rank"),
        ({}, {"classes": ("tongue", "feet2")}, "has no epoch of tongue, feet2; it has feet, right_hand"),
        ({}, {"classes": ("feet", "feet")}, "must name two classes or more, each once"),
        ({"subject": None}, {"by": "subject"}, "does not name a subject for each epoch"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, change, options, message):
    record(tmp_path, "a", 4, 3, **change)
    with pytest.raises(DataError, match=message):
        Eeg(path=str(tmp_path), **options).load()


def record_bnci(folder, name, trials=8, channels=6, fs=100):
    """A file as BNCI Horizon 2020 publishes it: trials of four seconds, of which the second half is imagery, in which
    the first channel is loud for the first class; the last trial has an artifact."""
    folder.mkdir(exist_ok=True)
    y, starts = np.arange(trials) % 2 + 1, 4 * fs * np.arange(trials)
    X = NOISE.standard_normal((4 * fs * trials + 1, channels))
    for start, label in zip(starts, y, strict=True):
        X[start + 2 * fs : start + 4 * fs, 0] *= 5.0 if label == 1 else 1.0
    run = {"X": X, "trial": (starts + 1.0)[:, None], "y": (y * 1.0)[:, None], "fs": float(fs)}
    run |= {"classes": np.array(["right hand", "feet"], dtype=object)}
    run |= {"artifacts": (np.arange(trials) == trials - 1) * 1.0}
    cells = np.empty(1, dtype=object)
    cells[0] = run
    savemat(folder / name, {"data": cells})


def test_a_folder_of_recordings_is_a_data_set_whose_people_have_a_file_per_session(tmp_path):
    for name in ("A01T.mat", "A01E.mat", "A02T.mat"):
        record_bnci(tmp_path / "BNCI2014_004", name)
    record(tmp_path, "Zhou2016", 12, 5)
    pool = Eeg(path=str(tmp_path)).load()
    assert [(name, (pool.groups == name).sum()) for name in sorted(set(pool.groups))] == [
        ("BNCI2014_004", 24 - 3),  # the last trials end half a second before the window does
        ("Zhou2016", 12),
    ]
    people = Eeg(path=str(tmp_path), by="subject", window=(2, 4)).load()
    assert {"BNCI2014_004 A01", "BNCI2014_004 A02"} <= set(people.groups)
    assert (people.groups == "BNCI2014_004 A01").sum() == 16
    clean = Eeg(path=str(tmp_path), by="subject", window=(2, 4), artifacts=False).load()
    assert (clean.groups == "BNCI2014_004 A01").sum() == 14


def test_recordings_are_cut_where_it_is_imagined_and_eog_is_left_out(tmp_path):
    """004-2014 has three channels of EEG and three of EOG: 3 * 4 / 2 numbers."""
    record_bnci(tmp_path / "004-2014", "B01T.mat", trials=20)
    pool = Eeg(path=str(tmp_path), window=(2.1, 3.9)).load()
    assert pool.x.shape == (20, 6)
    loud = pool.x[pool.y == 0, 0] > pool.x[pool.y == 1, 0].max()
    assert loud.all()
    before = Eeg(path=str(tmp_path), window=(0.2, 1.8)).load()
    assert not (before.x[before.y == 0, 0] > before.x[before.y == 1, 0].max()).all()


@pytest.mark.parametrize(
    ("folder", "options", "message"),
    [
        ("mine", {}, r"say which channels are EEG .* known of 001-2014"),
        ("mine", {"channels": 3, "window": (2, 1)}, "say which channels are EEG"),
        ("004-2014", {"band": (8, 50)}, r"band=\[8, 50\] is no band below half of 100 Hz"),
        ("004-2014", {"window": (2, 60)}, "has no epoch of right_hand, feet; it has nothing"),
    ],
)
def test_what_is_wrong_with_recordings_is_said(tmp_path, folder, options, message):
    record_bnci(tmp_path / folder, "B01T.mat", trials=2)
    with pytest.raises(DataError, match=message):
        Eeg(path=str(tmp_path), **options).load()
    if folder == "mine":
        assert Eeg(path=str(tmp_path), channels=2, window=(2, 4)).load().x.shape == (2, 3)


def test_it_can_be_learned(tmp_path):
    for name, channels in (("a", 3), ("b", 4), ("c", 5)):
        record(tmp_path, name, 60, channels)
    run = idiolect.run("lgmix", f"eeg(path='{tmp_path}')", model="mlp(hidden=[8])", rounds=8, lr=0.1, batch_size=8)
    assert run.summary["accuracy"]["selected"]["mean"] > 0.9
