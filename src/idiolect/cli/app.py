"""The application: commands put together, and errors turned into one sentence and an exit code.

Commands import what they run when they are called, so that help costs no PyTorch."""

from __future__ import annotations

import functools
import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer
from typer.core import TyperArgument, TyperOption

from .. import __version__
from ..core.allocator import tune_allocator
from ..core.errors import IdiolectError, TrainingError
from . import screen
from .advise import advise
from .compare import compare
from .data import data
from .demo import demo
from .deploy import deploy
from .export import export
from .figures import figures
from .methods import methods
from .models import models
from .onboard import onboard
from .partition import partition
from .report import report
from .reproduce import reproduce
from .resume import resume
from .run import run
from .table import table
from .tune import tune
from .watch import watch

TRAINING_ERROR, INPUT_ERROR = 1, 2
SUGGESTED_TWICE = re.compile(r"(Did you mean [^?]*\?)(?: \1)+")
"""Newer versions of Click suggest what Typer has suggested."""

app = typer.Typer(
    name="idiolect",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def unwrap(text: str) -> str:
    """A help text whose paragraphs are wrapped by the terminal; indented lines stay lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(text))


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (demo, advise),
    "Train": (run, compare, resume, tune, watch, reproduce),
    "Report": (report, figures, table),
    "Use": (export, onboard, deploy),
    "Look around": (methods, data, models, partition),
}
LIGHT = (methods,)


def loading(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says that it loads PyTorch before it does anything else."""

    @functools.wraps(command)
    def loaded(*args: Any, **options: Any) -> None:
        screen.load_torch()
        command(*args, **options)

    return loaded


for _panel, _commands in PANELS.items():
    for _command in _commands:
        _ready = _command if _command in LIGHT else loading(_command)
        app.command(help=unwrap(_command.__doc__ or ""), rich_help_panel=_panel)(_ready)


@app.callback(invoke_without_command=True)
def overview(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-v", help="Show the version and end.")] = False,
) -> None:
    """Personalized federated learning: many clients share a model, and each speaks its own version of it.

    [bold]Examples[/bold]
      idiolect demo
      idiolect run --method 'ditto(lam=0.5)' --data digits --clients 20
      idiolect compare --methods 'local, fedavg, ditto' --seeds 3 --out results/a

    Every command explains itself: idiolect run --help
    """
    if version:
        typer.echo(f"idiolect {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
    else:
        return
    raise typer.Exit


def command() -> click.Command:
    """The application as a Click command, with `--debug` everywhere."""
    built = typer.main.get_command(app)
    for part in (built, *getattr(built, "commands", {}).values()):
        debug = TyperOption(
            param_decls=["--debug"], is_flag=True, expose_value=False, help="Show where an error happened."
        )
        part.params.append(debug)
        for argument in part.params:  # newer versions of Click lose what Typer says about arguments
            if isinstance(argument, TyperArgument) and argument.name:
                annotation = inspect.signature(part.callback, eval_str=True).parameters[argument.name].annotation
                argument.help = next(info.help for info in annotation.__metadata__)
    return built


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 nothing that clients sent could be used, 2 something given cannot be
    used, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    screen.prepare()
    tune_allocator()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a command ends alike, whoever asks it to
    sys.exit(run_command(words, debug="--debug" in words))


def run_command(arguments: list[str], debug: bool) -> int:
    """Run a command and return its exit code."""
    try:
        code: Any = command().main(arguments, prog_name="idiolect", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.Abort:
        return screen.INTERRUPTED
    except click.ClickException as error:
        screen.complain(SUGGESTED_TWICE.sub(r"\1", error.format_message()))
        if isinstance(error, click.UsageError) and error.ctx is not None:
            screen.ERR.print(f"try: {error.ctx.command_path} --help", style="dim")
        return INPUT_ERROR
    except IdiolectError as error:
        if debug:
            raise
        screen.complain("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return TRAINING_ERROR if isinstance(error, TrainingError) else INPUT_ERROR
    except OSError as error:
        if debug:
            raise
        screen.complain(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")
        return INPUT_ERROR
