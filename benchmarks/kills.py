"""Kill runs at random moments, resume them, and compare the end with that of a run that nobody touched, bit by bit.

    python benchmarks/kills.py --kills 50
    python benchmarks/kills.py --kills 10 --data "mnist(samples=600)" --model cnn4 --engine workers     compiled kernels

Each case is a method on an engine; it is killed with SIGKILL (the whole process group) after a random time, resumed,
killed again, and resumed to its end. What must be equal: the server's slots, every client's slots, and all metrics.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from pathlib import Path

from disturb import LIMIT, draw_moments, measure, start, states

METHODS = (
    "fedavg",
    "ditto",
    "fedlag(warmup=1)",
    "flayer",
    "lgmix",
    "pfedgate",
    "fedfac",
    "scaffold",
    "fedfomo",
    "fedem",
)
ENGINES = ("loop", "workers(count=2)", "vector(chunk=4, count=2)")
KILLS_PER_CASE = 2
SETTINGS = ["--clients", "8", "--rounds", "12", "--participation", "0.5", "--quiet"]


def main() -> None:
    """Kill, resume, compare; end with an error if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="", help="by default what suits the data")
    parser.add_argument("--engine", default="", help="by default three of them in turn")
    options = parser.parse_args()
    draw, done, differ = random.Random(options.seed), 0, 0
    cases = itertools.cycle((m, e) for e in ([options.engine] if options.engine else ENGINES) for m in METHODS)
    while done < options.kills:
        method, engine = next(cases)
        with tempfile.TemporaryDirectory() as place:
            whole, broken = Path(place) / "whole", Path(place) / "broken"
            settings = ["--method", method, "--engine", engine, "--data", options.data, *SETTINGS]
            settings += ["--model", options.model] if options.model else []
            said = Path(place) / "said"
            usual, kills = measure(said, "run", *settings, "--out", str(whole)), 0
            next_one = ["run", *settings, "--out", str(broken)]
            for limit in [*draw_moments(draw, usual, KILLS_PER_CASE), LIMIT]:
                if not start(said, *next_one).kill_after(limit):
                    break
                kills += 1
                if (broken / "config.yaml").exists():
                    next_one = ["resume", str(broken), "--quiet"]
            same = states(whole) == states(broken)
            done, differ = done + kills, differ + (not same)
            print(
                f"{done:3d} kills  {method} on {engine}: {kills} here, {'equal' if same else 'DIFFERENT'}", flush=True
            )
    print(f"{done} kills, {differ} runs that differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
