"""The engine `ray` on a cluster of three nodes that live on this machine: the bits of `workers`, whatever dies."""

import os
import signal

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install idiolect[cluster]")
import ray
from ray.cluster_utils import Cluster

from idiolect.core.errors import ClusterError, InputError
from idiolect.engines import Workers, engines
from idiolect.engines.cluster.actor import ClientActor
from idiolect.engines.cluster.connection import describe_node, require_like
from idiolect.engines.cluster.engine import RayEngine
from idiolect.engines.cluster.pool import ActorPool
from idiolect.engines.slots import first_server
from idiolect.testing import play, require_equal, tiny_plan

STORE = 100 << 20


@pytest.fixture(scope="module")
def cluster():
    """A head that has no cores, and two nodes of one core each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # others' memory is not ours
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else everything else on the machine goes first
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
        patch.setenv("RAY_ADDRESS", cluster.address)
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster, nodes
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def pool(cluster):
    """Actors that all tests share."""
    pool = ActorPool(ClientActor)
    yield pool
    pool.stop()


@pytest.fixture
def engine(pool):
    """Makes an engine on the actors that all tests share."""
    return lambda plan, chunk=0, **more: RayEngine(plan, lambda: pool, chunk, keep_pool=True, **more)


def send_signal(pool: ActorPool, number: signal.Signals) -> None:
    """End the process of an actor, as a lack of memory does, or let it hang."""
    os.kill(ray.get(pool.members[0].handle.process.remote()), number)


@pytest.mark.parametrize("method", ["fedavg", "fedexp", "ditto", "heterofl", "fedlag(ditto, warmup=0)", "fedfomo"])
def test_a_cluster_changes_not_a_bit(method, engine, monkeypatch):
    """Of methods whose uploads are added up on the actors, here in several shares, and of such as need each of them."""
    monkeypatch.setattr("idiolect.engines.cluster.engine.LEAST_SHARE", 10)
    plan = tiny_plan(method, rounds=2, after_local=True)
    here, there = play(plan, lambda plan: Workers(plan, 1)), play(plan, engine)
    require_equal(here, there, "workers and cluster")
    assert (here.rows, here.cost) == (there.rows, there.cost)


def test_uploads_stay_where_they_are_added_up(engine):
    plan = tiny_plan("fedavg", rounds=1)
    states, server = dict.fromkeys(range(5)), first_server(plan.server(0))
    message = plan.method.download(plan.server(0), server, list(states))
    assert all(outcome.upload is None for _, outcome in engine(plan).train(0, states, message))
    assert all(outcome.upload is not None for _, outcome in engine(plan, sums=False).train(0, states, message))


def test_actors_that_hang_or_are_killed_change_not_a_bit(engine, pool, monkeypatch):
    """One hangs in the middle of the first round; one dies when it has trained in the second, with the uploads that it
    kept."""
    plan = tiny_plan("ditto", rounds=2)
    made, faults, reasons = engine(plan), [], []
    train, add_up, remove = made.train, made.add_up, pool.remove

    def disturbed(round, states, download):
        for outcome in train(round, states, download):
            if not faults:
                faults.append(send_signal(pool, signal.SIGSTOP))
                made.timeout = 2.0  # until it is noticed: a busy machine may be as slow
            yield outcome

    def lost(server, ids):
        if len(faults) == 1 and made._newest.round == 1:
            faults.append(send_signal(pool, signal.SIGKILL))
        return add_up(server, ids)

    def removed(member, reason):
        reasons.append(reason)
        made.timeout = 3600.0
        return remove(member, reason)

    made.train, made.add_up = disturbed, lost
    monkeypatch.setattr(pool, "remove", removed)
    require_equal(play(plan, lambda plan: Workers(plan, 1)), play(plan, lambda _: made), "disturbed")
    assert len(faults) == 2
    assert reasons[0].startswith("it gave no answer")  # while it trained, or when sums were asked for


def test_actors_that_do_not_come_end_the_run_with_what_to_do(cluster):
    with pytest.raises(ClusterError, match=r"no actor of the cluster has answered for 0 s \(it has 2 cores .*resume"):
        play(tiny_plan("fedavg", rounds=1), engines.build("ray(wait=0)").make)


DEADLY = """
import os
import time
from dataclasses import dataclass
from idiolect.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Deadly(FedAvg):
    def prepare(self, ctx, work):
        if ctx.index == 3:
            time.sleep(1.0)  # what was done before is answered
            os._exit(1)
        return work
"""


def test_work_that_kills_its_actor_names_its_clients_and_own_code_travels(engine, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(DEADLY)
    monkeypatch.setattr("idiolect.engines.cluster.engine.TRIES", 1)
    with pytest.raises(
        ClusterError, match=r"the work of client c3 failed 1 times.*the rounds before this one are saved"
    ):
        play(tiny_plan(f"{tmp_path}/mine.py:Deadly", rounds=1), engine)


def test_what_the_cluster_does_not_have_is_said_before_anything_starts(cluster):
    with pytest.raises(
        InputError, match="each of the actors is to have 1 GPUs, but no node of the cluster has any; leave out gpus"
    ):
        play(tiny_plan("fedavg"), engines.build("ray(gpus=1)").make)
    with pytest.raises(InputError, match="9 actors with 1 cores each need 9, but the cluster has 2"):
        play(tiny_plan("fedavg"), engines.build("ray(actors=9)").make)


@pytest.mark.parametrize("field", ["version", "torch", "source"])
def test_a_node_with_another_installation_is_refused(field):
    here = describe_node()
    with pytest.raises(ClusterError, match=r"the node far has .* 0.0, and this one has .*; install the same"):
        require_like(here._replace(name="far", **{field: "0.0"}), here)


def test_a_node_that_dies_changes_not_a_bit(engine, pool, cluster):
    """The last test: one node is left."""
    plan = tiny_plan("ditto", rounds=2)
    made, (machines, nodes) = engine(plan), cluster
    train, removed = made.train, []

    def disturbed(round, states, download):
        for outcome in train(round, states, download):
            if not removed:
                removed.append(machines.remove_node(nodes[0], allow_graceful=False))
            yield outcome

    made.train = disturbed
    require_equal(play(plan, lambda plan: Workers(plan, 1)), play(plan, lambda _: made), "a node less")
    assert removed
    assert len(pool.members) == 1
