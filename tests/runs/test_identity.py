"""A run is what it was started with: whatever opens it with something else is told what differs."""

import inspect

import pytest
import torch
import yaml
from torch import nn

import idiolect
from idiolect import Federation, compare, load, resume, run
from idiolect.core.errors import InputError, RunFolderError, UnknownNameError, UntrustedCodeError

DRAW = torch.Generator().manual_seed(0)
SITES = {f"s{site}": (torch.randn(20, 6, generator=DRAW), torch.arange(20) % 3) for site in range(4)}
X = torch.randn(5, 6, generator=DRAW)
METHOD = """
from dataclasses import dataclass
from idiolect import Method

@dataclass(frozen=True)
class Mine(Method):
    def finish(self, ctx, work):
        return {**work, "params": {name: leaf * SCALE for name, leaf in work["params"].items()}}

SCALE = 1.0
"""


class Gru(nn.Module):
    """A network with other parameters under the same output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.gru(x)[0])


def reverse(data):
    return dict(reversed(data.items()))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.fixture
def own(tmp_path, network):
    """A run with own data and an own network."""
    return run("fedper", SITES, model=network, rounds=3, lr=0.3, out=tmp_path / "r")


@pytest.mark.parametrize("as_federation", [False, True])
def test_clients_in_another_order_are_told_apart_by_name(tmp_path, network, as_federation):
    data, other = SITES, reverse(SITES)
    if as_federation:
        data = Federation.from_clients(SITES, unseen=0.25)
        other = Federation(
            data.clients[::-1], "custom", 3, "given", data.partition_hash, unseen={3 - i for i in data.unseen}
        )
    result = run("fedper", data, model=network, rounds=2, lr=0.3, out=tmp_path / "r")
    again = load(tmp_path / "r", data=other, model=network)
    assert again.clients() == list(SITES)
    assert all(torch.equal(again.model(name)(X), result.model(name)(X)) for name in SITES)
    assert resume(tmp_path / "r", data=other, model=network).complete


def test_other_clients_and_other_data_are_refused(own, network):
    others = {**SITES, "s1": (SITES["s1"][0] + 1, SITES["s1"][1])}
    for opened in (load, resume):
        with pytest.raises(RunFolderError, match=r"data: \w+ there, \w+ now"):
            opened(own.folder, data=others, model=network)
        with pytest.raises(RunFolderError, match="clients: s0 there, but not now, t0 now, but not there"):
            opened(own.folder, data={name.replace("s0", "t0"): site for name, site in SITES.items()}, model=network)


def test_a_name_in_place_of_an_own_object_is_refused(own, network):
    with pytest.raises(RunFolderError, match="own model, and 'mlp' is only a name; give the same object again"):
        load(own.folder, data=SITES, model="mlp")
    with pytest.raises(RunFolderError, match="own data, and 'digits' is only a name"):
        resume(own.folder, data="digits", model=network)


def test_another_network_is_refused_by_what_differs(own):
    with pytest.raises(RunFolderError, match=r"parameters: 0\.weight, 0\.bias, 2\.weight and 1 more there, .*gru\.w"):
        load(own.folder, data=SITES, model=Gru())
    wide = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(RunFolderError, match=r"shapes: 0\.weight \[4, 6\] there, \[5, 6\] now"):
        load(own.folder, data=SITES, model=wide)
    same_shapes = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(RunFolderError, match="the code of the model has changed"):
        load(own.folder, data=SITES, model=same_shapes)


@pytest.mark.parametrize(("name", "value"), [("lr", 0.5), ("method", "ditto"), ("batch_size", 3), ("rounds", 9)])
def test_an_edited_configuration_is_refused_with_both_values(tmp_path, name, value):
    run("fedavg", "digits", clients=3, rounds=2, model="linear", out=tmp_path / "r")
    path = tmp_path / "r" / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(settings | {"cache_mb": 1}))
    assert resume(tmp_path / "r").complete, "a setting that changes no result may differ"
    path.write_text(yaml.safe_dump(settings | {name: value}))
    for opened in (load, resume):
        with pytest.raises(RunFolderError, match=f"{name}: {settings[name]} there, {value} now"):
            opened(tmp_path / "r")


def test_a_model_of_a_round_is_that_rounds_or_an_error():
    result = run("fedavg", "digits", clients=4, rounds=6, schedule=lambda round, rounds: 1.0 if round < 3 else -1.0)
    selected = result.summary["accuracy"]["selected"]["round"]
    assert selected < 5
    models = {at: result.model(0, round=at).state_dict() for at in (None, selected, 6, -1)}
    name = next(iter(models[6]))
    assert torch.equal(models[None][name], models[selected][name])
    assert torch.equal(models[6][name], models[-1][name])
    assert not torch.equal(models[6][name], models[selected][name])
    for at in (0, 5, 7):
        with pytest.raises(
            InputError, match=f"round {at} is not kept.* {selected}, which was selected, and 6, the last"
        ):
            result.model(0, round=at)


PUBLIC = {
    "run": lambda **more: run("fedavg", SITES, **more),
    "compare": lambda **more: compare("fedavg", SITES, **more),
    "tune": lambda **more: idiolect.tune("fedavg", SITES, **more),
    "compare_tuned": lambda **more: idiolect.compare_tuned("fedavg", SITES, **more),
    "advise": lambda **more: idiolect.advise(SITES, **more),
    "resume": lambda **more: resume("nowhere", **more),
    "load": lambda **more: load("nowhere", **more),
    "load_model": lambda **more: idiolect.load_model("nowhere", nn.Linear(1, 1), **more),
    "resume_comparison": lambda **more: idiolect.comparison.resume_comparison("nowhere", **more),
    "data.load": lambda **more: idiolect.data.load("digits", **more),
    "from_clients": lambda **more: Federation.from_clients(SITES, **more),
    "write_report": lambda **more: idiolect.report.write_report(["nowhere"], **more),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_unknown_arguments_are_refused(name):
    with pytest.raises((UnknownNameError, TypeError), match="banana"):
        PUBLIC[name](banana=6)


@pytest.mark.parametrize("opened", [load, resume])
def test_settings_cannot_be_given_to_a_run_that_is_there(own, opened):
    with pytest.raises(UnknownNameError, match="'lr' cannot be given for a run that is there already"):
        opened(own.folder, data=SITES, lr=0.6)


@pytest.mark.parametrize("call", [idiolect.tune, compare, idiolect.compare_tuned])
def test_one_method_cannot_be_given_where_several_take_part(call):
    with pytest.raises(InputError, match=r"several methods; give methods=\.\.\."):
        call("fedavg", SITES, method="ditto")


@pytest.mark.parametrize(
    "setting", [{"unseen": 0.5}, {"split": [0.8, 0.1, 0.1]}, {"clients": 2}, {"partition": "iid"}, {"public": (X, X)}]
)
def test_settings_beside_a_federation_are_refused(tmp_path, network, setting):
    data = Federation.from_clients(SITES)
    with pytest.raises(InputError, match=f"{next(iter(setting))} cannot be given beside a Federation"):
        run("fedavg", data, model=network, out=tmp_path / "r", **setting)
    assert not (tmp_path / "r").exists()


def test_what_is_recorded_of_a_federation_is_what_it_has(tmp_path, network):
    data = Federation.from_clients(SITES, unseen=0.25)
    config = run("fedavg", data, model=network, rounds=1, out=tmp_path / "r").config
    assert (config.partition, config.clients, config.unseen) == ("given", 4, 0.25)
    assert resume(tmp_path / "r", data=data, model=network).complete
    with pytest.raises(RunFolderError, match=r"unseen: 0\.25 there, 0\.0 now"):
        resume(tmp_path / "r", data=Federation.from_clients(SITES), model=network)


def test_an_edited_method_is_refused_and_can_be_run_anew(tmp_path, call):
    path, folder = tmp_path / "mine.py", tmp_path / "x"
    path.write_text(METHOD)
    settings = {"clients": 3, "rounds": 1, "model": "linear", "out": folder}
    methods = ["fedavg", f"{path}:Mine"]
    before = compare(methods, seeds=1, **settings)
    path.write_text(METHOD + "\n# a comment changes nothing\n")
    compare(methods, seeds=1, **settings)
    path.write_text(METHOD.replace("SCALE = 1.0", "SCALE = -1.0"))
    untouched = (folder / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns
    with pytest.raises(
        RunFolderError, match=r"the code of the method has changed\); run it anew with --rerun '.*Mine'"
    ):
        compare(methods, seeds=2, **settings)
    (run_folder,) = (place.parent for place in folder.glob("*Mine*/*/config.yaml"))
    with pytest.raises(UntrustedCodeError, match="which no run on this machine has used"):
        resume(run_folder)
    with pytest.raises(RunFolderError, match="the code of the method has changed"):
        resume(run_folder, trust=True)
    code, _, err = call("compare", folder / "comparison.yaml", "--out", folder, "--rerun", f"{path}:Mine", "-q")
    assert code == 0, err
    after = compare(methods, seeds=1, **settings)
    assert before[f"{path}:Mine"].scores != after[f"{path}:Mine"].scores
    assert (folder / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns == untouched
    with pytest.raises(InputError, match="rerun: ditto is not among the methods"):
        compare(methods, seeds=1, rerun=["ditto"], **settings)


def smooth(amount):
    return nn.CrossEntropyLoss(label_smoothing=amount)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("loss", smooth(0.1), smooth(0.2)),
        ("metrics", {"m": lambda o, y: 1.0}, {"m": lambda o, y: 2.0}),
        ("schedule", lambda round, rounds: 1.0, lambda round, rounds: 0.5),
    ],
)
def test_other_own_objects_are_refused_by_name(tmp_path, network, name, first, second):
    settings = {"model": network, "rounds": 1, "out": tmp_path / "x", "seeds": 1}
    compare("fedavg", SITES, **settings, **{name: first})
    compare("fedavg", SITES, **settings, **{name: first})
    with pytest.raises(RunFolderError, match=f"the code of the {name} has changed"):
        compare("fedavg", SITES, **settings, **{name: second})
    assert compare("fedavg", SITES, **settings, **{name: second}, rerun="all").rows


def test_results_of_another_library_are_read_but_not_continued(tmp_path, monkeypatch):
    run("fedavg", "digits", clients=3, rounds=1, model="linear", out=tmp_path / "r")
    numerics = idiolect.__numerics__
    monkeypatch.setattr(idiolect, "__numerics__", 0)
    assert load(tmp_path / "r").complete
    with pytest.raises(RunFolderError, match=f"numerics: {numerics} there, 0 now"):
        resume(tmp_path / "r")


def test_the_signatures_that_take_anything_are_those_that_are_tested():
    anything = {
        name
        for name in idiolect.__all__
        if inspect.isfunction(value := getattr(idiolect, name))
        and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(value).parameters.values())
    }
    assert anything - {"option"} <= set(PUBLIC)
