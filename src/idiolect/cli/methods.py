"""The command `methods`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.expressions import write
from ..core.options import options_of
from . import screen
from .completion import complete_method
from .formula import readable
from .options import options_as_dicts, show_options
from .settings import Json

FIVE = ("fedlag", "flayer", "lgmix", "pfedgate", "fedfac")
CATALOG = Path(__file__).parents[1] / "methods" / "catalog.json"
"""Our methods as plain values, written by `scripts/pages`, so that listing them does not wait for PyTorch."""


def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show this method in detail.", autocompletion=complete_method),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one with its options, formula and paper.

    A method is written with its options in brackets, fedprox(mu=0.1), and one that wraps another with that one first,
    finetune(ditto, epochs=2).

    [bold]Examples[/bold]
      idiolect methods
      idiolect methods ditto
      idiolect methods --json
    """
    if name:
        cls = idiolect.contract.methods.get(name)
        screen.show_json(method_as_dict(cls)) if as_json else show_method(cls)
    elif as_json:
        screen.show_json(list_methods())
    else:
        known = list_methods()
        screen.show_groups(group_methods(known))
        screen.paragraph(f"{len(known)} methods; those with (...) wrap any other, as in finetune(ditto).", "dim")
        screen.paragraph("Options, formula, and what is sent: idiolect methods NAME", "dim")


def group_methods(known: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Methods as they are written and what they do: systems that no other library has, then family by family."""
    groups: dict[str, list[tuple[str, str]]] = {"in no other library": [], "one model for all": []}
    for facts in sorted(known, key=lambda facts: FIVE.index(facts["name"]) if facts["name"] in FIVE else len(FIVE)):
        family = "in no other library" if facts["name"] in FIVE else facts["family"] or "others"
        written = f"{facts['name']}(...)" if facts["kind"] == "wrapper" else facts["name"]
        groups.setdefault(family, []).append((written, facts["title"]))
    return groups


def list_methods() -> list[dict[str, Any]]:
    """All methods as plain values: from the registry where it is loaded or other packages add to it, else from the
    catalogue."""
    if "idiolect.contract.method" in sys.modules or entry_points(group="idiolect.methods"):
        registry = idiolect.contract.methods
        return [method_as_dict(registry.get(name)) for name in registry]
    catalog: list[dict[str, Any]] = json.loads(CATALOG.read_text(encoding="utf-8"))
    return catalog


def citation(cls: type[idiolect.Method]) -> str:
    """Authors, venue and year of a method's paper."""
    paper = paper_of(cls)
    if paper is None:
        return ""
    authors = paper.authors.split(",")
    return f"{authors[0]}{' et al.' * (len(authors) > 1)}, {paper.venue} {paper.year}"


def paper_of(cls: type[idiolect.Method]) -> idiolect.contract.Paper | None:
    """A method's paper, which may be named by its key."""
    paper = cls.about.paper
    if isinstance(paper, str):
        from ..methods.papers import PAPERS

        return PAPERS[paper]
    return paper


def needs(cls: type[idiolect.Method]) -> tuple[str, ...]:
    """What a method needs beyond parameters; a wrapper's needs are those of what it wraps."""
    if issubclass(cls, idiolect.Wrapper):
        return ()
    return idiolect.contract.methods.build(cls.name).needs.describe()


def sends(cls: type[idiolect.Method]) -> tuple[str, ...]:
    """The slots that may leave a client; of a wrapper, those that it adds."""
    built = idiolect.contract.methods.build(cls.name)
    inner = idiolect.engines.slots.sent_names(built.inner) if isinstance(built, idiolect.Wrapper) else ()
    return tuple(name for name in idiolect.engines.slots.sent_names(built) if name not in inner)


def method_as_dict(cls: type[idiolect.Method]) -> dict[str, Any]:
    """A method as plain values."""
    return {
        "name": cls.name,
        "title": cls.about.title,
        "family": cls.about.family,
        "kind": cls.about.kind,
        "paper": paper._asdict() if (paper := paper_of(cls)) else None,
        "options": options_as_dicts(cls),
        "presets": {name: dict(preset) for name, preset in cls.presets.items()},
        "needs": list(needs(cls)),
        "leaves": cls.about.reveals,
        "stays": cls.about.stays,
        "caution": cls.about.caution,
        "sends": list(sends(cls)),
    }


def show_method(cls: type[idiolect.Method]) -> None:
    """A method in detail."""
    screen.say(f"{cls.name}: {cls.about.title}", "bold")
    if paper := paper_of(cls):
        where = ", ".join(filter(None, [f"{paper.venue} {paper.year}", paper.link]))
        screen.paragraph(f"{paper.authors}: {paper.title}. {where}", "dim")
    screen.say()
    screen.prose(readable(inspect.getdoc(cls) or ""))
    screen.say()
    presets = {name: ", ".join(f"{k}={write(v)}" for k, v in preset.items()) for name, preset in cls.presets.items()}
    facts = {
        "kind": ", ".join(filter(None, [cls.about.kind, cls.about.family])),
        "leaves a client": "; ".join(filter(None, [cls.about.reveals, cls.about.caution])),
        "stays on it": cls.about.stays,
        "slots sent": ", ".join(sends(cls)),
        "needs": ", ".join(needs(cls)),
        "presets": "; ".join(f"{name}: {options or 'the defaults'}" for name, options in presets.items()),
        "identities": "; ".join(f"{ours} is {theirs}" for ours, theirs in cls.identities.items()),
    }
    for head, text in facts.items():
        if text:
            screen.paragraph(f"{head}: {text}")
    screen.say()
    show_options(cls)
    screen.say(example(cls), "cyan")


def example(cls: type[idiolect.Method]) -> str:
    """A command that runs a method, with its first option."""
    options = (f"{name}={write(info.default)}" for name, info in options_of(cls).items() if info.default is not None)
    inside = ", ".join(filter(None, ["fedavg" if cls.about.kind == "wrapper" else "", next(options, "")]))
    return f"idiolect run --method '{cls.name}{f'({inside})' if inside else ''}'"
