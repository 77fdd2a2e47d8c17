"""A server that is killed and started again: the SuperLink and the ServerApp get SIGKILL in the middle of round 2 and
once more after round 3, and the app is run again each time. What comes out is compared with the `loop` engine, which
nobody interrupted: the server's slots, every personal model, every score, steps and bytes.

    python benchmarks/flower_restarts.py [--method ditto] [--wait 5]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from flower_methods import SETTINGS, largest_difference

import idiolect
from idiolect.flower.folders import MODEL_FILE, STATE_FILE
from idiolect.flower.supernode import hash_app
from idiolect.flower.testbed import Testbed, write_named_app
from idiolect.runs.store import Row, Store

NAME, CLIENTS, ROUNDS, MOST = "restarts", 2, 4, 1e-5


def collect_scores(store: Store) -> dict[Row, float]:
    """The value of every score, by what it is of."""
    return {(*row[:6], row[7]): row[6] for row in store.rows() if row[3] != "state"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="ditto")
    parser.add_argument("--wait", type=float, default=5.0, help="seconds after the end of round 1 until the first kill")
    args = parser.parse_args()
    settings = SETTINGS | {"method": args.method, "clients": CLIENTS, "rounds": ROUNDS, "eval_every": 2}
    started = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as root, Testbed(Path(root) / "bed") as bed:
        app = write_named_app(Path(root) / "app", settings | {"federation": NAME, "quorum": 1.0, "wait": 600.0})
        for index in range(CLIENTS):
            bed.start_node(index, agreed=hash_app(app))
        bed.start_run(app)
        for words, pause in ((f"round 1 of {ROUNDS}", args.wait), (f"round 3 of {ROUNDS}", 0.0)):
            bed.wait_for(NAME, words, 3600)
            time.sleep(pause)
            bed.kill_server(NAME)
            note(f"{words} is done; {pause:g} s later the ServerApp and the SuperLink were killed")
            bed.start_superlink()
            bed.start_run(app)
        text = bed.wait_for(NAME, f"complete after {ROUNDS} rounds", 3600)
        note("the run is complete")
        loop = idiolect.run(engine="loop", **settings)
        store = Store(bed.home / NAME / "server" / STATE_FILE, write=False)
        models = [Store(bed.home / NAME / f"client-{i}" / MODEL_FILE, write=False) for i in range(CLIENTS)]
        scores, expected = collect_scores(store), collect_scores(loop.store)
        differences = {
            "server": largest_difference(store.server(), loop.store.server()),
            "personal models": max(
                largest_difference(each.clients([i])[i], loop.personal_slots(i, round=-1))
                for i, each in enumerate(models)
            ),
            "scores": max(abs(scores[name] - expected[name]) for name in expected)
            if scores.keys() == expected.keys()
            else 1.0,
        }
        counted = ("bytes_up", "bytes_down", "bytes_eval", "steps")
        equal = all(store.fact(name) == loop.store.fact(name) for name in counted)
    print(f"\nthe server's log:\n\n{text}")
    print(f"continued {text.count('continuing after round')} times")
    print(*(f"largest difference of the {name}: {value:.1e}" for name, value in differences.items()), sep="\n")
    print(f"{len(expected)} scores; bytes and steps {'equal' if equal else 'DIFFER'}")
    sys.exit(max(differences.values()) > MOST or not equal)


if __name__ == "__main__":
    main()
