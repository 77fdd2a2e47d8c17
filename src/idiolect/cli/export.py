"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import idiolect

from ..core.errors import InputError, RunFolderError
from . import screen

if TYPE_CHECKING:
    from ..runs.export import Personal


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or a client's own of a deployment.")],
    client: Annotated[
        str | None, typer.Option("--client", "-c", metavar="CLIENT", help="Which client of a run: its number or name.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the model[dim]; default model-CLIENT[/dim].")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", "-f", metavar="LIST", help="Split at commas: safetensors, torchscript, onnx.")
    ] = "safetensors",
    last: Annotated[bool, typer.Option("--last", help="The last round's model, not the selected one.")] = False,
    app: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The Flower app, where a deployment has its own data or model.")
    ] = None,
) -> None:
    """Write a client's personal model as files, with a card that says what it is.

    The card names the method, the rounds, the scores on that client's data and the configuration. Models come from the
    folder of a run, or on a client's machine from the folder in which it keeps its model.

    [bold]Examples[/bold]
      idiolect export runs/ditto-digits-0 --client 3
      idiolect export runs/ditto-digits-0 -c 3 --format safetensors,torchscript,onnx --out model
      idiolect export ~/.idiolect/my-federation/client-0 --app my-federation
    """
    from ..runs.export import export as write_model

    personal = find_model(folder, client, last, app)
    target = out or Path(f"model-{personal.plan.data.clients[personal.index].name}")
    for path in write_model(personal, target, [name.strip() for name in formats.split(",")]):
        screen.say(f"wrote {screen.place(path)}")


def find_model(folder: Path, client: str | None, last: bool, app: Path | None) -> Personal:
    """The model that is asked for."""
    from ..flower.folders import MODEL_FILE
    from ..flower.personal import load_personal_model, load_project
    from ..runs.export import personal_of

    if (folder / MODEL_FILE).is_file():
        return load_personal_model(folder, None if app is None else load_project(app), last)
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{folder} holds neither a run nor a client's model; give the folder of one of them")
    if client is None:
        raise InputError("which client's model? Give its number or name, as in --client 0")
    return personal_of(idiolect.load(folder), int(client) if client.isdigit() else client, last)
