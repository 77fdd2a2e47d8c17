"""What a round costs with Flower beyond the training itself, and where the time goes: a SuperLink with TLS and two
SuperNodes on this machine against the `loop` engine.

    python benchmarks/flower_overhead.py [--rounds 4]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from flower_methods import SETTINGS

import idiolect
from idiolect.flower.testbed import Testbed, write_named_app

CLIENTS = 2
IMPORTS = ("flwr.clientapp, flwr.supernode.runtime.run_clientapp", "torch", "torch, idiolect.flower")


def cpu_seconds(modules: str) -> float:
    """The processor time of a process that imports something."""
    code = f"import time, {modules}; print(time.process_time())"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(each.stdout) for each in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    settings = {"clients": CLIENTS, "rounds": args.rounds, "eval_every": args.rounds}
    with tempfile.TemporaryDirectory() as root, Testbed(Path(root) / "bed") as bed:
        deployment = {"method": "fedavg", "federation": "cost", "wait": 600.0}
        app = write_named_app(Path(root) / "app", SETTINGS | settings | deployment)
        for index in range(CLIENTS):
            bed.start_node(index)
        bed.start_run(app)
        log = bed.wait_for("cost", "complete after", 3600)
    rounds = [float(each) for each in re.findall(r"round \d+ of .*, ([\d.]+) s", log)][:-1]
    first, last = (datetime.fromisoformat(line[:19]) for line in (log.splitlines()[0], log.splitlines()[-1]))
    started = time.perf_counter()
    idiolect.run("fedavg", engine="loop", **(SETTINGS | settings))
    loop = (time.perf_counter() - started) / args.rounds
    flower, torch_only, everything = (cpu_seconds(each) for each in IMPORTS)
    print(f"a round of training with {CLIENTS} clients")
    print(f"  loop engine                       {loop:8.3f} s")
    print(
        f"  Flower                            {sum(rounds) / len(rounds):8.3f} s  ({(last - first).seconds} s in all)"
    )
    print("processor time of the process that Flower starts for every message")
    print(f"  imports of Flower                 {flower:8.3f} s")
    print(f"  import of torch                   {torch_only:8.3f} s")
    print(f"  the rest of Idiolect's imports    {everything - torch_only:8.3f} s")


if __name__ == "__main__":
    main()
