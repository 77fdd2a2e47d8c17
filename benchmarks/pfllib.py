"""Whole rounds of users' methods beside PFLlib, which is taken from a folder that you give; nothing of it is here.

    git clone https://github.com/TsingZ0/PFLlib
    python benchmarks/pfllib.py --pfllib PFLlib
    python benchmarks/pfllib.py --pfllib PFLlib --methods "FedAvg, Ditto" --clients 20 --pairs 3 --python env/bin/python

Both train the same module on the same data, with the same batches per round and an evaluation of all clients, and take
turns round by round. PFLlib's own options keep their defaults. It was written by PFLlib's public layout
(`system/main.py`, `system/flcore/servers`) and has not been run where this was made.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

METHODS = {  # ours by the name of PFLlib's server, which is in a module of its own
    "FedAvg": ("serveravg", "fedavg"),
    "Ditto": ("serverditto", "ditto"),
    "FedPer": ("serverper", "fedper"),
    "FedRep": ("serverrep", "fedrep"),
    "FedALA": ("serverala", "fedala"),
    "APFL": ("serverapfl", "apfl"),
    "pFedMe": ("serverpFedMe", "pfedme"),
    "FedAMP": ("serveramp", "fedamp"),
    "SCAFFOLD": ("serverscaffold", "scaffold"),
}
SPLIT = ("FedAvg", "FedPer", "FedRep")  # whose models PFLlib wants as a base and a head
CHOICES = "MLP b32, LeNet-5w b32"


class Split(nn.Module):
    """A network as PFLlib wants it: a base, and a last layer that is called `fc`."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        *layers, self.fc = network
        self.base = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.fc(self.base(x))
        return logits


class PFLlib:
    """A server of PFLlib in a process of its own, as a contestant."""

    def __init__(self, python: str, folder: Path, method: str, work: str, clients: int) -> None:
        here = Path(__file__).resolve()
        command = [python, here, "--pfllib", folder, "--serve", method, "--only", work, "--clients", str(clients)]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder / "system"
        )

    def round(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"PFLlib ended with exit code {self.process.wait()}; its message is above")
        return float(line)

    def close(self) -> None:
        """Stop the process."""
        self.process.terminate()
        self.process.wait()


def read_defaults(main: Path) -> dict[str, Any]:
    """The defaults of PFLlib's command line, from its source, which is not executed."""
    defaults: dict[str, Any] = {}
    for node in ast.walk(ast.parse(main.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = [each.value for each in node.args if isinstance(each, ast.Constant)]
            name = next(str(flag) for flag in reversed(flags) if str(flag).startswith("--"))
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            try:
                value = ast.literal_eval(given["default"]) if "default" in given else None
            except ValueError:
                value = None
            defaults[name.removeprefix("--")] = value
    return defaults


def serve(folder: Path, method: str, name: str, clients: int) -> None:
    """Do a round for each line on the standard input, and answer with its seconds."""
    from workload import LR, federation, find_work, network

    answers, sys.stdout = sys.stdout, sys.stderr  # PFLlib prints what it does
    work = find_work(name)
    data = federation(work, clients)
    sys.path.insert(0, str(folder / "system"))
    utils = importlib.import_module("utils.data_utils")

    def read_client_data(_: str, index: int, is_train: bool = True, *__: Any, **___: Any) -> list[Any]:
        x, y = data.clients[index].split("train" if is_train else "test")
        return list(zip(x, y, strict=True))

    utils.read_client_data = read_client_data  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = Split(network(work, data))
    facts = read_defaults(folder / "system" / "main.py")
    facts |= {"device": "cpu", "model": model, "algorithm": method, "num_clients": clients, "num_classes": 10}
    facts |= {"global_rounds": 10**9, "local_epochs": 1, "batch_size": work.batch, "local_learning_rate": LR}
    facts |= {"join_ratio": 1.0, "eval_gap": 1, "dataset": "MNIST"}
    if method in SPLIT:
        models: Any = importlib.import_module("flcore.trainmodel.models")
        facts["head"], model.fc = model.fc, nn.Identity()
        facts["model"] = models.BaseHeadSplit(model, facts["head"])
    server: Any = importlib.import_module(f"flcore.servers.{METHODS[method][0]}")
    server = getattr(server, method)(argparse.Namespace(**facts), 0)
    select, started = server.select_clients, [0.0]

    def select_clients() -> Any:
        """Every round begins with it: report the last one, and wait until the next is wanted."""
        if started[0]:
            print(time.perf_counter() - started[0], file=answers, flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        started[0] = time.perf_counter()
        return select()

    server.select_clients = select_clients
    server.train()


def check_folder(folder: Path) -> Path:
    """The folder, if it is one of PFLlib."""
    wanted = ("system/main.py", "system/flcore/servers/serverbase.py", "system/utils/data_utils.py")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"{folder} is no checkout of PFLlib: there is no {missing[0]} in it; give --pfllib its folder")
    return folder.resolve()


def main() -> None:
    """Let PFLlib and this library take turns; print a table, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfllib", type=Path, metavar="DIR", required=True, help="a checkout of PFLlib")
    parser.add_argument("--methods", default=", ".join(METHODS), help="by PFLlib's names")
    parser.add_argument("--only", default=CHOICES, help="workloads by name")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--python", default=sys.executable, help="the Python of an environment with what PFLlib needs")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--serve", metavar="METHOD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder, names = check_folder(options.pfllib), [name.strip() for name in options.methods.split(",")]
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"there is no method {unknown[0]!r} to compare; there are {', '.join(METHODS)}")
    if options.serve:
        return serve(folder, options.serve, options.only, options.clients)
    from ours import Ours, make_plan
    from ratios import interleaved, ratio, show
    from workload import federation, find_work, network

    for text in options.only.split(","):
        work, rows = find_work(text.strip()), []
        data = federation(work, options.clients)
        engine = "vector" if work.model.startswith("mlp") else "workers"
        for name in names:
            torch.manual_seed(0)
            ours = Ours(make_plan(network(work, data), data, work.batch, METHODS[name][1]), engine)
            peer = PFLlib(options.python, folder, name, work.name, options.clients)
            seconds = interleaved({"PFLlib": peer, "this": ours}, options.pairs)
            rows.append({"": name, **ratio(seconds["PFLlib"], seconds["this"])})
            peer.close()
            ours.close()
        title = f"{work.name}, {options.clients} clients, {options.pairs} pairs: PFLlib's rounds over ours"
        show(title, rows, options.out / f"pfllib {work.name}.json")
    return None


if __name__ == "__main__":
    main()
