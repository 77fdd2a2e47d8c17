"""Cells that hold several values, several targets, and text as words."""

import polars as pl
import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import DataError
from idiolect.data import load

N = 20


def visits(**columns):
    rows = {
        "ward": ["ward 9", "ward 10"] * (N // 2),
        "age": [30.0 + at for at in range(N)],
        "ecg": [[0.1 * at, 0.2, 0.3] for at in range(N)],
        "died": ["no", "yes", "no", "no"] * (N // 4),
    }
    return pl.DataFrame({**rows, **columns})


COLUMNS = {"client": "ward", "target": "died"}


def test_lists_of_one_length_are_a_vector_of_inputs(tmp_path):
    data = load(visits(), **COLUMNS)
    assert data.names.features == ("age", "ecg[0]", "ecg[1]", "ecg[2]")
    visits().write_parquet(tmp_path / "visits.parquet")
    again = load(f"parquet('{tmp_path}/visits.parquet', client=ward, target=died)")
    assert (
        again.fingerprint
        == data.fingerprint
        == load(visits(ecg=visits()["ecg"].cast(pl.Array(pl.Float64, 3))), **COLUMNS).fingerprint
    )
    assert load(visits(), **COLUMNS, scale="federated").names.features == data.names.features


def test_lists_of_different_length_are_sequences_beside_the_other_columns():
    beats = [[1.0] * (1 + at % 3) for at in range(N)]

    class Net(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.tell = nn.Linear(5, outputs)

        def forward(self, columns, ecg, ecg_mask):
            assert bool((ecg * ~ecg_mask == 0).all())
            return self.tell(torch.cat([columns, ecg.sum(1, keepdim=True)], 1))

    frame = visits(ecg=beats, height=[1.0] * N, weight=[2.0] * N, pulse=[3.0] * N)
    data = load(frame, **COLUMNS)
    assert str(data.layout) == "columns [4] float32, ecg [up to 3] float32"
    assert idiolect.run("fedavg", data, model=Net, rounds=1).summary["rounds_done"] == 1
    alone = load(frame.select("ward", "ecg", "died"), **COLUMNS)
    assert str(alone.layout) == "sequence [up to 3] float32"


def test_lists_that_cannot_be_inputs_are_refused():
    for lists, problem in (
        ([[1.0]] * (N - 1) + [[]], "has 1 lists that are empty or have gaps"),
        ([["a"]] * N, r"holds List\(String\), not numbers or lists of numbers"),
        ([[1.0, None]] * N, "has 20 lists that are empty or have gaps"),
    ):
        with pytest.raises(DataError, match=problem):
            load(visits(ecg=lists), **COLUMNS)
    beats = visits(ecg=[[1.0] * (1 + at % 2) for at in range(N)]).drop("age")
    with pytest.raises(DataError, match=r"has no columns to scale or fill beside the sequences \(ecg\)"):
        load(beats, **COLUMNS, scale="client")


def test_columns_beside_sequences_are_scaled_and_filled_as_they_are_alone():
    beats = [[0.5] * (1 + at % 3) for at in range(N)]
    ages = [None if at == 4 else 1e6 + at for at in range(N)]
    both = load(visits(ecg=beats, age=ages), **COLUMNS, scale="federated", gaps="mean")
    alone = load(visits(age=ages).drop("ecg"), **COLUMNS, scale="federated", gaps="mean")
    assert str(both.layout) == "columns [2] float32, ecg [up to 3] float32"
    assert both.names.features == alone.names.features == ("age", "age missing")
    for client in both.clients:
        x, _ = client.split("train")
        assert torch.equal(both.layout.unpack(x)["columns"], alone[client.name].split("train")[0])
        assert both.layout.unpack(x)["ecg"].values.sum(1).tolist() == [0.5 * length for length in x[:, 2].tolist()]
    public = load(visits(ecg=beats, age=ages), **COLUMNS, scale="federated", gaps="mean", public=0.2).public
    assert public is not None
    assert public[0].shape[1] == both.clients[0].x.shape[1]


def test_several_targets_are_numbers_with_names(tmp_path):
    frame = visits(height=[1.0] * N, weight=list(range(N))).drop("ecg", "died")
    data = load(frame, client="ward", target=["height", "weight"])
    assert (data.classes, data.outputs, data.names.targets) == (None, 2, ("height", "weight"))
    assert data.names.features == ("age",)
    frame.write_csv(tmp_path / "visits.csv")
    result = idiolect.run("fedavg", f"csv('{tmp_path}/visits.csv', client=ward, target=[height, weight])", rounds=1)
    assert result.summary["names"]["targets"] == ["height", "weight"]
    with pytest.raises(DataError, match="several targets are predicted as numbers, but 'died' holds classes"):
        load(visits(), client="ward", target=["age", "died"])


def test_words_are_those_of_training_samples_and_keep_their_names():
    notes = [f"Better, day{at}" if at % 2 else "worse" for at in range(N)]
    frame = visits(note=notes, day=list(range(N))).drop("ecg", "age")
    data = load(frame, **COLUMNS, encode="words", time="day")
    assert data.names.words[:2] == ("", "(unknown)")
    train, test = (data["ward 10"].split(which)[0] for which in ("train", "test"))
    assert {data.names.words[word] for word in train[:, 1:].flatten().tolist()} >= {"better", "day1"}
    assert "day19" not in data.names.words, "which only a test sample has"
    assert [data.names.words[word] for word in test[-1, 1:].tolist()] == ["better", ",", "(unknown)"]
    assert data.vocabulary == len(data.names.words)
    public = load(frame, **COLUMNS, encode="words", public=0.5).public
    assert public is not None
    assert int(public[0][:, 1:].max()) < 11, "words that only public samples have are unknown"


def test_lists_of_a_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    for length, shown in ((2, "x [2]"), (3, "sequence")):
        beats = [[1.0] * (2 + at % (length - 1)) for at in range(N)]
        frame = datasets.Dataset.from_dict({"ward": ["a", "b"] * 10, "ecg": beats, "died": ["no", "yes"] * 10})
        data = load(frame, **COLUMNS)
        assert str(data.layout or f"x {list(data.input_shape)}").startswith(shown)
        named = load(frame, x="ecg", y="died", client="ward")
        assert named.layout == data.layout


def test_a_newcomer_gives_columns_beside_sequences_as_the_table_has_them():
    class Net(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.tell = nn.Linear(3, outputs)

        def forward(self, columns, ecg):
            return self.tell(torch.cat([columns, ecg.mean(1, keepdim=True)], 1))

    beats, ages = [[0.5] * (1 + at % 3) for at in range(N)], [None, *(float(at) for at in range(1, N))]
    data = load(visits(ecg=beats, age=ages), **COLUMNS, scale="federated", gaps="mean")
    result = idiolect.run("fedavg", data, model=Net, rounds=1, engine="loop")
    new = result.onboard({"columns": [[40.0], [float("nan")]] * 3, "ecg": [torch.ones(2)] * 6}, ["no", "yes"] * 3)
    assert new.scores()["samples"].min() >= 1
    with pytest.raises(DataError, match=r"give a mapping with these names"):
        result.onboard([[40.0]] * 6, ["no", "yes"] * 3)
