"""What is wrong with a cluster is one sentence, before anything runs or is written."""

import sys

import pytest
import torch

from idiolect import run
from idiolect.comparison.conditions import choose_engine
from idiolect.core.errors import InputError, MissingExtraError
from idiolect.engines import engines
from idiolect.engines.choice import find_candidates
from idiolect.engines.cluster.connection import compare_processors, connect, describe_node, find_address
from idiolect.engines.cluster.engine import groups_of_neighbours
from idiolect.engines.cluster.pool import explain_start
from idiolect.engines.cluster.tasks import OnRay, find_place
from idiolect.testing import play, tiny_plan


def test_a_missing_package_says_how_to_install_it(monkeypatch, call, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"a cluster needs the package ray: pip install idiolect\[cluster\]"):
        play(tiny_plan("fedavg"), engines.build("ray").make)
    with pytest.raises(MissingExtraError, match="a cluster needs the package ray"):
        run("fedavg", [(torch.ones(8, 2), torch.tensor([0, 1] * 4))] * 2, engine="ray", rounds=1, out=tmp_path / "r")
    code, _, err = call("compare", "-m", "local", "--on", "ray", "--rounds", 1, "--seeds", 1, "--clients", 3,
                        "--engine", "loop", "--out", tmp_path / "c")  # fmt: skip
    assert (code, err.count("\n")) == (2, 1), err
    assert "pip install idiolect[cluster]" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:1", r"there is no Ray cluster at 127.0.0.1:1 \(.*refused.*\); start one with `ray start --head`"),
        ("nowhere", "RAY_ADDRESS=nowhere is no address; write HOST:PORT"),
        ("ray://head:10001", "RAY_ADDRESS=ray://head:10001 is that of a Ray Client"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(address, problem):
    with pytest.raises(InputError, match=problem):
        connect(None, address)


def test_the_environment_chooses_the_cluster_unless_something_else_is_said(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert find_address() == ""
    assert find_place(None) is None
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert find_place("here") is None
    monkeypatch.setattr(OnRay, "check", lambda self: None)
    assert find_place(None) == OnRay()


def test_auto_stays_on_this_machine_without_an_address():
    plan = tiny_plan("fedavg")
    assert not any("ray" in text for text in find_candidates(plan))
    assert sum("ray" in text for text in find_candidates(plan, cluster="head:6379")) == 2


def test_runs_that_are_tasks_do_not_spread_over_the_cluster_as_well():
    with pytest.raises(InputError, match="engine=ray spreads one run over a cluster, where each run already is a task"):
        choose_engine("ray", tiny_plan("local"), place=OnRay())


def test_reasons_of_a_start_that_failed():
    missing = RuntimeError("boom\nModuleNotFoundError: No module named 'idiolect'\n")
    assert "install the same Idiolect, with the extra cluster, on every node" in explain_start(missing)
    assert "look at the node's memory" in explain_start(RuntimeError("killed"))


def test_other_processors_are_named():
    here = describe_node()
    other = here._replace(name="old", capability="DEFAULT")
    assert compare_processors([here], here) == ""
    assert "old (DEFAULT); results may differ by rounding" in compare_processors([other], here)


def test_groups_follow_each_other():
    groups = groups_of_neighbours([9, *range(7)])
    assert [index for group in groups for index in group] == [*range(7), 9]
    assert max(map(len, groups_of_neighbours(range(1000)))) == 8
