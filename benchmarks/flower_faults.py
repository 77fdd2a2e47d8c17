"""A run that survives faults: a SuperNode and the SuperLink are killed and restarted, a SuperNode without a registered
key tries to join, and another one claims to be a client that it is not. Prints the server's log.

    python benchmarks/flower_faults.py [--timeout 120]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from flower_methods import SETTINGS

from idiolect.flower.testbed import Testbed, write_named_app

NAME, CLIENTS, ROUNDS = "faults", 3, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a round closes")
    args = parser.parse_args()
    settings = {"method": "ditto", "clients": CLIENTS, "rounds": ROUNDS, "eval_every": ROUNDS}
    deployment = {"federation": NAME, "quorum": 0.5, "timeout": args.timeout, "wait": 600.0}
    started = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory() as root, Testbed(Path(root) / "bed") as bed:
        app = write_named_app(Path(root) / "app", SETTINGS | settings | deployment)
        for index in range(CLIENTS):
            bed.start_node(index)
        bed.start_node(0, register=False, name="stranger")
        note(f"{CLIENTS} SuperNodes, and one whose key is not registered")
        bed.start_run(app)
        bed.wait_for(NAME, f"round 1 of {ROUNDS}", 3600)
        bed.kill("node1")
        note("round 1 is done; SuperNode 1 was killed in the middle of round 2")
        bed.wait_for(NAME, f"round 2 of {ROUNDS}", 3600)
        note("round 2 closed without it; SuperNode 1 is started again")
        bed.start_node(1)
        bed.start_node(2, name="impostor")
        note("a registered SuperNode claims to be client 2, which it is not")
        bed.wait_for(NAME, f"round 3 of {ROUNDS}", 3600)
        bed.kill("superlink")
        note("round 3 is done; the SuperLink was killed, and the server with it")
        bed.start_superlink()
        note("the SuperLink is started again; the app is run again")
        bed.start_run(app)
        bed.wait_for(NAME, f"complete after {ROUNDS} rounds", 3600)
        note("the run is complete")
        text = bed.server_log(NAME)
        refused = re.findall(r".*Failed to activate SuperNode.*", bed.logs(["stranger"], 10**6))
    print(f"\nthe server's log:\n\n{text}\nthe SuperNode whose key is not registered: {' '.join(refused)}")
    expected = ("rejoined", "continuing after round 3", "which belongs to another node with another key")
    missing = [words for words in expected if words not in text]
    if missing:
        print(f"the log does not contain: {', '.join(missing)}")
    sys.exit(bool(missing) or not refused)


if __name__ == "__main__":
    main()
