"""The command `deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from . import screen


def deploy(
    action: Annotated[str, typer.Argument(metavar="init|hash", help="What to do with an app: write one, or hash it.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder; a new one for init.")],
) -> None:
    """Write a Flower app, to train over a network with real clients, or print its hash.

    Edit two functions in it (load my data, build my model), then run it with Flower's own commands; its README.md says
    how, and docs/deploy.md goes from start to finish for several machines. The hash is what a client agrees to run.

    [bold]Example[/bold]
      idiolect deploy init my-federation
      idiolect deploy hash my-federation
    """
    from ..flower.apps import require_flower
    from ..flower.supernode import hash_app
    from ..flower.template import write_app

    if action not in ("init", "hash"):
        raise InputError(
            f"there is no action {action!r}; write: idiolect deploy init {folder}, or deploy hash {folder}"
        )
    if action == "hash":
        require_flower()
        screen.say(hash_app(folder))
        return
    for path in write_app(folder):
        screen.say(f"wrote {screen.place(path)}")
    screen.paragraph(f"edit {folder / 'federation.py'}, then follow {folder / 'README.md'}", "dim")
