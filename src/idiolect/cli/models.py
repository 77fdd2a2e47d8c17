"""The command `models`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .data import without_examples
from .formula import readable
from .options import list_defaults, options_as_dicts, show_options
from .settings import Json

if TYPE_CHECKING:
    from ..models.networks import Network


def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this network in detail.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks, or show one with its options.

    A network is made to fit the data. Own networks need no name here: a class or a function in a file is
    --model file.py:Net (docs/data.md).

    [bold]Examples[/bold]
      idiolect models
      idiolect models mlp
    """
    from ..models import models as known

    chosen = [known.get(each) for each in ([name] if name else known)]
    if as_json:
        facts = [network_as_dict(network) for network in chosen]
        screen.show_json(facts[0] if name else facts)
    elif name:
        show_network(chosen[0])
    else:
        own = ("file.py:Net", "a class of yours, or a function that returns an nn.Module")
        listed = [(network.name, describe_network(network)) for network in chosen]
        screen.show_groups({"own networks": [own], "by name": listed})
        screen.paragraph("Options, and where it comes from: idiolect models NAME", "dim")


def describe_network(network: type[Network]) -> str:
    """What a network is, and its options with their defaults."""
    options = list_defaults(network)
    return f"{network.title} ({options})" if options else network.title


def show_network(network: type[Network]) -> None:
    """A network in detail."""
    screen.say(f"{network.name}: {network.title}", "bold")
    if network.papers:
        screen.paragraph(network.papers, "dim")
    screen.say()
    screen.prose(readable(without_examples(inspect.getdoc(network) or "")))
    screen.say()
    show_options(network)


def network_as_dict(network: type[Network]) -> dict[str, Any]:
    """A network as plain values."""
    return {
        "name": network.name,
        "title": network.title,
        "papers": network.papers,
        "options": options_as_dicts(network),
    }
