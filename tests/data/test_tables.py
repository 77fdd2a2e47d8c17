"""Tables of any kind become clients: what columns are is said, never guessed in silence."""

import logging
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import idiolect
from idiolect.core.errors import DataError
from idiolect.data import load, table

ROWS = {
    "ward": ["ward 10", "ward 9", "ward 10", "ward 9"] * 5,
    "age": [40, 50, 60, 70] * 5,
    "smokes": [True, False, False, True] * 5,
    "day": list(range(20)),
    "died": ["no", "yes", "yes", "no"] * 5,
}


def nullable() -> pd.DataFrame:
    """The same as pandas holds what may have gaps, categories and dates."""
    frame = pd.DataFrame(ROWS)
    return frame.assign(
        age=pd.array(ROWS["age"], dtype="Int64"),
        ward=pd.Categorical(ROWS["ward"]),
        died=frame["died"].astype("category"),
    )


def write_folder(folder: Path, ending: str = ".csv") -> Path:
    """A file per ward."""
    folder.mkdir()
    for (ward,), part in pl.DataFrame(ROWS).group_by("ward"):
        part = part.drop("ward")
        part.write_parquet(folder / f"{ward}.parquet") if ending == ".parquet" else part.write_csv(
            folder / f"{ward}.csv"
        )
    return folder


def test_all_forms_of_one_table_give_the_same_clients(tmp_path):
    pl.DataFrame(ROWS).write_csv(tmp_path / "visits.csv")
    pl.DataFrame(ROWS).write_parquet(tmp_path / "visits.parquet")
    named = {"client": "ward", "target": "died"}
    forms = [
        load(pd.DataFrame(ROWS), **named),
        load(nullable(), **named),
        load(pl.DataFrame(ROWS), **named),
        load(pl.DataFrame(ROWS).lazy(), **named),
        load(tmp_path / "visits.csv", **named),
        load(tmp_path / "visits.parquet", **named),
        load(f"csv('{tmp_path / 'visits.csv'}', client=ward, target=died)"),
        load(f"parquet('{tmp_path / 'visits.parquet'}', client=ward, target=died)"),
        load(table(pl.DataFrame(ROWS), **named)),
    ]
    assert len({data.fingerprint for data in forms}) == 1
    assert [client.name for client in forms[0].clients] == ["ward 9", "ward 10"]
    assert forms[0].names.classes == ("no", "yes")
    assert forms[0].names.features == ("age", "smokes", "day")


def test_a_table_per_client_is_as_good_as_a_column(tmp_path):
    by_client = {ward: part.drop("ward") for (ward,), part in pl.DataFrame(ROWS).group_by("ward")}
    sources = [
        load(by_client, target="died"),
        load(write_folder(tmp_path / "csv"), target="died"),
        load(write_folder(tmp_path / "parquet", ".parquet"), target="died"),
        load(f"csv('{tmp_path / 'csv'}', target=died)"),
    ]
    assert {tuple(sorted(client.name for client in data.clients)) for data in sources} == {("ward 10", "ward 9")}
    assert len({frozenset(f"{c.name} {c.x[c.indices].sum()}" for c in data.clients) for data in sources}) == 1


def test_gaps_are_filled_with_the_mean_of_training_samples_and_an_input_says_so():
    frame = pl.DataFrame(ROWS | {"age": [None if at % 7 == 3 else float(at) for at in range(20)]})
    data = load(frame, client="ward", target="died", gaps="mean")
    assert data.names.features == ("age", "smokes", "day", "age missing")
    trained = torch.cat([client.split("train")[0] for client in data.clients])
    there = trained[:, 3] == 0
    everything = torch.cat([client.x[client.indices] for client in data.clients])
    filled = everything[everything[:, 3] == 1, 0]
    assert torch.allclose(filled, trained[there, 0].mean().expand(len(filled)))
    with pytest.raises(DataError, match=r"the column 'age' has 3 empty cells; fill them .* by gaps=mean"):
        load(frame, client="ward", target="died")


