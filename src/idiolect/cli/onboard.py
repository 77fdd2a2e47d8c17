"""The command `onboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import idiolect

from ..core.errors import InputError, RunFolderError
from ..core.tables import compact
from . import screen
from .settings import Trust


def onboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="DATA", help="The new clients: a source, or file.py:function.")
    ],
    client: Annotated[
        str | None, typer.Option("--client", "-c", metavar="NAME", help="Only this one of the new clients.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the models of the new clients.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="From the last round, not the selected one.")] = False,
    trust: Trust = False,
) -> None:
    """Give clients that took no part in a run their personal models, with their scores.

    Each gets the model that the method gives to unseen clients, and trains on its own data what the method lets such a
    client train. Data without natural groups are one client. The run stays as it is.

    [bold]Examples[/bold]
      idiolect onboard runs/fedrep-digits-0 --data ward.py:load
      idiolect onboard runs/fedrep-digits-0 --data ward.py:load --out models
    """
    from ..runs.folder import require_free
    from ..runs.onboarding import onboard as give_model
    from ..runs.onboarding import read_clients
    from ..runs.reading import name_model_file

    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{folder} holds no run; give the folder of one")
    if out is not None:
        require_free(out, "exists and is not empty", "choose another folder for the models with --out")
    with screen.doing("reading the run and the data"):
        result = idiolect.load(folder, trust=trust)
        found = read_clients(result.plan.data, data, result.config.split, result.config.seed)
    chosen = [each for each in found if client in (None, each.name)]
    if not chosen:
        names = [each.name for each in found]
        raise InputError(f"{data} has no client {client!r}; there is {', '.join(names[:5])}")
    if taken := [each.name for each in chosen if each.name in result.clients()]:
        raise InputError(f"{data} has a client {taken[0]!r}, as the run has; give clients that took no part in it")
    rows = []
    for number, each in enumerate(chosen):
        with screen.doing(f"training for {each.name} ({number + 1} of {len(chosen)})"):
            newcomer = give_model(result, each, round=-1 if last else None)
            scores = newcomer.scores().to_dicts()
        for row in scores:
            rows.append([newcomer.name, row["point"], str(row["samples"]), compact(row[result.metric], 4)])
        if out is not None:
            newcomer.save(out / name_model_file(number, newcomer.name))
    screen.show_table(["client", "point", "test samples", result.metric], rows)
    if out is not None:
        screen.say(f"wrote {len(chosen)} models into {screen.place(out)}")
