"""Settings and the user's objects are told apart in one place, for every function that takes both."""

import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract.method import methods
from idiolect.core.errors import InputError, RunFolderError, UnknownNameError
from idiolect.runs.settings import OWN, configure
from idiolect.runs.setup import make_plan, separate

DATA = [(torch.rand(12, 4), torch.arange(12) % 2) for _ in range(2)]


def test_names_are_settings_and_everything_else_is_an_object():
    model, schedule = nn.Linear(4, 2), lambda round, rounds: 1.0
    config, objects = separate({"data": DATA, "model": model, "schedule": schedule, "loss": "cross_entropy", "lr": 0.5})
    assert objects == {"data": DATA, "model": model, "schedule": schedule}
    assert (config.data, config.model, config.schedule) == (OWN, OWN, OWN)
    assert (config.loss, config.lr) == ("cross_entropy", 0.5)


def test_what_is_not_given_is_neither(tmp_path):
    config, objects = separate({"model": None, "models": (), "public": 0.1, "initial": tmp_path / "w.safetensors"})
    assert objects == {}
    assert (config.model, config.public, config.initial) == (None, "0.1", str(tmp_path / "w.safetensors"))


def test_a_method_is_built_once(monkeypatch):
    built = []
    build = methods.build
    monkeypatch.setattr(methods, "build", lambda text: built.append(text) or build(text))
    config, objects = separate({"method": "ditto(lam=0.50)", "data": DATA})
    plan = make_plan(config, objects)
    assert [text for text in built if isinstance(text, str)] == ["ditto(lam=0.50)"]
    assert (config.method, plan.method.lam) == ("ditto(lam=0.5)", 0.5)


def test_an_unknown_engine_is_found_with_the_settings():
    with pytest.raises(UnknownNameError, match="no engine 'warp'"):
        configure({"engine": "warp"})


def test_data_must_be_given():
    with pytest.raises(InputError, match="data"):
        idiolect.run("fedavg", None)


def test_an_own_schedule_must_be_given_again_to_resume(tmp_path):
    schedule = lambda round, rounds: 0.5**round  # noqa: E731
    settings = {"clients": 3, "rounds": 2, "model": "linear", "schedule": schedule}
    idiolect.run("fedavg", out=tmp_path / "r", **settings)
    with pytest.raises(RunFolderError, match=r"own schedule; call it there again with schedule=\.\.\."):
        idiolect.resume(tmp_path / "r")
    assert idiolect.resume(tmp_path / "r", schedule=schedule).complete


NETS = [torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))]
THREE = {name: (torch.randn(12, 4), torch.arange(12) % 2) for name in ("Zürich", "ward 1/2", "3")}


def test_networks_are_given_by_client_name_or_in_order():
    by_name = {"3": 0, "Zürich": 1, "ward 1/2": 0}
    plans = [
        idiolect.run("local", THREE, models=NETS, model_of=chosen, rounds=1, engine="loop").plan
        for chosen in (by_name, [1, 0, 0])
    ]
    assert plans[0].networks == plans[1].networks == (1, 0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"model": NETS},
            "a class or function that builds one, or a name, not a list; several networks are given as models=",
        ),
        ({"models": NETS, "model_of": {"Zürich": 1}}, "model_of must name every client once, and no other"),
        ({"models": NETS, "model_of": [0, 1]}, "model_of has 2 entries for 3 clients"),
        ({"models": NETS, "model_of": [0, 1, 2]}, "model_of names the network 2; there are 2, 0 to 1"),
    ],
)
def test_networks_that_do_not_fit_the_clients_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        idiolect.run("local", THREE, rounds=1, **given)
