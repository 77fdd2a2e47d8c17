"""Methods over a real network: a SuperLink with TLS and five authenticated SuperNodes as processes of this machine.
After some rounds the server's slots and every client's personal model are compared with those of the `loop` engine.

    python benchmarks/flower_methods.py [--rounds 3] [METHOD ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

import idiolect
from idiolect.core.tree import Slots
from idiolect.flower.folders import MODEL_FILE, STATE_FILE
from idiolect.flower.testbed import Testbed, write_named_app
from idiolect.runs.store import Store

METHODS = (
    *("fedavg", "fedlag(fedavg)", "lgmix", "flayer(fedavg)", "pfedgate", "fedfac", "ditto", "fedfomo"),
    "heterofl",
)
CLIENTS = 5
SETTINGS = {"data": "digits", "partition": "dirichlet:0.5", "clients": CLIENTS, "lr": 0.1, "seed": 3}


def largest_difference(a: Slots, b: Slots) -> float:
    """The largest difference of any number in slots of the same names and shapes."""
    assert {s: sorted(each) for s, each in a.items()} == {s: sorted(each) for s, each in b.items()}
    pairs = [(leaf, b[slot][name]) for slot, leaves in a.items() for name, leaf in leaves.items() if leaf.numel()]
    differences = [(one.double() - other.double()).abs().max() for one, other in pairs]
    return float(torch.stack(differences).max()) if differences else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as root, Testbed(Path(root) / "bed") as bed:
        for index in range(CLIENTS):
            bed.start_node(index)
        names = {method: f"run{number}" for number, method in enumerate(args.methods)}
        rounds = {"rounds": args.rounds, "eval_every": args.rounds}
        deployment = {"method": "fedavg", "federation": "none", "wait": 600.0}
        app = write_named_app(Path(root) / "app", SETTINGS | deployment | rounds)
        print(f"{'method':<16} {'server':>9} {'personal':>9} {'bytes':>6} {'seconds':>8}", flush=True)
        for method, name in names.items():
            started = time.perf_counter()
            bed.start_run(app, {"method": method, "federation": name})
            bed.wait_for(name, "complete after", 3600)
            seconds = time.perf_counter() - started
            loop = idiolect.run(method, engine="loop", **rounds, **SETTINGS)
            store = Store(bed.home / name / "server" / STATE_FILE, write=False)
            server = largest_difference(store.server(), loop.store.server())
            differences = []
            for index in range(CLIENTS):
                models = Store(bed.home / name / f"client-{index}" / MODEL_FILE, write=False)
                differences.append(
                    largest_difference(models.clients([index])[index] or {}, loop.personal_slots(index, round=-1))
                )
            counted = ("bytes_up", "bytes_down", "bytes_eval")
            equal = all(store.fact(each) == loop.store.fact(each) for each in counted)
            worst = max(worst, server, *differences)
            shown = "equal" if equal else "DIFFER"
            print(f"{method:<16} {server:9.1e} {max(differences):9.1e} {shown:>6} {seconds:8.1f}", flush=True)
    print(f"largest difference to the loop engine: {worst:.1e}")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    main()
