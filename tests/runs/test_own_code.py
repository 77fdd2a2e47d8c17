"""Own data, networks, losses, metrics and partitions: as objects in Python, and by name in a file."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import DataError, InputError, ModelError, RunFolderError
from idiolect.data import load
from idiolect.methods.ditto import Ditto
from idiolect.models import build

CODE = """
import torch
from torch import nn

def site(offset, samples):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(offset)) + offset
    return x, (x[:, 0] > offset).long()

def wards(sites: int = 3, samples=20):
    return {f"ward-{i}": site(i, samples) for i in range(sites)}

def pool(samples: int = 60):
    return site(0, samples)

def federation():
    from idiolect import Federation
    return Federation.from_clients(wards(), name="wards")

def by_name():
    return "digits"

def nothing():
    return 3

class Net(nn.Module):
    def __init__(self, input_shape, outputs, hidden: int = 3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)

built = nn.Linear(4, 2)

def no_net():
    return "net"

def focal(outputs, y, gamma=1.0):
    loss = nn.functional.cross_entropy(outputs, y, reduction="none")
    return (1 - torch.exp(-loss)) ** gamma * loss

def recall(outputs, y):
    return ((outputs.argmax(1) == 1) & (y == 1)).sum() / (y == 1).sum()

def broken(outputs, y):
    return outputs.no_such_thing()

def in_turn(labels, samples, clients, rng, groups, first: int = 0):
    assert (len(labels), groups) == (samples, None)
    order = rng.permutation(samples)
    return [order[(first + at) % clients :: clients] for at in range(clients)]

def overlapping(samples, clients):
    return [range(samples)] * clients
"""
QUICK = {"rounds": 1, "engine": "loop"}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A file of one's own, in the folder where the run is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "mine.py"


class Small(nn.Module):
    """A network whose parameters say what they need of the data."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int, hidden: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*input_shape, hidden), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)


CLIENTS = {name: (torch.randn(15, 4), torch.arange(15) % 3) for name in ("north", "south")}


def test_a_function_gives_data_in_any_form_that_load_takes(code):
    assert [client.name for client in load("mine.py:wards(sites=2)").clients] == ["ward-0", "ward-1"]
    assert repr(load("mine.py:wards")) == "Federation('mine.py:wards', 3 clients, 2 classes, given)"
    assert (
        repr(load("mine.py:pool", partition="iid", clients=4))
        == "Federation('mine.py:pool', 4 clients, 2 classes, iid)"
    )
    assert load("mine.py:federation").name == "wards"
    assert load("mine.py:by_name", clients=3).name == "digits"
    assert load("mine.py:wards", public="mine.py:pool(samples=5)").public[0].shape == (5, 4)
    with pytest.raises(DataError, match=r"mine\.py:nothing: a int is no data; give"):
        load("mine.py:nothing")


def test_a_function_deals_samples(code):
    dealt = load("mine.py:pool", partition="mine.py:in_turn(first=1)", clients=3, seed=5)
    assert dealt.partition == "mine.py:in_turn(first=1)"
    assert [len(client.indices) for client in dealt.clients] == [20, 20, 20]
    assert (
        dealt.partition_hash == load("mine.py:pool", partition="mine.py:in_turn(1)", clients=3, seed=5).partition_hash
    )
    with pytest.raises(DataError, match="gives a sample to two clients"):
        load("mine.py:pool", partition="mine.py:overlapping", clients=3)


def test_everything_of_a_file_in_one_run_which_is_resumed_and_read(code):
    result = idiolect.run(
        "fedavg",
        "mine.py:wards",
        model="mine.py:Net(hidden=2)",
        loss="mine.py:focal(gamma=2)",
        metrics="mine.py:recall, accuracy",
        out="a",
        **QUICK,
    )
    assert result.summary["metric"] == "recall"
    assert {"recall", "accuracy", "loss"} <= set(result.metrics["metric"])
    again = idiolect.load("a")  # known, since it was used here
    x = torch.randn(2, 4)
    assert torch.equal(again.model("ward-1")(x), result.model("ward-1")(x))
    assert idiolect.resume("a").summary["recall"] == result.summary["recall"]


def test_a_changed_file_is_another_run(code):
    idiolect.run("fedavg", "mine.py:wards", model="mine.py:Net", out="a", **QUICK)
    code.write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    again = idiolect.load("a", trust=True)
    assert again.summary["rounds_done"] == 1, "scores are read whatever the code is now"
    with pytest.raises(InputError, match=r"the code of the network .* is another one than when the model was saved"):
        again.model(0)
    with pytest.raises(InputError, match="the code of the model has changed"):
        idiolect.resume("a", trust=True)


def test_a_class_or_function_as_model_has_other_weights_for_every_seed():
    data = load(CLIENTS)
    for model in (Small, partial(Small, hidden=3), lambda outputs: nn.Linear(4, outputs)):
        first, same, other = (build(model, data, seed=seed).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in first)
    board = idiolect.compare("local, fedavg", CLIENTS, model=Small, seeds=2, **QUICK)
    weights = {(run["seed"], run["summary"]["identity"]["weights"]) for run in board.runs}
    assert len(weights) == len({weight for _, weight in weights}) == 2


