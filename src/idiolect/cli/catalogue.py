"""The commands that show methods and partitions, and what they share with the one that shows data."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..contract import Method, Wrapper
from ..contract import methods as registry
from ..core.errors import InputError
from ..core.expressions import write
from ..core.options import OptionInfo, options_of
from ..data import load as load_data
from ..data import save_partition
from ..data.partitions import partitions
from ..report import draw_partition, partition_text
from ..runs.settings import configure
from . import screen
from .formula import readable
from .settings import Json, with_settings


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this method in detail.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one with its options, formula and paper.

    A method is written with its options in brackets, fedprox(mu=0.1), and one that rides on another with that one
    first, finetune(ditto, epochs=2).

    [bold]Examples[/bold]
      idiolect methods
      idiolect methods ditto
      idiolect methods --json
    """
    chosen = [registry.get(name)] if name else [registry.get(each) for each in registry]
    if as_json:
        write_json([described(each) for each in chosen], one=name is not None)
    elif name:
        show_method(chosen[0])
    else:
        heads = ("name", "what it does", "leaves a client", "stays on it", "needs")
        rows = [(c.name, c.title, c.reveals, c.stays, ", ".join(needs(c))) for c in chosen]
        screen.show_table(heads, rows, whole=("name",), text=True)
        screen.paragraph(
            f"{len(chosen)} methods; details: idiolect methods NAME. Wrappers ride on others, as in finetune(ditto).",
            "dim",
        )


def defaults(cls: type) -> str:
    """A class's options with their defaults."""
    return ", ".join(f"{name}={write(info.default)}" for name, info in options_of(cls).items())


def citation(cls: type[Method]) -> str:
    """Authors, venue and year of a method's paper."""
    if cls.paper is None:
        return ""
    authors = cls.paper.authors.split(",")
    return f"{authors[0]}{' et al.' * (len(authors) > 1)}, {cls.paper.venue} {cls.paper.year}"


def described(cls: type[Method]) -> dict[str, Any]:
    """A method as plain values."""
    return {
        "name": cls.name,
        "title": cls.title,
        "kind": cls.kind,
        "paper": cls.paper and cls.paper._asdict(),
        "options": [option(info) for info in options_of(cls).values()],
        "presets": {name: dict(held) for name, held in cls.presets.items()},
        "needs": list(needs(cls)),
        "leaves": cls.reveals,
        "stays": cls.stays,
        "caution": cls.caution,
        "sends": list(sends(cls)),
    }


def needs(cls: type[Method]) -> tuple[str, ...]:
    """What a method needs beyond parameters; a wrapper's needs are those of what it rides on."""
    if issubclass(cls, Wrapper):
        return ()
    built = registry.build(cls.name)
    return (*built.needs, *(("data set aside",) if built.holdout else ()))


def sends(cls: type[Method]) -> tuple[str, ...]:
    """The slots that may leave a client; of a wrapper, those that it adds."""
    return cls.adds if issubclass(cls, Wrapper) else registry.build(cls.name).sends


def option(info: OptionInfo) -> dict[str, Any]:
    """An option as plain values."""
    return {
        "name": info.name,
        "type": info.kind,
        "default": info.default,
        "range": str(info.limits),
        "choices": list(info.limits.choices),
        "help": info.limits.help,
    }


def write_json(held: list[dict[str, Any]], one: bool) -> None:
    """Write JSON, on a terminal with colours; numbers that JSON lacks become text."""
    screen.OUT.print_json(json.dumps(finite(held[0] if one else held)))


def finite(held: Any) -> Any:
    """Plain values without infinities."""
    if isinstance(held, Mapping):
        return {key: finite(each) for key, each in held.items()}
    if isinstance(held, list | tuple):
        return [finite(each) for each in held]
    return str(held) if isinstance(held, float) and not math.isfinite(held) else held


def show_method(cls: type[Method]) -> None:
    """A method in detail."""
    screen.say(f"{cls.name}: {cls.title}", "bold")
    if cls.paper:
        paper = cls.paper
        where = ", ".join(filter(None, [f"{paper.venue} {paper.year}", paper.link]))
        screen.paragraph(f"{paper.authors}: {paper.title}. {where}", "dim")
    screen.say()
    screen.prose(readable(inspect.getdoc(cls) or ""))
    screen.say()
    presets = {name: ", ".join(f"{k}={write(v)}" for k, v in held.items()) for name, held in cls.presets.items()}
    facts = {
        "kind": cls.kind,
        "leaves a client": "; ".join(filter(None, [cls.reveals, cls.caution])),
        "stays on it": cls.stays,
        "slots sent": ", ".join(sends(cls)),
        "needs": ", ".join(needs(cls)),
        "presets": "; ".join(f"{name}: {held or 'the defaults'}" for name, held in presets.items()),
        "identities": "; ".join(f"{ours} is {theirs}" for ours, theirs in cls.identities.items()),
    }
    for head, text in facts.items():
        if text:
            screen.paragraph(f"{head}: {text}")
    screen.say()
    show_options(cls)
    inner = "fedavg, " if cls.kind == "wrapper" else ""
    first = next((f"{n}={write(i.default)}" for n, i in options_of(cls).items() if i.default is not None), "")
    screen.say(f"idiolect run --method '{cls.name}({inner}{first})'".replace("()", "").replace(", )", ")"), "cyan")


def show_options(cls: type) -> None:
    """A table of a class's options."""
    if found := options_of(cls):
        rows = [(name, write(info.default), allowed(info), info.limits.help) for name, info in found.items()]
        screen.show_table(("option", "default", "allowed", "meaning"), rows, whole=("option", "default"), text=True)


def allowed(info: OptionInfo) -> str:
    """What an option may be, in words."""
    if info.limits.choices:
        return ", ".join(map(str, info.limits.choices)) + ", none" * (info.default is None)
    return " in ".join(filter(None, [info.kind, str(info.limits)]))


def first_part(docstring: str) -> str:
    """A docstring without its examples."""
    return docstring.partition(">>>")[0].rstrip()


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
        rows = [(n, cls.summary, defaults(cls)) for n, cls in ((n, partitions.get(n)) for n in partitions)]
        screen.show_table(("partition", "what it does", "options"), rows, whole=("partition",), text=True)
        return
    config = configure(settings)
    federation = load_data(
        config.data,
        partition=config.partition,
        clients=config.clients,
        split=config.split,
        seed=config.seed,
        unseen=config.unseen,
    )
    screen.say(partition_text(federation))
    samples = sum(len(client.indices) for client in federation.clients)
    screen.say(
        f"{federation.name}, {federation.partition}, {len(federation)} clients, {samples:,} samples,"
        f" seed {config.seed}; hash {federation.partition_hash}"
    )
    if picture is not None:
        written(picture, lambda path: draw_partition(federation, path))
    if save is not None:
        written(save, lambda path: save_partition(path, federation))


def written(path: Path, make: Callable[[Path], None]) -> None:
    """Write one file, or say why not."""
    try:
        make(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    screen.say(f"written: {path}")
