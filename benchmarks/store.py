"""The store: reading and committing the states of a round's clients, against plain file copies, and against LMDB where
it is installed (`pip install lmdb`), which is how the choice of SQLite was made.

    python benchmarks/store.py --clients 2000 --megabytes 1
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from ratios import ratio, show

from idiolect.core import codec
from idiolect.runs.store import Store


def main() -> None:
    """Measure, print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000, help="clients in the store")
    parser.add_argument("--sampled", type=int, default=100, help="clients per round")
    parser.add_argument("--megabytes", type=float, default=1.0, help="state of one client")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    state = {"own": {"w": torch.randn(int(options.megabytes * 250_000))}}
    data = codec.encode(state)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        rounds = [random.Random(r).sample(range(options.clients), options.sampled) for r in range(options.rounds)]
        contestants: dict[str, tuple[Callable[[list[int]], None], Callable[[int, list[int]], None]]] = {
            "files": files(Path(folder) / "files", data),
            "sqlite": sqlite(Path(folder) / "state.sqlite", state),
        }
        try:
            contestants["lmdb"] = lmdb_store(Path(folder) / "lmdb", data, options.clients)
        except ImportError:
            print("lmdb is not installed; it is left out")
        for _, write in contestants.values():
            for start in range(0, options.clients, 500):
                write(0, list(range(start, min(start + 500, options.clients))))
        seconds: dict[str, dict[str, list[float]]] = {name: {"read": [], "commit": []} for name in contestants}
        for number, ids in enumerate(rounds):
            for name, (read, write) in contestants.items():
                seconds[name]["read"].append(timed(partial(read, ids)))
                seconds[name]["commit"].append(timed(partial(write, number + 1, ids)))
        total = folder_size(Path(folder) / "files") >> 20
        rows = []
        for name, each in seconds.items():
            row: dict[str, object] = {"store": name}
            for what in ("read", "commit"):
                row[f"{what} s"] = sorted(each[what])[len(rounds) // 2]
                row[f"{what} over files"] = ratio(each[what], seconds["files"][what])["median"]
            rows.append(row)
        title = f"{options.sampled} of {options.clients} clients, {options.megabytes:g} MB each, {total} MB in all"
        show(title, rows, options.out / "store.json")


def timed(work: Callable[[], None]) -> float:
    """Seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def folder_size(path: Path) -> int:
    """Bytes in a folder."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def files(folder: Path, data: bytes) -> tuple[Callable[[list[int]], None], Callable[[int, list[int]], None]]:
    """One file per client, written beside its place and moved there."""
    folder.mkdir()

    def read(ids: list[int]) -> None:
        for index in ids:
            codec.decode((folder / str(index)).read_bytes())

    def write(_: int, ids: list[int]) -> None:
        for index in ids:
            (folder / "part").write_bytes(data)
            shutil.move(folder / "part", folder / str(index))

    return read, write


def sqlite(
    path: Path, state: dict[str, dict[str, torch.Tensor]]
) -> tuple[Callable[[list[int]], None], Callable[[int, list[int]], None]]:
    """The store that runs use."""
    store = Store(path)
    return (
        lambda ids: store.clients(ids) and None,
        lambda round, ids: store.commit(round, {}, dict.fromkeys(ids, state), [], {"next_round": round}),
    )


def lmdb_store(
    path: Path, data: bytes, clients: int
) -> tuple[Callable[[list[int]], None], Callable[[int, list[int]], None]]:
    """The same in LMDB."""
    import lmdb

    base = lmdb.open(str(path), map_size=4 * clients * len(data) + (1 << 30), sync=False)

    def read(ids: list[int]) -> None:
        with base.begin() as view:
            for index in ids:
                codec.decode(view.get(str(index).encode()))

    def write(_: int, ids: list[int]) -> None:
        with base.begin(write=True) as change:
            for index in ids:
                change.put(str(index).encode(), data)

    return read, write


if __name__ == "__main__":
    main()
