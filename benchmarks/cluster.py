"""The engine `ray` on a simulated cluster of three nodes: the bits of `workers`, overhead and traffic. What goes wrong
is in cluster_faults.py.

python benchmarks/cluster.py methods            all methods over two rounds, alone and in stacks
python benchmarks/cluster.py overhead           per client visit, over `workers` on the same cores, interleaved
python benchmarks/cluster.py traffic            100 clients of an 11 M-parameter model, with and without sums
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_memory_monitor_refresh_ms": "0",  # memory of other processes is not ours
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else Ray gives way to all others on the machine, `workers` among them
}

import ray
import torch
from ray.cluster_utils import Cluster
from scaling import anonymous_mb

import idiolect
from idiolect.contract import methods as registry
from idiolect.engines import Plan, Workers
from idiolect.engines.cluster.actor import ClientActor
from idiolect.engines.cluster.engine import RayEngine
from idiolect.engines.cluster.pool import ActorPool
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.task.task import Task
from idiolect.testing import play, require_equal, tiny_plan

WRAPPED = (
    "finetune(ditto)",
    "fedlag(ditto)",
    "flayer(fedavg)",
    "fedlag(flayer)",
    "lgmix",
    "pfedgate(split=structured)",
)
SIZE = {"object_store_memory": 100 << 20}


@contextmanager
def cluster(cores: int = 1, size: Mapping[str, Any] = SIZE) -> Iterator[tuple[Cluster, list[Any]]]:
    """A head without cores and two nodes."""
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **size})
    nodes = [machines.add_node(num_cpus=cores, **size) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = machines.address
    ray.init(machines.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield machines, nodes
    finally:
        ray.shutdown()
        machines.shutdown()


@contextmanager
def actors() -> Iterator[ActorPool]:
    """Actors that several engines use one after another."""
    pool = ActorPool(ClientActor)
    try:
        yield pool
    finally:
        pool.stop()


def engine(pool: ActorPool, plan: Plan, chunk: int = 0, **more: Any) -> RayEngine:
    """An engine on these actors."""
    return RayEngine(plan, lambda: pool, chunk, keep_pool=True, **more)


def check_methods(options: argparse.Namespace) -> bool:
    """Every method and some wrapped ones against `workers`, to the bit."""
    wrong = []
    with cluster(), actors() as pool:
        for method in options.methods.split("|") if options.methods else (*registry, *WRAPPED):
            for chunk in options.chunks:
                try:
                    plan = tiny_plan(method, rounds=2, after_local=True)
                    here = play(plan, partial(Workers, count=1, chunk=chunk))
                    there = play(plan, lambda plan, chunk=chunk: engine(pool, plan, chunk))
                    require_equal(here, there, method)
                    said = "equal" if (here.rows, here.cost) == (there.rows, there.cost) else "other metrics"
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
                wrong += [method] * (said != "equal")
                print(f"{method:32} {'stacks' if chunk else 'alone':8} {said}", flush=True)
    print("all equal" if not wrong else f"differ: {', '.join(wrong)}")
    return not wrong


def measure_overhead(options: argparse.Namespace) -> bool:
    """Time of the processor for a round of many tiny clients, on two actors and on two workers in turn: of the driver
    and those that compute, and of all processes of the cluster."""
    plan = tiny_plan("ditto", clients=options.clients, rounds=1, epochs=1)
    with cluster(), actors() as pool:
        contestants = {
            "workers": Workers(plan, 2),
            "ray": engine(pool, plan),
            "ray, no sums": engine(pool, plan, sums=False),
        }
        spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in contestants}
        for repeat in range(options.repeats + 1):
            for name, each in contestants.items():
                spent[name] += [time_round(plan, each, pool)] * (repeat > 0)  # the first one starts processes
        contestants["workers"].close()
    middle = {name: [sorted(part)[len(part) // 2] for part in zip(*each, strict=True)] for name, each in spent.items()}
    for name, each in middle.items():
        driver, extra, everything = (
            (part - usual) / (2 * options.clients) * 1e3
            for part, usual in zip(each, (0.0, *middle["workers"][1:]), strict=True)
        )
        print(
            f"{name:14} {each[1]:.2f} s of the processor per round; per visit (training and evaluation) {extra:+.2f} ms"
            f" over workers, {everything:+.2f} ms with Ray's own processes; the driver alone {driver:.2f} ms"
        )
    return True


def time_round(plan: Plan, each: Any, pool: ActorPool) -> tuple[float, ...]:
    """Seconds of the processor for training and evaluation of all clients: of this process, of those that compute as
    well, and of all that were started here."""
    before = read_processes()
    RoundLoop(plan, each, Store(None)).run()
    after = read_processes()
    used = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
    known = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    known += ray.get([member.handle.process.remote() for member in pool.members])
    return used[os.getpid()], sum(used.get(pid, 0.0) for pid in known), sum(used.values())


def read_processes() -> dict[int, float]:
    """Seconds of the processor that this process and all below it have used, by their numbers."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            parents[int(file.parent.name)] = int(fields[1])
            seconds[int(file.parent.name)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: seconds[pid] for pid in found}