def test_federated_scaling_uses_the_training_samples_of_clients_that_train():
    data = load(pl.DataFrame(ROWS), client="ward", target="died", scale="federated", leave_out="smokes")
    trained = torch.cat([client.split("train")[0] for client in data.clients])
    assert torch.allclose(trained.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(trained.std(0, correction=0), torch.ones(2), atol=1e-6)
    frame = pl.DataFrame(
        {"c": [f"c{at // 10}" for at in range(50)], "x": [float(at) for at in range(50)], "y": [0, 1] * 25}
    )
    held = load(frame, client="c", target="y", scale="federated", unseen=0.4)
    trained = torch.cat([held.clients[at].split("train")[0] for at in held.seen])
    assert torch.allclose(trained.mean(0), torch.zeros(1), atol=1e-6)


def test_each_client_may_have_a_scale_of_its_own_and_yes_or_no_has_none():
    data = load(pl.DataFrame(ROWS), client="ward", target="died", scale="client")
    for client in data.clients:
        assert torch.allclose(client.split("train")[0][:, [0, 2]].mean(0), torch.zeros(2), atol=1e-5)
        assert set(client.x[client.indices, 1].tolist()) <= {0.0, 1.0}


def test_text_becomes_an_input_per_value_that_any_client_has():
    frame = pl.DataFrame(ROWS | {"kind": ["b", "a", "b", "c"] * 5, "other": [None, "x"] * 10})
    data = load(frame, client="ward", target="died", encode="onehot", gaps="mean", leave_out=["age", "smokes", "day"])
    assert data.names.features == ("kind=a", "kind=b", "kind=c", "other=missing", "other=x")
    assert data["ward 10"].x.shape == data["ward 9"].x.shape
    with pytest.raises(DataError, match=r"'kind' holds text such as 'b'; encode it .* by encode=onehot"):
        load(frame, client="ward", target="died")


def test_an_exported_model_says_how_its_inputs_were_prepared(tmp_path):
    import json

    from idiolect.runs.export import export, personal_of

    data = load(nullable(), client="ward", target="died", scale="client", leave_out="day")
    result = idiolect.run("local", data, rounds=1, model="linear", out=tmp_path / "run")
    export(personal_of(result, "ward 9"), tmp_path / "model")
    facts = json.loads((tmp_path / "model/preparation.json").read_text())
    rows = pd.DataFrame(ROWS).query("ward == 'ward 9'")
    made = (rows["age"].to_numpy() - facts["minus"]["age"]) / facts["over"]["age"]
    client = data["ward 9"]
    assert np.allclose(np.sort(made), client.x[client.indices, 0].sort().values.numpy(), atol=1e-6)
    assert "scale=client" in (tmp_path / "model/card.md").read_text()


def test_whole_numbers_are_what_the_user_says(caplog):
    frame = pl.DataFrame(ROWS | {"score": [at % 3 for at in range(20)]})
    named = {"client": "ward", "leave_out": ["died"]}
    assert load(frame, target="score", **named).classes == 3
    assert load(frame, target="score", predict="numbers", **named).classes is None
    assert load(frame.with_columns(pl.col("score").cast(pl.Float32)), target="score", **named).classes is None
    as_float = frame.with_columns(pl.col("score").cast(pl.Float32))
    assert load(as_float, target="score", predict="classes", **named).names.classes == ("0", "1", "2")
    many = pl.DataFrame({"ward": ["a", "b"] * 15, "x": [0.5] * 30, "day": list(range(30))})
    with pytest.raises(DataError, match=r"holds 30 different whole numbers in 30 rows.*say predict=numbers or"):
        load(many, client="ward", target="day")
    with caplog.at_level(logging.WARNING):
        tokens = {"a": (torch.arange(8).reshape(4, 2), [0, 1, 0, 1])}
        assert load(tokens).tokens
        assert not load(tokens, inputs="numbers").tokens
        assert load(tokens, inputs="tokens", predict="numbers").classes is None
    assert [record.message for record in caplog.records] == [
        "custom: the inputs are whole numbers up to 7, which are taken as tokens; inputs=numbers takes them as"
        " measurements,"
        " inputs=tokens says that tokens are meant"
    ]


def test_classes_that_nobody_has_are_said(caplog):
    load({"a": (torch.randn(4, 2), [1, 2, 1, 2]), "b": (torch.randn(2, 2), [1, 3])})
    assert "no client has a sample of class 0, of 4 classes: labels that start at 1" in caplog.text


def test_splits_follow_time_sessions_or_a_column():
    frame = pl.DataFrame(
        ROWS | {"night": [at // 3 for at in range(20)], "fold": ["train", "val", "Test", "training"] * 5}
    )
    named = {"client": "ward", "target": "died", "encode": "onehot"}
    late = load(frame, time="day", leave_out=["night", "fold"], **named)
    days = frame["day"].to_numpy()
    for client in late.clients:
        assert days[client.train].max() < days[client.val].min() <= days[client.val].max() < days[client.test].min()
    nights = frame["night"].to_numpy()
    together = load(frame, session="night", leave_out=["day", "fold"], **named)
    for client in together.clients:
        parts = [set(nights[index.numpy()]) for index in (client.train, client.val, client.test)]
        assert sum(map(len, parts)) == len(set().union(*parts))
    given = load(frame, fold="fold", leave_out=["day", "night"], **named)
    assert set(frame["fold"].to_numpy()[given["ward 10"].train.numpy()]) <= {"train", "training"}
    dates = frame.with_columns(day=pl.Series([date(2024, 1, 1 + at) for at in range(20)]))
    texts = dates.with_columns(pl.col("day").cast(pl.String))
    for other in (dates, texts):
        same = load(other, time="day", leave_out=["night", "fold"], **named)
        assert [client.test.tolist() for client in same.clients] == [client.test.tolist() for client in late.clients]


def test_arrays_in_a_file_may_say_their_splits(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.array(["no", "yes"] * 10)
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.arange(20) % 2, time=np.arange(20)[::-1])
    data = load(f"npz('{tmp_path / 'a.npz'}')")
    assert data.names.classes == ("no", "yes")
    assert all(client.train.min() > client.test.max() for client in data.clients)


def test_data_sets_of_hugging_face_keep_names_and_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "ward": datasets.Value("string"),
            "age": datasets.Value("int64"),
            "died": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    rows = {"ward": ROWS["ward"], "age": ROWS["age"], "died": [int(died == "yes") for died in ROWS["died"]]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    data = load(whole, client="ward", target="died")
    assert (data.names.classes, data.names.features) == (("no", "yes"), ("age",))
    split = datasets.DatasetDict({"train": whole, "test": whole.select(range(8))})
    assert [len(client.test) for client in load(split, client="ward", target="died").clients] == [4, 4]
    texts = datasets.Dataset.from_dict({"text": ["a b", "b c"] * 10, "label": [0, 1] * 10, "who": ["x", "y"] * 10})
    assert load(texts, client="who", length=4).tokens
