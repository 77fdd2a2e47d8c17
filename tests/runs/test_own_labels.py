"""Clients whose labels are their own: named per client, with heads of different size that stay where they are."""

import json

import polars as pl
import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.report import partition_text
from idiolect.runs.export import export, personal_of

NAMES = {"north": ["cat", "dog"], "south 10": ["oak", "ash", "elm"], "south 9": ["dog", "owl"]}


def sites():
    draw = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(24, 4, generator=draw), [kinds[at % len(kinds)] for at in range(24)])
        for name, kinds in NAMES.items()
    }


class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, outputs)

    def forward(self, x):
        return self.head(self.body(x).relu())


@pytest.fixture(scope="module")
def own():
    return load(sites(), labels="own")


def test_labels_are_numbered_by_each_client_itself(own):
    assert own.classes == 3
    assert own.own_labels == {"north": ["cat", "dog"], "south 10": ["ash", "elm", "oak"], "south 9": ["dog", "owl"]}
    assert [int(client.y.max()) for client in own.clients] == [1, 2, 1]
    assert own.class_names == ("ash", "cat", "dog", "elm", "oak", "owl")
    assert own.label_counts().tolist()[1] == [8, 0, 0, 8, 8, 0]
    assert "each client numbers its own: 0 ash, 1 cat, 2 dog" in partition_text(own)


def test_numbers_are_labels_as_they_come():
    own = load(
        [(torch.zeros(9, 1), torch.arange(9) % 3 * 5 + 1), (torch.zeros(9, 1), torch.arange(9) % 2 + 7)], labels="own"
    )
    assert own.own_labels == {"client-0": ["1", "6", "11"], "client-1": ["7", "8"]}


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize(
    ("method", "engine"), [("fedper", "loop"), ("fedper", "vector"), ("local", "vector"), ("finetune(fedrep)", "loop")]
)
def test_private_heads_have_the_size_of_the_own_label_set(method, engine, own, tmp_path):
    result = idiolect.run(method, own, model=Net, rounds=2, lr=0.1, engine=engine, out=tmp_path / "run")
    outputs = {name: result.model(name)(torch.zeros(1, 4)).shape[1] for name in NAMES}
    assert outputs == {"north": 2, "south 10": 3, "south 9": 2}
    assert result.summary["labels"] == own.own_labels
    card = export(personal_of(result, "south 10"), tmp_path / "model")[-1].read_text()
    assert "0 ash, 1 elm, 2 oak" in card
    assert json.loads((tmp_path / "model" / "names.json").read_text()) == {"classes": ["ash", "elm", "oak"]}
    assert idiolect.load(tmp_path / "run", data=own, model=Net).summary == result.summary


def test_the_body_is_shared_by_clients_of_all_label_sets(own):
    result = idiolect.run("fedper", own, model=Net, rounds=1, lr=0.1)
    bodies = [result.model(name).state_dict()["body.weight"] for name in NAMES]
    assert torch.equal(bodies[0], bodies[1])
    assert torch.equal(bodies[0], bodies[2])


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedprox", "lgfedavg", "pfedme"])
def test_methods_that_average_heads_are_refused_with_a_reason(method, own):
    with pytest.raises(InputError, match=r"averages the output layer .* each client has its own labels"):
        idiolect.run(method, own, model=Net, rounds=1)


@pytest.mark.parametrize("method", ["fedhkd", "fedpac", "gpfl", "fedcp", "fedmd"])
def test_methods_that_share_something_of_each_class_are_refused_even_where_all_have_as_many(method):
    two = load({name: (x, y) for name, (x, y) in sites().items() if name != "south 10"}, labels="own")
    with pytest.raises(InputError, match=r"labels|public"):
        idiolect.run(method, two, model=Net, rounds=1)


def test_advice_knows_that_the_clients_classes_differ(own):
    advice = idiolect.advise(own, model=Net, race=False)
    assert {finding.scale.name: finding.level for finding in advice.findings}["label skew"] == "strong"
    assert "fedper" in advice.sentence
    assert "averages the output layer" in "".join(advice.skipped.values())


def test_a_constant_per_client_is_scored_and_one_for_all_is_not(own):
    constants = idiolect.run("local", own, model=Net, rounds=1).summary["constants"]
    assert set(constants) == {"own"}


def test_the_classes_of_a_table_may_be_each_clients_own(own):
    kinds = [("ward 10", "cat"), ("ward 9", "oak"), ("ward 10", "dog"), ("ward 9", "ash"), ("ward 9", "elm")] * 4
    frame = pl.DataFrame({"ward": [w for w, _ in kinds], "kind": [k for _, k in kinds], "age": [1.0] * 20})
    data = load(frame, client="ward", target="kind", labels="own")
    assert data.own_labels == {"ward 9": ["ash", "elm", "oak"], "ward 10": ["cat", "dog"]}
    assert (data.classes, data.names.classes) == (3, ())
    assert idiolect.run("fedper", data, rounds=1).model("ward 10")(torch.zeros(1, 1)).shape == (1, 2)
    for wrong, problem in (({"target": "age"}, "holds numbers"), ({"public": 0.2}, "public data")):
        with pytest.raises(InputError, match=problem):
            load(frame, **{"client": "ward", "target": "kind", "labels": "own"} | wrong)


def test_comparisons_and_the_command_line_take_them(tmp_path):
    from idiolect.cli import main

    (tmp_path / "own.py").write_text(
        "import torch\nfrom torch import nn\nfrom idiolect.data import load\n"
        "def sites():\n"
        "    y = {'a': ['x', 'y'], 'b': ['u', 'v', 'w']}\n"
        "    return load({n: (torch.randn(12, 4), k * (12 // len(k))) for n, k in y.items()}, labels='own')\n"
    )
    setting = ["--data", f"{tmp_path}/own.py:sites", "--model", "mlp(hidden=[3])", "--rounds", "1"]
    compare = ["compare", "-m", "local, fedper", *setting, "--out", f"{tmp_path}/out"]
    for command in (compare, ["report", f"{tmp_path}/out", "--out", f"{tmp_path}/page.html"]):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 0
    assert "Classes: 0 u, 1 v, 2 w, 3 x, 4 y." in (tmp_path / "page.html").read_text()


def test_a_models_file_has_the_clients_own_classes_and_head(own, tmp_path):
    result = idiolect.run("fedper", own, model="mlp(hidden=[3])", rounds=1, engine="loop")
    for index, path in enumerate(result.save_models(tmp_path / "models")):
        card, x = idiolect.read_card(path), torch.randn(2, 4)
        assert card["names"]["classes"] == list(own.clients[index].labels)
        assert card["network"]["expression"] == "mlp(hidden=[3])"
        assert torch.equal(idiolect.load_model(path)(x), result.model(index)(x))
    with pytest.raises(InputError, match="cannot join: each client of the run has its own labels"):
        result.onboard(torch.randn(9, 4), torch.arange(9) % 2)
