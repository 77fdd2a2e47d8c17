"""The command `partition`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.errors import InputError
from . import screen
from .options import list_defaults
from .settings import with_settings


@with_settings("data", "partition", "clients", "unseen", "split", "seed")
def partition(
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw clients against classes: .png, .svg or .pdf.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write who holds what; --partition file:FILE.json uses it.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the partitions and their options.")] = False,
    settings: Any = None,
) -> None:
    """Show which client holds how much of which class.

    The same data, partition, number of clients and seed always give the same picture; the hash names it.

    [bold]Examples[/bold]
      idiolect partition --data digits --partition dirichlet:0.1 --clients 20
      idiolect partition --partition pathological:2 --picture clients.png
      idiolect partition --partition iid --save iid.json
      idiolect partition --list
    """
    if listing:
        list_partitions()
        return
    from ..report import draw_partition, partition_text
    from ..runs.setup import resolve_data
    from .training import make_reporter

    config = idiolect.runs.configure(settings)
    with make_reporter(quiet=False):
        federation = resolve_data(config, {})
    screen.say(partition_text(federation))
    samples = sum(len(client.indices) for client in federation.clients)
    screen.say(
        f"{federation.name}, {federation.partition}, {len(federation)} clients, {samples:,} samples,"
        f" seed {config.seed}; hash {federation.partition_hash}"
    )
    if picture is not None:
        write_file(picture, lambda path: draw_partition(federation, path))
    if save is not None:
        write_file(save, lambda path: idiolect.data.save_partition(path, federation))


def list_partitions() -> None:
    """A table of the partitions and their options."""
    from ..data.partitions import partitions

    classes = {name: partitions.get(name) for name in partitions}
    rows = [(name, cls.summary, list_defaults(cls)) for name, cls in classes.items()]
    screen.show_table(("partition", "what it does", "options"), rows, whole=("partition",), text=True)


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write one file, or say why not."""
    try:
        write(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    screen.say(f"written: {path}")
