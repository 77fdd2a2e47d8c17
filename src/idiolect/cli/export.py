"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import idiolect

from ..core.errors import InputError, RunFolderError
from . import screen
from .settings import Trust

if TYPE_CHECKING:
    from ..runs.export import Personal


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or a client's own of a deployment.")],
    client: Annotated[
        str | None, typer.Option("--client", "-c", metavar="NAME", help="Which client of a run, by its name.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", metavar="N", help="Which client, by its position from 0 on.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--global", help="The shared model itself instead of a client's, where there is one.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Every client's model, in a folder of its own each.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder[dim]; default model-CLIENT, shared-model or models[/dim]."),
    ] = None,
    formats: Annotated[
        str,
        typer.Option("--format", "-f", metavar="LIST", help="Split at commas: safetensors, torch, torchscript, onnx."),
    ] = "safetensors",
    last: Annotated[bool, typer.Option("--last", help="The last round's model, not the selected one.")] = False,
    app: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The Flower app, where a deployment has its own data or model.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a client's personal model, or the shared one, as files, with a card that says what it is.

    The card names the method, the rounds, the scores on that client's data and the configuration. The safetensors file
    holds it as well, and idiolect.load_model opens it without run and data. Models come from the folder of a run, or on
    a client's machine from the folder in which it keeps its model.

    [bold]Examples[/bold]
      idiolect export runs/ditto-heart-0 --client cleveland
      idiolect export runs/ditto-digits-0 --position 3 --format safetensors,torch,onnx
      idiolect export runs/ditto-digits-0 --all --out models
      idiolect export runs/ditto-digits-0 --global
      idiolect export ~/.idiolect/my-federation/client-0 --app my-federation
    """
    from ..runs.export import export as write_model
    from ..runs.export import export_all

    chosen = [name.strip() for name in formats.split(",")]
    if every:
        if client is not None or position is not None or shared:
            raise InputError("--all exports every client's model; leave --client, --position and --global out")
        if not (folder / "config.yaml").is_file():
            raise RunFolderError(f"{folder} holds no run; --all needs the folder of one")
        with screen.doing("writing all models"):
            made = export_all(idiolect.load(folder, trust=trust), out or Path("models"), chosen, last)
        screen.say(f"wrote {len(made)} models into {screen.place(made[0].parent)}")
        return
    with screen.doing("opening the model"):
        personal = find_model(folder, client, position, shared, last, app, trust)
    target = out or Path(personal.folder_name)
    with screen.doing("writing the model"):
        written = write_model(personal, target, chosen)
    for path in written:
        screen.say(f"wrote {screen.place(path)}")


def find_model(
    folder: Path, client: str | None, position: int | None, shared: bool, last: bool, app: Path | None, trust: bool
) -> Personal:
    """The model that is asked for."""
    from ..flower.folders import MODEL_FILE
    from ..flower.personal import load_personal_model, load_project
    from ..runs.export import personal_of, shared_of

    if (folder / MODEL_FILE).is_file():
        if shared:
            raise InputError(f"{folder} holds a client's own model; --global needs the folder of a run")
        return load_personal_model(folder, None if app is None else load_project(app), last, trust)
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{folder} holds neither a run nor a client's model; give the folder of one of them")
    if [client is not None, position is not None, shared].count(True) != 1:
        raise InputError(
            "which model? Give a client's name, as in --client ward-3, or its position, --position 0, or --global for "
            "the shared model, or --all; one of them"
        )
    result, which = idiolect.load(folder, trust=trust), position if client is None else client
    return shared_of(result, last) if which is None else personal_of(result, which, last)
