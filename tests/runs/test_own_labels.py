"""Clients whose labels are their own: named per client, with heads of different size that stay where they are."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract import methods
from idiolect.contract.parts.class_statistics import class_shares
from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.report import partition_text
from idiolect.runs.export import export, personal_of
from idiolect.runs.settings import configure
from idiolect.runs.setup import check_needs, make_plan
from idiolect.testing import play

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


ABLE = ["fedalt", "fedas", "fedbabu", "fedper", "fedrep", "fedsim", "gpfl", "local"]
WITH_OPTIONS = ["fedpac(private_head=true)", "pfedhn(layers=1)", "fedlag(fedper, k=1, warmup=0)", "flayer(fedper)"]


@pytest.mark.parametrize("method", [*ABLE, *WITH_OPTIONS])
def test_methods_with_private_heads_work_where_label_sets_differ_in_size(method, own):
    result = idiolect.run(method, own, model="mlp(hidden=[3])", rounds=2, lr=0.1)
    assert [result.model(name)(torch.zeros(1, 4)).shape[1] for name in NAMES] == [2, 3, 2]


@pytest.mark.parametrize("same_size", [False, True])
def test_all_others_are_refused_by_a_sentence_that_names_those_that_work(own, same_size):
    data = load({n: xy for n, xy in sites().items() if n != "south 10"}, labels="own") if same_size else own
    for method in methods:
        if method not in ABLE:
            with pytest.raises(InputError, match=r"each client has its own labels; use .* heads stay") as error:
                check_needs(make_plan(configure({"method": method, "model": "mlp(hidden=[3])"}), {"data": data}))
            assert f"({', '.join(ABLE)})" in str(error.value)


def test_the_documents_say_which_methods_work_and_which_do_not():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    table = page[page.index("| own label sets | methods |") :].partition("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", line) for line in table.splitlines()[2:]]
    assert rows[0] == ABLE
    assert sorted(name for row in rows[3:] for name in row) == sorted(
        set(methods) - set(ABLE) - {"fedlag", "finetune", "flayer"}
    )


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedavg", "fedavg averages the output layer"),
        ("finetune(ditto)", "finetune averages the output layer"),
        ("fedpac", "private_head=true leaves them"),
        ("fedhkd", "it averages whole models, and soft predictions among the same classes"),
        ("fedmd", "fedmd compares what all clients predict for public samples"),
        ("fedcp", "it works with the features of one network"),
        ("fedlag(fedhkd)", "it averages whole models"),
    ],
)
def test_the_reason_is_that_of_the_method(method, reason, own):
    with pytest.raises(InputError, match=reason):
        idiolect.run(method, own, model=Net, rounds=1)


def test_what_is_known_of_a_class_is_shared_by_its_name(own):
    """`dog` is class 1 of north and class 0 of south 9: the server knows one `dog`, of the training samples of both."""
    plan = make_plan(configure({"method": "fedpac(private_head=true)", "model": "mlp(hidden=[3])"}), {"data": own})
    count = play(plan).server["fedpac.prototypes"]["count"]
    assert plan.context(0, 0).class_numbers.tolist() == [1, 2, 0]  # filled up to as many as the largest has
    of_names = [own.named_labels(client, client.train).bincount(minlength=6) for client in own.clients]
    assert count.tolist() == torch.stack(of_names).sum(0).tolist()
    assert class_shares(plan.context(2, 0))[2] == of_names[2][2] / of_names[2].sum()


@pytest.mark.parametrize("method", ["fedpac(private_head=true)", "gpfl"])
def test_the_same_labels_called_each_clients_own_give_the_same_bits(method):
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)), ["cat", "dog"] * 20
    clients = {name: (x[at], [y[i] for i in at]) for name, at in {"a": range(24), "b": range(12, 40)}.items()}
    odd = {**clients, "c": (x[:12], ["cat"] * 12)}
    models = [
        idiolect.run(method, load(data, labels=labels, unseen=unseen), model="mlp(hidden=[3])", rounds=2, lr=0.1)
        for data, labels, unseen in ((clients, "shared", 0.0), (odd, "own", ["c"]))
    ]
    for name in clients:
        first, second = (result.model(name).state_dict() for result in models)
        assert all(torch.equal(leaf, second[key]) for key, leaf in first.items())


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
