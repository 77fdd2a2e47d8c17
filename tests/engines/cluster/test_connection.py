"""What is wrong with a cluster is one sentence, before anything runs or is written."""

import sys
from types import SimpleNamespace

import pytest
import torch

from idiolect import run
from idiolect.comparison.conditions import choose_engine
from idiolect.core.errors import ClusterError, DataError, InputError, MissingExtraError
from idiolect.data import load
from idiolect.engines import engines
from idiolect.engines.choice import find_candidates
from idiolect.engines.cluster.connection import (
    compare_processors,
    connect,
    describe_node,
    find_address,
    keep_to_the_log,
)
from idiolect.engines.cluster.messages import Reply
from idiolect.engines.cluster.pool import ActorPool, explain_start
from idiolect.engines.cluster.shipping import ship
from idiolect.engines.cluster.task_actor import carry_out
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


def test_what_ray_says_of_a_node_that_died_does_not_mix_with_this_programs_output(monkeypatch, capsys):
    worker = SimpleNamespace(print_to_stdstream=lambda data, ignore_prefix: print(data["lines"]))
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    keep_to_the_log()
    worker.print_to_stdstream({"lines": ["Raylet is terminated", "[state-dump]"]}, ignore_prefix=True)
    assert capsys.readouterr().out == ""


def test_a_cluster_of_another_python_or_ray_is_named():
    class Other:
        @staticmethod
        def init(**_):
            raise RuntimeError(
                "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n"
                "This process on node 10.0.0.2 was started with:\n    Ray: 2.55.1\n    Python: 3.11.7\n"
            )

    with pytest.raises(
        InputError,
        match=r"^the cluster was started with Ray 2.60.0 and Python 3.12.1, but this is Ray 2.55.1 and Python 3.11.7;"
        r" start both from the same environment$",
    ):
        connect(Other, "auto")


class Answers:
    """Ray, whose answers are known."""

    class exceptions:
        RayError = RuntimeError

    @staticmethod
    def get(reference):
        if isinstance(reference, Exception):
            raise reference
        return reference


@pytest.fixture
def admit():
    """Lets a pool of actors hear how some of them started."""

    def hear(*answers):
        pool = object.__new__(ActorPool)
        pool.ray, pool.here, pool.logged, pool.members, pool.failures = Answers, describe_node(), set(), [], 0
        for answer in answers:
            pool.starting = {answer: None}
            pool.admit(answer)
        return pool

    return hear


def test_nodes_that_die_while_actors_start_are_no_failures_of_theirs(admit):
    gone = [RuntimeError(f"The actor died because its node has died. {number}") for number in range(5)]
    assert len(admit(*gone, Reply(describe_node())).members) == 1
    with pytest.raises(ClusterError, match="actors cannot start: killed"):
        admit(*(RuntimeError("killed") for _ in range(3)))
    with pytest.raises(ClusterError, match=r"too little memory.*cpus=2; the rounds before this one are saved"):
        admit(*(RuntimeError("the node running low on memory. 5.8GB / 23GB\nobject store: 0;") for _ in range(3)))


def test_another_installation_is_named_even_where_it_cannot_read_the_work(admit):
    other = describe_node()._replace(name="far", version="9.9")
    with pytest.raises(ClusterError, match=r"the node far has Idiolect 9.9, and this one has .*; install the same"):
        admit(Reply(other, RuntimeError("no attribute Plan")))


def test_data_that_a_node_lacks_belong_where_its_environment_says(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install idiolect[cluster]")
    monkeypatch.setenv("IDIOLECT_DATA", "/elsewhere")
    with pytest.raises(DataError, match=r"mnist: .* not found") as caught:
        carry_out(ship((lambda argument, folder, send: load(argument), "mnist")), tmp_path, print)
    assert "have the same files on all, where IDIOLECT_DATA says (there: /elsewhere)" in caught.value.__notes__[-1]


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