def test_several_networks_may_be_classes_and_names():
    result = idiolect.run("local", CLIENTS, models=[Small, "linear"], model_of=[0, 1], **QUICK)
    assert [len(network) for network in result.plan.tasks[0].initial.values()] == [4, 0]
    assert [type(task.module).__name__ for task in result.plan.tasks] == ["Small", "Sequential"]


def test_what_is_no_network_is_refused(code):
    data = load("mine.py:wards")
    for model, message in (
        ("mine.py:built", "is built already; name its class"),
        ("mine.py:no_net", "gives a str; it must give a network"),
        ("mine.py:Net(hiden=2)", "Did you mean hidden"),
        (lambda width: None, "needs the option 'width'"),
    ):
        with pytest.raises(InputError, match=message):
            build(model, data)


def test_own_and_built_in_metrics_are_mixed(code):
    def hits(outputs, y):
        return (outputs.argmax(1) == y).sum()

    for metrics, names in (
        (["accuracy", hits], ["accuracy", "hits"]),
        ({"mine": hits, "accuracy": "accuracy"}, ["mine", "accuracy"]),
        (["mine.py:recall", "auc", partial(hits)], ["recall", "auc", "hits"]),
    ):
        result = idiolect.run("fedavg", "mine.py:wards", model="linear", metrics=metrics, **QUICK)
        assert list(result.plan.tasks[0].metrics) == names
    assert idiolect.run("fedavg", CLIENTS, model="linear", metrics=["accuracy"], **QUICK).config.metrics == "accuracy"
    for metrics, message in (
        ([hits, hits], "two metrics are called 'hits'"),
        ({"mine": 3}, "the metric 'mine' is a int"),
    ):
        with pytest.raises(InputError, match=message):
            idiolect.run("fedavg", CLIENTS, model="linear", metrics=metrics, **QUICK)


def test_errors_in_a_users_code_name_file_and_line(code):
    line = CODE.splitlines().index("    return outputs.no_such_thing()") + 1
    where = rf"mine\.py, line {line}: AttributeError: 'Tensor' object has no attribute 'no_such_thing'"
    for setting in ("loss", "metrics"):
        with pytest.raises(ModelError, match=where):
            idiolect.run("fedavg", "mine.py:wards", model="linear", **{setting: "mine.py:broken"}, **QUICK)


def test_a_run_with_own_objects_is_read_without_them(tmp_path):
    idiolect.run("fedavg", CLIENTS, model=Small, out=tmp_path / "a", **QUICK)
    record = idiolect.read(tmp_path / "a")
    assert (record.clients, record.unseen) == (("north", "south"), ())
    assert record.networks[0]["layers.0.weight"] == [2, 4]
    assert (record.config["model"], set(record.code)) == (
        "(given in Python)",
        {"method", "model", "loss", "metrics", "schedule"},
    )
    tests = record.metrics.filter(split="test", metric="accuracy")
    assert tests.select("client", "name").rows() == [(0, "north"), (1, "south")]
    again = idiolect.load(tmp_path / "a")
    assert again.summary["accuracy"] == record.summary["accuracy"]
    with pytest.raises(
        InputError, match=r"names the code in .*; give it: .*model=.*, or allow its code with trust=True"
    ):
        again.model("north")
    assert again.clients() == idiolect.load(tmp_path / "a", model=Small).clients()
    with pytest.raises(RunFolderError, match=r"own data, model; .*; idiolect\.load\(.*\) opens its scores .* without"):
        idiolect.resume(tmp_path / "a")
    with pytest.raises(RunFolderError, match="holds no run"):
        idiolect.read(tmp_path)


@dataclass(frozen=True)
class Still(Ditto):
    """A method that derives from another one, and is not registered."""

    def pull(self, ctx, work, batch):
        return work


def test_a_method_of_ones_own_given_in_python_goes_by_its_own_name_and_not_by_its_parents(tmp_path):
    data = [(torch.randn(12, 2), torch.arange(12) % 2)] * 2
    common = {"model": nn.Linear(2, 2), "rounds": 1, "engine": "loop"}
    board = idiolect.compare([Still(), "ditto", "finetune(ditto)"], data, seeds=1, out=tmp_path / "c", **common)
    assert {run["method"] for run in board.runs} == {"Still", "ditto", "finetune(ditto)"}
    idiolect.run(Still(lam=0.5), data, out=tmp_path / "run", **common)
    with pytest.raises(
        RunFolderError, match=r"holds a run of Still\(lam=0.5\), which .* idiolect.load\(.*method=...\)"
    ):
        idiolect.load(tmp_path / "run")
    assert idiolect.load(tmp_path / "run", method=Still(lam=0.5)).summary["method"] == "Still(lam=0.5)"
    assert idiolect.resume(tmp_path / "run", method=Still(lam=0.5), data=data, model=common["model"]).complete
