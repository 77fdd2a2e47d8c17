"""Other people's simulators on the same workload, each in an environment of its own.

python benchmarks/peers.py      makes the environment of pfl 0.6.0
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

from workload import Work

PFL = "pfl[pytorch]==0.6.0"
ENVIRONMENTS = Path(os.environ.get("IDIOLECT_BENCH_ENVS", "results/bench/environments"))


def pfl_environment() -> Path:
    """The Python of an environment with pfl, made on first use."""
    folder = ENVIRONMENTS / "pfl"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"setting up {PFL} in {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        torch = "torch==2.13.0"  # first and again, so that nothing replaces it
        for packages in ([torch], [PFL, torch]):
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, stderr=subprocess.DEVNULL)
        (folder / "ready").touch()
    return python.absolute()


class Pfl:
    """Whole rounds of pfl: training, aggregation and evaluation of the global model, as a contestant."""

    def __init__(self, work: Work, clients: int) -> None:
        script = Path(__file__).with_name("pfl_rounds.py")
        command = [pfl_environment(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
        arguments = [work.model, json.dumps(work.shape), str(work.batch), str(clients)]
        quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PFL_PYTORCH_DEVICE": "cpu"}
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=quiet,
        )
        self._until("ready")

    def round(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        seconds = float(self._line())
        self._until("ready")
        return seconds

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"pfl ended with exit code {self.process.wait()}")
        return line.strip()

    def _until(self, wanted: str) -> None:
        while self._line() != wanted:
            pass

    def close(self) -> None:
        """Stop the processes."""
        self.process.terminate()
        self.process.wait()


if __name__ == "__main__":
    sys.stdout.write(f"{pfl_environment()}\n")
