"""What goes wrong on a cluster of three simulated nodes: the round goes on, or the run stops with a sentence, and a
resume on one machine has the bits of a run that nothing disturbed.

python benchmarks/cluster_faults.py                      all of them on one cluster
python benchmarks/cluster_faults.py actor node --methods "fedexp|flayer"
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from cluster import SIZE, actors, cluster, engine, ray  # which sets Ray's environment
from ray.cluster_utils import Cluster

import idiolect
from idiolect.core.errors import IdiolectError
from idiolect.engines import Workers
from idiolect.engines.cluster.engine import RayEngine
from idiolect.engines.cluster.pool import ActorPool
from idiolect.reproductions import read_claims, reproduce
from idiolect.runs.progress import Reporter
from idiolect.runs.round_loop import Progress
from idiolect.runs.store import Store
from idiolect.testing import play, require_equal, tiny_plan
from idiolect.testing.tiny import collect

RUN: dict[str, Any] = {"clients": 6, "rounds": 4, "model": "linear", "local_epochs": 1, "eval_every": 2}
CLAIM = {
    "paper": "Nobody", "where": "Table 1", "claim": "Local is above.", "setup": "Digits.", "scaled": "Nothing.",
    "settings": {"data": "digits", "clients": 4, "model": "linear", "rounds": 2, "lr": 0.1, "engine": "loop"},
    "methods": ["local", "fedavg"], "tuning": {"values": {"others": ["lr=0.1,0.3"]}}, "seeds": 2,
    "verdicts": [{"says": "Local is above.", "higher": "local", "than": "all", "theirs": {"local": 2, "fedavg": 1}}],
}  # fmt: skip


class Machines:
    """The nodes of a cluster, which come and go."""

    def __init__(self, machines: Cluster, nodes: list[Any]) -> None:
        self.machines, self.nodes = machines, nodes

    def add(self, **environment: str) -> None:
        """Another node, whose processes have this in their environment."""
        more = {"env_vars": environment} if environment else {}
        self.nodes.append(self.machines.add_node(num_cpus=1, **SIZE, **more))

    def remove(self, count: int = 1) -> None:
        """Kill some nodes with all that runs there."""
        for node in [self.nodes.pop(0) for _ in range(min(count, len(self.nodes)))]:
            self.machines.remove_node(node, allow_graceful=False)

    def restore(self) -> None:
        """Two usual nodes again."""
        self.remove(len(self.nodes))
        self.add()
        self.add()


# -- in the middle of a round, after which the round goes on ---------------------------------------------


def stop_actor(pool: ActorPool, number: signal.Signals) -> None:
    """Send a signal to the process of an actor."""
    os.kill(ray.get(pool.members[0].handle.process.remote()), number)


def vanish(machines: Machines, pool: ActorPool) -> None:
    """Kill all nodes; one comes five seconds later."""
    machines.remove(len(machines.nodes))
    began, require_some = time.monotonic(), pool.require_some

    def come_back() -> None:
        if not machines.nodes and time.monotonic() - began > 5:
            machines.add()
        require_some()

    pool.require_some = come_back  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[Machines, ActorPool], None]] = {
    "actor": lambda machines, pool: stop_actor(pool, signal.SIGKILL),
    "hang": lambda machines, pool: stop_actor(pool, signal.SIGSTOP),
    "node": lambda machines, pool: machines.remove(),
    "vanish": vanish,
}


def check_fault(fault: str, machines: Machines, options: argparse.Namespace) -> bool:
    """One fault in the first round of each method: the bits of `workers`."""
    equal = []
    for method in options.methods.split("|"):
        plan = tiny_plan(method, rounds=2)
        with actors() as pool:
            made, done, began = engine(pool, plan, timeout=10.0), list[Any](), time.perf_counter()
            disturb(made, lambda pool=pool: FAULTS[fault](machines, pool), done)
            there = play(plan, lambda _, made=made: made)
        said = compare(lambda plan=plan: play(plan, partial(Workers, count=1)), there)
        print(f"{fault}, {method}: {said}, {time.perf_counter() - began:.0f} s", flush=True)
        equal.append(said == "equal" and bool(done))
        if fault in ("node", "vanish"):
            machines.restore()
    return all(equal)


def disturb(made: RayEngine, fault: Callable[[], None], done: list[Any]) -> None:
    """Let something happen once in the middle of training."""
    train = made.train

    def train_disturbed(round: int, states: Any, download: Any) -> Iterator[Any]:
        for outcome in train(round, states, download):
            if not done:
                done.append(fault())
            yield outcome

    made.train = train_disturbed  # type: ignore[method-assign]


def compare(make: Callable[[], Any], there: Any) -> str:
    """Whether two runs ended alike."""
    try:
        require_equal(make(), there, "both")
    except Exception as error:
        return str(error)
    return "equal"


# -- what stops a run, which is then resumed on one machine --------------------------------------------


def check_stop(name: str, machines: Machines, options: argparse.Namespace) -> bool:
    """A sentence, and equal bits after a resume with `workers`."""
    with tempfile.TemporaryDirectory() as place:
        engine, before, watch, after = STOPS[name](machines, Path(place))
        before()
        folder, began = Path(place, "broken"), time.perf_counter()
        try:
            idiolect.run("ditto", out=folder, engine=engine, watch=watch, **RUN)
            said = "it did not stop"
        except IdiolectError as error:
            said = f"{type(error).__name__}: {error}"
        print(f"{name}: after {time.perf_counter() - began:.0f} s: {said}", flush=True)
        after()
        at = Store(folder / "state.sqlite", write=False, incomplete=True).facts.rounds_done
        resumed = idiolect.resume(folder, engine="workers(count=1)")
        whole = idiolect.run("ditto", engine="workers(count=1)", **RUN)
        equal = compare(lambda: collect(whole.plan, whole.store), collect(resumed.plan, resumed.store))
        print(f"{name}: stopped after {at} rounds, resumed with workers: {equal}", flush=True)
        return said != "it did not stop" and equal == "equal"


Stop = tuple[str, Callable[[], Any], Callable[[Progress], None], Callable[[], Any]]
"""An engine, what is done before the run, after each round, and when it has stopped."""


def gone(machines: Machines, place: Path) -> Stop:
    """All nodes go, and none comes."""

    def watch(progress: Progress) -> None:
        if progress.round == 1:
            machines.remove(len(machines.nodes))

    return "ray(wait=30)", lambda: None, watch, machines.restore


def occupied(machines: Machines, place: Path) -> Stop:
    """All cores belong to somebody else."""
    others: list[Any] = []

    @ray.remote(num_cpus=1)
    class Other:
        def ready(self) -> bool:
            return True

    def before() -> None:
        others.extend(Other.remote() for _ in range(2))
        ray.get([other.ready.remote() for other in others])

    return "ray(wait=5)", before, lambda _: None, lambda: [ray.kill(other) for other in others]


def memory(machines: Machines, place: Path) -> Stop:
    """From the second round on there is only a node whose memory counts as full, so that Ray kills what runs there."""

    def watch(progress: Progress) -> None:
        if progress.round == 1:
            machines.remove(len(machines.nodes))
            machines.add(RAY_memory_monitor_refresh_ms="100", RAY_memory_usage_threshold="0.01")

    return "ray(wait=60)", lambda: None, watch, machines.restore


def version(machines: Machines, place: Path) -> Stop:
    """The only node has another version of Idiolect."""
    copy = place / "other" / "idiolect"

    def before() -> None:
        shutil.copytree(Path(idiolect.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / "__init__.py"
        file.write_text(file.read_text().replace(f'__version__ = "{idiolect.__version__}"', '__version__ = "9.9"'))
        machines.remove(len(machines.nodes))
        machines.add(PYTHONPATH=str(copy.parent))

    return "ray", before, lambda _: None, machines.restore


OTHER_TORCH = """
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch.version":
            return None
        sys.meta_path.remove(Finder)
        spec = importlib.util.find_spec(name)
        usual = spec.loader.exec_module
        def exec_module(module):
            usual(module)
            module.__version__ = "2.0.0"
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder)
"""


def torch(machines: Machines, place: Path) -> Stop:
    """On the only node, PyTorch says that it is another version."""

    def before() -> None:
        place.joinpath("sitecustomize.py").write_text(OTHER_TORCH)
        machines.remove(len(machines.nodes))
        machines.add(PYTHONPATH=str(place))

    return "ray", before, lambda _: None, machines.restore


STOPS = {"gone": gone, "occupied": occupied, "memory": memory, "version": version, "torch": torch}


# -- many runs -----------------------------------------------------------------------------------------


def check_data(machines: Machines, options: argparse.Namespace) -> bool:
    """The only node has no data: a sentence, and afterwards the comparison goes on in its folder."""
    with tempfile.TemporaryDirectory() as place:
        machines.remove(len(machines.nodes))
        machines.add(IDIOLECT_DATA=str(Path(place, "empty")))
        settings = {**RUN, "data": "mnist(samples=300)", "seeds": 1, "out": Path(place, "c"), "engine": "loop"}
        try:
            idiolect.compare(["local", "fedavg"], on="ray", **settings)
            said = ""
        except IdiolectError as error:
            said = f"{type(error).__name__}: {error}"
        print(f"data: {said}", flush=True)
        left = sorted(path.name for path in Path(place, "c").rglob("*.sqlite"))
        board = idiolect.compare(["local", "fedavg"], on="here", **settings)
        print(f"data: stores left behind: {left}; then on one machine: {board['fedavg'].selected.mean:.4f}", flush=True)
        machines.restore()
        return bool(said) and not left


def check_commands(machines: Machines, options: argparse.Namespace) -> bool:
    """`advise`, `tune` and `reproduce` to their ends, with the numbers of one machine."""
    with tempfile.TemporaryDirectory() as place:
        tiny = {"clients": 5, "model": "linear", "engine": "loop"}
        races = [idiolect.advise("digits", rounds=3, on=on, **tiny).race for on in ("ray", "here")]
        same = [[(each.method, each.score, each.rung) for each in race.places] for race in races if race]
        print(f"advise: {len(same[0])} methods raced, {'equal' if same[0] == same[1] else 'DIFFERENT'}", flush=True)
        Path(place, "tiny.yaml").write_text(yaml.safe_dump(CLAIM))
        claims = read_claims(Path(place))
        results = [reproduce(claims["tiny"], claims, cache=Path(place, on), on=on) for on in ("ray", "here")]
        scores = [[run["score"] for m in r["cases"][0]["methods"] for run in m["runs"]] for r in results]
        print(f"reproduce: {len(scores[0])} runs, {'equal' if scores[0] == scores[1] else 'DIFFERENT'}", flush=True)
        return same[0] == same[1] and scores[0] == scores[1]


def check_compare(machines: Machines, options: argparse.Namespace) -> bool:
    """Eight methods with three seeds; a node is killed when a third of the runs is done."""
    names = ["local", "fedavg", "fedprox", "ditto", "fedper", "fedrep", "apfl", "scaffold"]

    class Watch(Reporter):
        starts, ends = Counter[str](), list[str]()

        def start(self, label: str, rounds: int, done: int = 0) -> None:
            self.starts[label] += 1
            super().start(label, rounds, done)

        def end(self, label: str, summary: Any) -> None:
            self.ends.append(label)
            if len(self.ends) == 8:
                machines.remove()
            super().end(label, summary)

    with tempfile.TemporaryDirectory() as place:
        watch, settings = Watch(), {"clients": 8, "rounds": 4, "model": "linear", "engine": "loop"}
        board = idiolect.compare(names, seeds=3, on="ray", out=Path(place, "c"), reporter=watch, **settings)
    again = {label: count for label, count in watch.starts.items() if count > 1}
    late = [label for label in again if label in watch.ends[:8]]
    here = idiolect.compare(names, seeds=3, on="here", **settings)
    same = all(board[name].selected.mean == here[name].selected.mean for name in names)
    print(f"compare: {len(watch.ends)} of 24 runs; begun again: {', '.join(again) or 'none'}; of finished ones:"
          f" {len(late)}; scores {'equal' if same else 'DIFFER from'} those of one machine")  # fmt: skip
    machines.restore()
    return len(watch.ends) == 24 and not late and same


def check_driver(machines: Machines, options: argparse.Namespace) -> bool:
    """The driver killed in the middle of a run, which is then resumed on one machine."""
    with tempfile.TemporaryDirectory() as place:
        whole, broken = Path(place, "whole"), Path(place, "broken")
        settings = ["run", "ditto", "--clients", "8", "--rounds", "12", "--model", "linear", "--quiet"]
        call(*settings, "--engine", "workers", "--out", str(whole)).wait()
        process = call(*settings, "--engine", "ray", "--out", str(broken))
        deadline = time.time() + 240
        while time.time() < deadline and rounds_done(broken) < 4:
            time.sleep(0.05)
        process.kill()
        process.wait()
        at = rounds_done(broken)
        call("resume", str(broken), "--engine", "workers", "--quiet").wait()
        runs = [idiolect.load(folder) for folder in (whole, broken)]
        equal = compare(lambda: collect(runs[0].plan, runs[0].store), collect(runs[1].plan, runs[1].store))
        print(f"driver killed after round {at} of 12, resumed with workers: {equal}", flush=True)
        return equal == "equal" and 0 < at < 12


def rounds_done(folder: Path) -> int:
    """How far a run is."""
    try:
        return Store(folder / "state.sqlite", write=False, incomplete=True).facts.rounds_done
    except Exception:
        return 0


def call(*arguments: str) -> subprocess.Popen[bytes]:
    """A command."""
    return subprocess.Popen([sys.executable, "-m", "idiolect", *arguments], stdout=subprocess.DEVNULL)


CASES: dict[str, Callable[[Machines, argparse.Namespace], bool]] = {
    **{name: partial(check_fault, name) for name in FAULTS},
    **{name: partial(check_stop, name) for name in STOPS},
    "data": check_data,
    "commands": check_commands,
    "compare": check_compare,
    "driver": check_driver,
}


def main() -> None:
    """Do some of them; end with an error if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--methods", default="ditto|fedexp", help="expressions between bars, for actor to vanish")
    options = parser.parse_args()
    logging.basicConfig(format="  %(message)s")
    with cluster() as (machines, nodes):
        wrong = [name for name in options.cases or CASES if not CASES[name](Machines(machines, nodes), options)]
    print(f"wrong: {', '.join(wrong)}" if wrong else "all well")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
