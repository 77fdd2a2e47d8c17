"""Command-line options derived from the settings of a run: their names, kinds, ranges, defaults and help are those of
`Config`, where they are written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.markup import escape

from ..core.errors import InputError
from ..core.expressions import value, write
from ..core.options import OptionInfo, options_of
from ..core.trust import named_by
from ..runs.settings import OWN, Config, read_config
from .completion import complete_setting

PANELS = {"method": "Method, data and model", "rounds": "Training", "eval_every": "Evaluation and run"}
"""A panel of the help text begins at this setting."""
SHORT = {"method": "-m", "data": "-d"}
WRITTEN = ("config.yaml", "comparison.yaml")
"""The files of settings that runs and comparisons write."""
LINEUP = ("methods", "seeds", "baseline", "skipped", "rates", "budget", "rounds_of")
"""What a comparison's file says beside settings."""

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG.yaml]", help="Settings as 'name: value' lines; options below override them."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        "-o",
        metavar="KEY=VALUE",
        help="Override a setting, last of all; method.NAME is an option of the method.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and results are still shown.")]
JsonLines = Annotated[
    bool, typer.Option("--json-lines", help="Write a JSON object per line, for every round and the result; no tables.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at a time, each in its own process.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="Where runs are carried out: here, or as tasks of a cluster by ray, as in 'ray(cpus=2)'[dim]; default ray"
        " if RAY_ADDRESS names a cluster[/dim].",
    ),
]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="KIND:PLACE", help="Log every round as well: tensorboard:DIR or mlflow:URI."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run code that the folder or file names (file.py:Name), though no run here has used it."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")]


def with_settings(*names: str, without: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each of these settings (all if none is named); those that the user sets reach it
    as the mapping `settings`."""
    chosen = [name for name in options_of(Config) if (name in names or not names) and name not in set(without)]

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [parameter for parameter in declared if parameter.name != "settings"]
        derived = [_parameter(options_of(Config)[name]) for name in chosen]

        @functools.wraps(command)
        def call(**arguments: Any) -> Any:
            settings = {name: arguments.pop(name) for name in chosen}
            return command(
                **arguments, settings={n: _read(n, written) for n, written in settings.items() if written is not None}
            )

        signature = inspect.Signature(
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters + derived]
        )
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
        return call

    return wrap


def _parameter(info: OptionInfo) -> inspect.Parameter:
    kind = next((option_type for option_type in info.types if option_type in (bool, int, float)), str)
    kind = str if tuple in info.types else kind
    flag = "--" + info.name.replace("_", "-")
    option = typer.Option(
        flag,
        *filter(None, [SHORT.get(info.name)]),
        help=_help(info),
        metavar=None if kind is bool else {int: "N", float: "X"}.get(kind, info.name.upper()),
        show_default=False,
        rich_help_panel=_panel(info.name),
        autocompletion=complete_setting(info),
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(info.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(info: OptionInfo) -> str:
    limits = str(info.limits)
    notes = [limits if info.limits.choices else f"in {limits}"] if limits else []
    notes += [] if info.default is None or info.default is False else [f"default {write(info.default)}"]
    return escape(info.limits.help) + (f"[dim]; {escape('; '.join(notes))}[/dim]" if notes else "")


def _panel(name: str) -> str:
    order = list(options_of(Config))
    return [panel for start, panel in PANELS.items() if order.index(start) <= order.index(name)][-1]


def _read(name: str, written: Any) -> Any:
    """A list may be written with commas or spaces; everything else is what it is."""
    if float in options_of(Config)[name].items:
        return value("[" + written.strip("[]() ").replace(",", " ").replace("  ", " ").replace(" ", ", ") + "]")
    return written


def gather_settings(
    path: Path | None, settings: Mapping[str, Any], trust: bool, words: Iterable[str | None] = ()
) -> dict[str, Any]:
    """The settings of a configuration file, if one is given, and over them those of the command line. A file that a run
    wrote may have come from elsewhere: until the command ends, code runs that is named on the command line (in
    settings or other `words`), or is known, or trusted. A file that the user wrote is his own word."""
    if path is None:
        return dict(settings)
    if path.name in WRITTEN:
        own = [text for text in (*settings.values(), *words) if isinstance(text, str)]
        click.get_current_context().with_resource(named_by(path, trust, own))
    return {**read_settings(path), **settings}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a configuration file."""
    from ..contract import methods

    if not path.exists():
        options = {name for param in click.get_current_context().command.params for name in param.opts}
        option = "--method" if "--method" in options else "--methods"
        hint = f"; to choose the method, write: {option} {path}" if str(path).partition("(")[0] in methods else ""
        raise InputError(f"there is no configuration file {path}{hint}")
    values = read_config(path)
    if objects := [name for name, value in values.items() if value == OWN]:
        raise InputError(f"{path} is of a run with own {', '.join(objects)} given in Python; it can only be run there")
    return values


def without_method(config: Config) -> dict[str, Any]:
    """The settings that several methods share."""
    return {name: value for name, value in config.as_dict().items() if name != "method"}
