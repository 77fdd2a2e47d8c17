"""The command `data`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import idiolect

from ..core.errors import InputError
from ..core.names import visible
from . import screen
from .formula import readable
from .options import options_as_dicts, show_options
from .settings import Json

if TYPE_CHECKING:
    from ..data import Progress as Fetched
    from ..data import Source


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this source in detail; or fetch, and then a name.")
    ] = None,
    wanted: Annotated[str | None, typer.Argument(metavar="[NAME]", help="After fetch: what to download.")] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With fetch: the folder for data; else that of IDIOLECT_DATA.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sources: size, licence, natural groups, the papers that use them, and whether they are here.

    Nothing is ever downloaded by a run; data fetch does it, goes on where an earlier try stopped, and verifies
    checksums. Own data need no source: a function in a file returns them, --data file.py:function (docs/data.md).

    [bold]Examples[/bold]
      idiolect data
      idiolect data mnist
      idiolect data fetch mnist --into data
      idiolect data fetch 'hf(ylecun/mnist)'
    """
    if name == "fetch":
        download(wanted, into)
        return
    if wanted is not None or into is not None:
        raise InputError("one name only; to download a source, write: idiolect data fetch NAME")
    from ..data.sources import sources

    chosen = [sources.build(known) for known in ([name] if name else sources)]
    if as_json:
        facts = [source_as_dict(source) for source in chosen]
        screen.show_json(facts[0] if name else facts)
    elif name:
        show_source(chosen[0])
        screen.prose(readable(without_examples(inspect.getdoc(type(chosen[0])) or "")))
        screen.say()
        show_options(type(chosen[0]))
    else:
        screen.show_groups(group_sources(chosen))
        screen.paragraph("Options, licence, size, and which files to put where: idiolect data NAME", "dim")


def group_sources(known: Iterable[Source]) -> dict[str, list[tuple[str, str]]]:
    """All sources, with how many natural clients they have; own data first, then by what it takes to use them."""
    own = ("file.py:function", "what a function of yours returns (docs/data.md)")
    groups: dict[str, list[tuple[str, str]]] = {
        "own data": [own],
        "on this machine": [],
        "to be fetched, by: idiolect data fetch NAME": [],
        "to be put into the folder IDIOLECT_DATA": [],
    }
    mine, here, fetched, put = groups.values()
    fetchable = idiolect.data.fetchable()
    for source in known:
        group = mine if source.own else here if source.available() else fetched if source.name in fetchable else put
        natural = re.match(r"[\d,]+ \w+", source.groups)
        group.append((source.name, f"{source.title}; {natural[0]}" if natural else source.title))
    return groups


def without_examples(docstring: str) -> str:
    """A docstring up to its examples."""
    return docstring.partition(">>>")[0].rstrip()


def download(name: str | None, into: Path | None) -> None:
    """Download a source's files, with a bar per file on a terminal, else a line."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    if name is None:
        raise InputError(f"what is to be fetched? Sources that can be: {', '.join(idiolect.data.fetchable())}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen.ERR, disable=not screen.ERR.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(news: Fetched) -> None:
            if news.file not in tasks:
                tasks[news.file] = bars.add_task(news.file, total=news.total)
                if not screen.ERR.is_terminal:
                    size = "" if news.total is None else f", {news.total / 1e6:.1f} MB"
                    screen.ERR.print(Text(visible(f"fetching {news.file}{size}")))
            bars.update(tasks[news.file], completed=news.done, total=news.total)

        files = idiolect.data.fetch(name, into, watch)
    for path in files:
        screen.say(f"here: {screen.place(path)}")
    if into is not None:
        screen.say(f"to use it: export IDIOLECT_DATA={into.resolve()}")


def show_source(source: Source) -> None:
    """A source in a few lines."""
    screen.say(source.name, "bold")
    available = source.available()
    facts = {
        "data": f"{source.title}; {source.size}",
        "natural groups": source.groups,
        "licence": source.licence,
        "papers": source.papers,
        "on this machine": "yes" if available else "no",
        "files": source.where() if not available or source.where() != "needs no files" else "",
    }
    for head, text in facts.items():
        if text:
            screen.paragraph(f"  {head}: {text}", indent=4)
    screen.say()


def source_as_dict(source: Source) -> dict[str, Any]:
    """A source as plain values."""
    return {
        "name": source.name,
        "title": source.title,
        "size": source.size,
        "licence": source.licence,
        "natural_groups": source.groups,
        "papers": source.papers,
        "here": source.available(),
        "files": source.where(),
        "options": options_as_dicts(type(source)),
    }
