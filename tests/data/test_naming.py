"""Names of clients, classes and features stay with the data, and sort as people sort."""

import json

import numpy as np
import polars as pl
import pytest
import torch

import idiolect
from idiolect import Federation
from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.report import partition_text

SITES = {
    "north": (torch.randn(10, 2), ["stage 2", "stage 10"] * 5),
    "south": {"train": (torch.randn(6, 2), np.array(["stage 1"] * 6)), "test": (torch.randn(4, 2), ["stage 2"] * 4)},
}


def test_labels_that_are_text_are_numbered_as_people_sort_them():
    data = load(SITES)
    assert data.names.classes == ("stage 1", "stage 2", "stage 10")
    assert data["north"].y.tolist() == [1, 2] * 5
    assert data["south"].split("test")[1].tolist() == [1] * 4
    assert load((torch.randn(4, 2), ["b", "a", "b", "a"]), partition="iid", clients=2).names.classes == ("a", "b")
    series = load({"a": (torch.randn(4, 2), pl.Series(["yes", "no", "no", "yes"]))})
    assert (series.names.classes, series["a"].y.tolist()) == (("no", "yes"), [1, 0, 0, 1])


def test_names_may_be_given():
    data = Federation.from_clients(SITES, class_names=["stage 1", "stage 2", "stage 3", "stage 10"])
    assert (data.classes, data["north"].y.tolist()) == (4, [1, 3] * 5)
    named = Federation.from_clients([(torch.randn(4, 2), [0, 1, 0, 1])], class_names=["no", "yes", "unknown"])
    assert (named.classes, named.names.classes[2]) == (3, "unknown")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": ["stage 1", "stage 2"]}, "has the label 'stage 10', which is not among stage 1, stage 2"),
        ({"feature_names": ["age"]}, r"1 names of features are given, but a sample has the shape \[2\]"),
    ],
)
def test_names_that_do_not_fit_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        Federation.from_clients(SITES, **options)


def test_text_beside_numbers_is_refused():
    with pytest.raises(DataError, match="client 'b' has labels that are no text, but other clients have"):
        load({"a": (torch.randn(2, 2), ["x", "y"]), "b": (torch.randn(2, 2), [0, 1])})


def test_an_unknown_client_is_said():
    with pytest.raises(DataError, match=r"no client is called 'noth'\. Did you mean north"):
        load(SITES)["noth"]


def test_groups_are_sorted_as_people_sort_them():
    groups = np.repeat(["site 10", "site 2", "Site 1"], 4)
    data = Federation.from_pool(torch.randn(12, 2), torch.arange(12) % 2, "group", groups=groups)
    assert [client.name for client in data.clients] == ["Site 1", "site 2", "site 10"]
    assert data["site 10"].indices.tolist() == [0, 1, 2, 3]


def test_a_table_names_classes_and_features_up_to_card_summary_and_picture(tmp_path):
    table = pl.DataFrame(
        {
            "ward": [f"ward {i % 3 + 9}" for i in range(60)],
            "age": [float(i) for i in range(60)],
            "pulse": [float(i % 7) for i in range(60)],
            "outcome": ["home", "died"] * 30,
        }
    )
    table.write_csv(tmp_path / "stays.csv")
    expression = f"csv({tmp_path}/stays.csv, client=ward, target=outcome)"
    result = idiolect.run("fedavg", expression, model="linear", rounds=1, engine="loop", out=tmp_path / "a")
    assert result.clients() == ["ward 9", "ward 10", "ward 11"]
    assert result.summary["names"] == {"classes": ["died", "home"], "features": ["age", "pulse"]}
    assert "classes: 0 died, 1 home" in partition_text(result.plan.data)
    paths = idiolect.runs.export.export(idiolect.runs.export.personal_of(result, "ward 10"), tmp_path / "model")
    assert [path.name for path in paths] == ["model.safetensors", "names.json", "card.md"]
    assert json.loads(paths[1].read_text()) == result.summary["names"]
    assert "- classes: 0 died, 1 home\n- features: 0 age, 1 pulse\n" in paths[2].read_text()
    assert set(result.metrics.filter(client=1)["name"]) == {"ward 10"}
