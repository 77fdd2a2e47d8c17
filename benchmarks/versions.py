"""Two checkouts of Idiolect against each other: seconds of whole rounds, training and evaluation, new over old.

    python benchmarks/versions.py --old ../idiolect-before
    python benchmarks/versions.py --old ../idiolect-before --only "MLP b32, ditto" --clients 10 --rounds 3 --repeats 1

Each checkout runs in a process of its own, through `idiolect.run`, and does a round when it is told to: first one, then
the other, in alternating order. A ratio is that of two rounds beside each other; the table gives their median, an
interval of about 95 %, and the median of every repeat, which starts new processes. What both checkouts must have in
common is `idiolect.run` with `watch`, `idiolect.data` and `idiolect.models`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
METHODS = ("fedavg", "fedprox", "ditto")
VAL = 64
WARM_UP = 2  # rounds that are not timed: processes start, kernels are compiled, clients get their state


class Checkout:
    """Rounds of one checkout, in a process whose PYTHONPATH is that checkout's sources."""

    def __init__(self, source: Path, name: str, method: str, clients: int) -> None:
        command = [sys.executable, HERE, "--serve", name, "--methods", method, "--clients", str(clients)]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        if Path(used := self.answer()) != source / "idiolect":
            raise SystemExit(f"the sources in {source} should run, but those in {used} do")

    def round(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with exit code {self.process.wait()}; its message is above")
        return line.strip()

    def close(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class End(Exception):
    """No more rounds are wanted."""


def serve(name: str, method: str, clients: int) -> None:
    """Do a round for each line on the standard input and answer with its seconds, until there is none."""
    from workload import LR, federation, find_work, network

    import idiolect

    def wait() -> float:
        if not sys.stdin.readline():
            raise End
        return time.perf_counter()

    def watch(_: Any) -> None:
        nonlocal started
        print(time.perf_counter() - started, flush=True)
        started = wait()

    work = find_work(name)
    data = federation(work, clients, VAL)
    model, engine = network(work, data), "vector" if work.model.startswith("mlp") else "workers"
    print(Path(idiolect.__file__).parent, flush=True)
    try:
        started = wait()
        idiolect.run(method, data, model=model, rounds=10**6, lr=LR, batch_size=work.batch, engine=engine, watch=watch)
    except End:
        return


def measure(sources: dict[str, Path], name: str, method: str, clients: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of the rounds of both checkouts, taken in alternating order."""
    running: dict[str, Checkout] = {}
    try:
        for version, source in sources.items():
            running[version] = Checkout(source, name, method, clients)
        seconds: dict[str, list[float]] = {version: [] for version in running}
        for number in range(WARM_UP + rounds):
            for version in running if number % 2 else reversed(running):
                seconds[version].append(running[version].round())
    finally:
        for each in running.values():
            each.close()
    return {version: times[WARM_UP:] for version, times in seconds.items()}


def compare(sources: dict[str, Path], name: str, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table: one network and one method, in all repeats."""
    from ratios import ratio

    repeats = [measure(sources, name, method, options.clients, options.rounds) for _ in range(options.repeats)]
    seconds = {version: [s for each in repeats for s in each[version]] for version in sources}
    overall = ratio(seconds["new"], seconds["old"])
    medians = [ratio(each["new"], each["old"])["median"] for each in repeats]
    return {
        "": f"{name}, {method}",
        "old seconds": statistics.median(seconds["old"]),
        "new seconds": statistics.median(seconds["new"]),
        "new over old": overall["median"],
        "low": overall["low"],
        "high": overall["high"],
        "of each repeat": " ".join(f"{median:.3f}" for median in medians),
    }


def sources_of(path: Path) -> Path:
    """The folder that holds the package, given a checkout or that folder itself."""
    folder = next((each for each in (path / "src", path) if (each / "idiolect").is_dir()), None)
    if folder is None:
        raise SystemExit(f"there is no checkout of Idiolect in {path}; give its folder or its `src`")
    return folder.resolve()


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, metavar="PATH", help="the checkout to compare with")
    parser.add_argument("--new", type=Path, metavar="PATH", default=HERE.parents[1], help="by default this one")
    parser.add_argument(
        "--only", metavar="NAME", default="", help='part of a row\'s name, such as "LeNet-5w b32, ditto"'
    )
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, metavar="N", default=9, help="timed rounds of each checkout per repeat")
    parser.add_argument("--repeats", type=int, metavar="N", default=3, help="how often both processes are started anew")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--serve", metavar="WORK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.methods[0], options.clients)
    if options.old is None:
        parser.error("give the checkout to compare with: --old PATH")
    from ratios import show
    from workload import WORKS

    sources = {"old": sources_of(options.old), "new": sources_of(options.new)}
    wanted = [(work.name, method) for work in WORKS for method in options.methods]
    wanted = [(name, method) for name, method in wanted if options.only in f"{name}, {method}"]
    if not wanted:
        parser.error(f"no row is called {options.only!r}; there are {', '.join(work.name for work in WORKS)}")
    rows = []
    for name, method in wanted:
        rows.append(compare(sources, name, method, options))
        shown = [f"{key} {value:.3g}" if isinstance(value, float) else value for key, value in rows[-1].items()]
        print(", ".join(shown), flush=True)
    title = f"{options.clients} clients, {options.repeats} x {options.rounds} rounds of each in turn"
    show(title, rows, options.out / "versions.json")
    return None


if __name__ == "__main__":
    main()
