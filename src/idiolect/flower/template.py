"""The files of a new Flower app: a Python file with two functions to edit, the settings, and how to run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import RunFolderError
from ..core.files import write_whole
from ..core.options import options_of
from ..runs.settings import Config
from .settings import Deployment

APP = '''"""A federation: edit the two functions below. The settings are in pyproject.toml."""

from typing import Any

from torch import nn

from idiolect.data import load
from idiolect.flower import Project, client_app, server_app


def load_data(client: int) -> Any:
    """Edit me (1 of 2): the data of one client, read on its own machine; they never leave it.

    Return (x, y) as tensors or arrays, a PyTorch data set, or a mapping with "train" and, if you like, "val" and
    "test", each of them one of the two; or a table, as in "csv(visits.csv, client=none,
    target=died)". `client` is the number that the SuperNode was started with.
    """
    digits = load("digits", partition="dirichlet:0.5", clients={clients})
    return {{split: digits.clients[client].split(split) for split in ("train", "val", "test")}}


def build_model() -> nn.Module:
    """Edit me (2 of 2): the network, the same on all machines. Its random initial weights follow the seed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


project = Project(load_data, build_model)
client = client_app(project)
server = server_app(project)
'''

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Personalized federated learning with Idiolect"
license = "Apache-2.0"
# Idiolect and PyTorch are installed on every machine beforehand; Flower need not install them.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "idiolect"

[tool.flwr.app.components]
serverapp = "federation:server"
clientapp = "federation:client"

# Settings of the run, as in `idiolect run`, then of the deployment. Any other setting of `idiolect run` may be added;
# override one with: flwr run . --run-config 'rounds=5'
[tool.flwr.app.config]
{settings}
"""

README = """# {name}

1. Edit `load_data` and `build_model` in `federation.py`, and the settings in `pyproject.toml`.
2. Install on every machine: `pip install "idiolect[flower]"`.
3. Set in every terminal, on every machine:

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1

To try it on one machine, start a SuperLink and three SuperNodes, each in its own terminal:

    flower-superlink --insecure
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 --node-config 'client=0'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9095 --node-config 'client=1'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9096 --node-config 'client=2'

In `~/.flwr/config.toml`:

    [superlink.here]
    address = "127.0.0.1:8000"
    insecure = true

Then run it: `flwr run . here --stream`. Flower's simulation runtime needs no SuperNodes:

    pip install "flwr[simulation]==1.41.*"
    flwr federation simulation-config @none/default local --num-supernodes 3
    flwr run . local --stream

The server's results are in `~/.idiolect/{name}/server`, a client's state and model in `~/.idiolect/{name}/client-0`
(or below IDIOLECT_HOME if that is set). Export a client's model on its machine:

    idiolect export ~/.idiolect/{name}/client-0 --app . --out my-model

If you run the app again, it continues after its last round. All this is for one machine: who reaches the SuperLink's
port can run code on the server and on every client, so the app refuses to run where others can. For several machines,
with TLS, authentication and clients that run only the app they agreed to, see docs/deploy.md of Idiolect.
"""

SHOWN = (
    "method", "clients", "rounds", "participation", "local_epochs", "batch_size", "lr", "optimizer", "schedule",
    "eval_every", "unseen", "seed", "save_models",
)  # fmt: skip
CLIENTS = 3


def write_app(folder: Path) -> list[Path]:
    """Write a new Flower app; the files.

    Args:
        folder: the app's folder, which must be empty or not exist yet.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists and is not empty; choose another folder for the new app")
    name = "".join(char if char.isalnum() else "-" for char in folder.resolve().name.lower()).strip("-") or "federation"
    files = {
        "federation.py": APP.format(clients=CLIENTS),
        "pyproject.toml": PYPROJECT.format(name=name, settings=write_settings(name)),
        "README.md": README.format(name=name),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        write_whole(folder / file, lambda part, text=text: part.write_text(text))  # type: ignore[misc]
    return [folder / file for file in files]


def write_settings(name: str) -> str:
    """Write the settings of a new app as TOML, each with its help."""
    chosen: dict[str, Any] = {"method": "ditto", "clients": CLIENTS, "rounds": 10, "federation": name, "classes": 10}
    options = {setting: options_of(Config)[setting] for setting in SHOWN} | options_of(Deployment)
    lines = []
    for setting, info in options.items():
        lines += [f"# {info.limits.help}", f"{setting} = {json.dumps(chosen.get(setting, info.default))}"]
    return "\n".join(lines)
