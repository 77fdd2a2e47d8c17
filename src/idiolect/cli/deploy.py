"""The command `deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from . import screen


def deploy(
    action: Annotated[str, typer.Argument(metavar="init", help="What to do; init writes a new app.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
) -> None:
    """Write a Flower app, to train over a network with real clients.

    Edit two functions in it (load my data, build my model), then run it with Flower's own commands; its README.md says
    how, and docs/deploy.md goes from start to finish for several machines.

    [bold]Example[/bold]
      idiolect deploy init my-federation
    """
    from ..flower.template import write_app

    if action != "init":
        raise InputError(f"there is no action {action!r}; write: idiolect deploy init {folder}")
    for path in write_app(folder):
        screen.say(f"wrote {screen.place(path)}")
    screen.paragraph(f"edit {folder / 'federation.py'}, then follow {folder / 'README.md'}", "dim")