def measure_traffic(options: argparse.Namespace) -> bool:
    """Bytes through the driver and its memory, for clients of a large model; each case in a process of its own."""
    for sums in (False, True):
        subprocess.run([sys.executable, __file__, "traffic-once", "--sums", str(int(sums)), *rest(options)], check=True)
    return True


def rest(options: argparse.Namespace) -> list[str]:
    """The options of a measurement in its own process."""
    return ["--clients", str(options.clients), "--parameters", str(options.parameters)]


def measure_once(options: argparse.Namespace) -> bool:
    """One round of FedAvg with a wide linear layer, of whose samples each client has one."""
    side = int((options.parameters / 3) ** 0.5)
    with cluster(size={"object_store_memory": 3000 << 20}):
        model = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(3)))
        x, y = torch.randn(2, side), torch.randint(0, side, (2,))
        plan = tiny_plan("fedavg", rounds=1, epochs=1)
        clients = [(x.clone(), y) for _ in range(options.clients)]
        data = idiolect.Federation.from_clients(clients, classes=side)
        plan = replace(plan, data=data, tasks=(Task(model, (x, y), classes=side),))
        with actors() as pool:
            made = engine(pool, plan, sums=bool(int(options.sums)))
            received, get = Counter[str](), ray.get

            def counted(reference: Any, **more: Any) -> Any:
                answer = get(reference, **more)
                received["bytes"] += count_bytes(answer)
                return answer

            pool.ray = _Counting(ray, counted)
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
            with watch_memory() as own:
                RoundLoop(plan, made, Store(None), eval_every=10).run()
            seconds, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(leaf.numel() for leaf in model.parameters()) * 4 / 1e6
    print(
        f"{options.clients} clients, model {size:.0f} MB, {'sums' if int(options.sums) else 'uploads'}: driver received"
        f" {received['bytes'] / 1e6:.0f} MB, its peak memory rose by {(peak - before) / 1e3:.0f} MB, of"
        f" which {max(own) - own[0]:.0f} MB are its own and not of Ray's store, {seconds:.1f} s",
        flush=True,
    )
    return True


@contextmanager
def watch_memory() -> Iterator[list[float]]:
    """Megabytes of this process that belong to no file and no shared memory, five times a second."""
    seen, done = [anonymous_mb()], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            seen.append(anonymous_mb())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


class _Counting:
    """Ray, with another `get`."""

    def __init__(self, inner: Any, get: Any) -> None:
        self.inner, self.get = inner, get

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def count_bytes(answer: Any) -> int:
    """The bytes of the buffers in an answer."""
    if hasattr(answer, "nbytes"):
        return int(answer.nbytes)
    return sum(map(count_bytes, answer)) if isinstance(answer, tuple | list) else 0


WORK = {
    "methods": check_methods,
    "overhead": measure_overhead,
    "traffic": measure_traffic,
    "traffic-once": measure_once,
}


def main() -> None:
    """Do one of them; end with an error if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WORK)
    parser.add_argument("--methods", default="", help="expressions between bars; by default all")
    parser.add_argument("--chunks", type=int, nargs="*", default=[0, 3], help="clients per stack; 0 is none")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=float, default=11e6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sums", default="1")
    options = parser.parse_args()
    sys.exit(not WORK[options.what](options))


if __name__ == "__main__":
    main()
