"""Tables: own CSV and NPZ files, heart disease by hospital, activities by subject."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.data.sources import Csv, Har, Heart, Npz

ROWS = "client,age,height,target\nnorth,30,1.8,yes\nnorth,40,1.7,no\nsouth,50,1.6,no\nsouth,60,1.5,maybe\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_csv_with_a_column_of_clients(tmp_path):
    path = write(tmp_path / "visits.csv", ROWS)
    federation = load(f"csv:{path}", split=(1.0, 0.0, 0.0))
    assert [client.name for client in federation.clients] == ["north", "south"]
    assert (federation.name, federation.classes, federation.input_shape) == ("visits", 3, (2,))
    assert federation.clients[0].split("train")[0].tolist() == [[30.0, pytest.approx(1.8)], [40.0, pytest.approx(1.7)]]
    assert federation.clients[0].y.tolist() == [2, 1, 1, 0]  # maybe, no, yes


def test_columns_may_have_other_names_and_files_be_compressed(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"h;x;note;y\na;1;hm;0.5\nb;2;hm;1.5\n"))
    pool = Csv(str(tmp_path / "a.csv.gz"), client="h", target="y", leave_out=("note",), separator=";").load()
    assert (pool.classes, pool.y.tolist(), pool.groups.tolist()) == (None, [0.5, 1.5], ["a", "b"])
    assert pool.x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "clients,x,target\na,1,0\n",
            r"no column .client.\. Did you mean clients\? Its columns: clients, x, target\. Name .*client=\.\.\.",
        ),
        ("client,x,label\na,1,0\n", r"has no column 'target'"),
        ("client,x,target\na,tall,0\n", r"the column 'x' holds text such as 'tall'; encode it.*leave_out=\[x\]"),
        ("client,x,target\na,1,0\nb,,1\n", "the column 'x' has 1 empty cells"),
        ("client,x,target\n,1,0\n", "the column 'client' has 1 empty cells"),
        ("client,target\na,1\n", "has no columns besides client and target"),
        ("client,x,target\n", "has no rows"),
        ("", "cannot be read"),
        ("client,x,target\na,1,0,7,8\n", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        Csv(write(tmp_path / "a.csv", text)).load()


def test_own_files_must_be_there(tmp_path):
    assert not Csv().available()
    with pytest.raises(DataError, match="csv: no path is no file or folder; write csv:PATH"):
        Csv().load()
    with pytest.raises(DataError, match=r"npz: .*none\.npz is no file"):
        Npz(str(tmp_path / "none.npz")).load()


def test_an_npz_with_and_without_clients(tmp_path):
    x, y = np.zeros((4, 3), np.float32), np.arange(4) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.array(["a", "b", "a", "b"]))
    pool = Npz(str(tmp_path / "a.npz")).load()
    assert (pool.classes, pool.groups.tolist(), pool.x.dtype) == (2, ["a", "b", "a", "b"], torch.float32)
    np.savez(tmp_path / "b.npz", x=x, y=y.astype(np.float64))
    assert Npz(str(tmp_path / "b.npz")).load().classes is None
    assert len(Npz(str(tmp_path / "b.npz"), samples=2).load().x) == 2


def test_what_is_wrong_with_an_npz_is_said(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((4, 3)), z=np.zeros(4))
    with pytest.raises(DataError, match="has no y; it holds x, z"):
        Npz(str(path)).load()
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(4, int), client=np.zeros(3))
    with pytest.raises(DataError, match="4 samples but 3 clients"):
        Npz(str(path)).load()
    np.savez(path, x=np.array([{"a": 1}], object), y=np.zeros(1))
    with pytest.raises(DataError, match="cannot be read"):
        Npz(str(path)).load()
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(4, int))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="cannot be read"):
        Npz(str(path)).load()
    path.write_bytes(b"PK damaged")
    with pytest.raises(DataError, match="cannot be read"):
        Npz(str(path)).load()
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="holds a single array"):
        Npz(str(path)).load()


# -- heart disease and activities ------------------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    row = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,{}"
    gap = "63.0,1.0,4.0,?,233.0,1.0,2.0,150.0,0.0,2.3,?,?,?,1"
    for at, site in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        lines = [row.format(0), row.format(at), gap, row.format(0).replace("3.0,0.0,6.0", "?,?,?")]
        (tmp_path / f"processed.{site}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_hospitals_are_clients_and_rows_with_gaps_are_left_out(hospitals):
    pool = Heart(path=str(hospitals)).load()
    assert pool.x.shape == (12, 13)
    assert pool.y.tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert pool.x[0].tolist() == pytest.approx(
        [1, 1, 13 / 19, 13 / 90, 1, 12 / 26, 0, 1.4 / 1.1, 0, 0, 1, 0, 1], abs=1e-5
    )


def test_other_files_than_the_processed_ones_are_refused(hospitals):
    (hospitals / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match="must have 14 columns"):
        Heart(path=str(hospitals)).load()
    (hospitals / "processed.va.data").write_text("age,sex\n")
    with pytest.raises(DataError, match="cannot be read"):
        Heart(path=str(hospitals)).load()


@pytest.fixture
def phone(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for part, size in (("train", 4), ("test", 2)):
        folder = tmp_path / "UCI HAR Dataset" / part
        (folder / "Inertial Signals").mkdir(parents=True)
        for kind in ("body_acc", "body_gyro", "total_acc"):
            for axis in "xyz":
                np.savetxt(folder / "Inertial Signals" / f"{kind}_{axis}_{part}.txt", rng.normal(size=(size, 128)))
        np.savetxt(folder / f"X_{part}.txt", rng.normal(size=(size, 561)))
        np.savetxt(folder / f"y_{part}.txt", 1 + np.arange(size) % 6, "%d")
        np.savetxt(folder / f"subject_{part}.txt", np.full(size, 7 if part == "train" else 9), "%d")
    return tmp_path


def test_subjects_are_clients(phone):
    pool = Har(path=str(phone)).load()
    assert pool.x.shape == (6, 9, 128)
    assert (pool.y.tolist(), pool.groups.tolist()) == ([0, 1, 2, 3, 0, 1], [7, 7, 7, 7, 9, 9])
    signal = np.loadtxt(phone / "UCI HAR Dataset" / "test" / "Inertial Signals" / "total_acc_z_test.txt")
    assert torch.allclose(pool.x[4, 8], torch.from_numpy(signal[0]).float())
    assert Har(path=str(phone), features="engineered").load().x.shape == (6, 561)


def test_the_compact_file_of_activities_and_what_can_be_wrong_with_it(tmp_path):
    whole = {"X": np.zeros((2, 64, 9), np.float16), "activity": [0, 5], "subject": [1, 2]}
    path = tmp_path / "uci_har_raw_blocks.npz"
    np.savez(path, **whole)
    assert (Har(path=str(tmp_path)).load().name, Har(path=str(tmp_path)).load().input_shape) == ("har-blocks", (9, 64))
    for change, message in (
        ({"X": np.zeros((2, 64), np.float16)}, "X must be numbers in 3 dimensions"),
        ({"activity": [0, 6]}, "has the label 6"),
        ({"subject": [1]}, "2 windows, 2 labels and 1 subjects"),
    ):
        np.savez(path, **(whole | change))
        with pytest.raises(DataError, match=message):
            Har(path=str(tmp_path)).load()


def test_a_missing_or_mislabelled_file_is_refused(phone):
    train = phone / "UCI HAR Dataset" / "train"
    np.savetxt(train / "y_train.txt", [1, 2, 3, 7], "%d")
    with pytest.raises(DataError, match="has the label 7, but labels go from 1 to 6"):
        Har(path=str(phone)).load()
    np.savetxt(train / "y_train.txt", [1, 2, 3], "%d")
    with pytest.raises(DataError, match="6 windows, 5 labels and 6 subjects"):
        Har(path=str(phone)).load()
    (train / "y_train.txt").unlink()
    with pytest.raises(DataError, match=r"y_train\.txt cannot be read"):
        Har(path=str(phone)).load()
