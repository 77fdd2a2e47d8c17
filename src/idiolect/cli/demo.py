"""The command `demo`: its federation, methods and learning rates are in demo.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.errors import MissingExtraError
from . import screen
from .report import report
from .settings import Quiet

SETTINGS = Path(__file__).with_name("demo.yaml")


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of the results; a finished demo is shown from it at once.")
    ] = Path("results/demo"),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, metavar="N", help="Runs at a time[dim]; default one per core, up to 4[/dim]."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """See what personalization gains: a small comparison on real data, in about two minutes.

    Twenty-five clients hold few handwritten digits, each mostly of some classes and turned by an angle of its own. One
    model for all (fedavg), a model of one's own (local) and personalized methods are compared with five seeds, each
    with a learning rate that was tuned on validation data. Called again, it continues or shows the results.

    [bold]Example[/bold]
      idiolect demo
    """
    settings = read_settings()
    screen.say(
        f"{len(settings['methods'])} methods x {settings['seeds']} seeds on {settings['data']}:"
        f" {settings['clients']} clients, {settings['rounds']} rounds"
    )
    from ..comparison.conclusion import conclude
    from ..engines.machine import cores
    from .training import follow_comparison

    comparison = follow_comparison(
        lambda reporter: idiolect.compare(out=out, jobs=jobs or min(4, cores()), reporter=reporter, **settings),
        out,
        quiet,
        page=False,
    )
    screen.paragraph("how one works: idiolect methods ditto; your own: idiolect compare --help", "dim")
    screen.say()
    screen.paragraph(conclude(comparison), "bold", indent=0)
    try:
        report([out], out / "report.html", quiet=quiet)
    except MissingExtraError as error:
        screen.paragraph(str(error), "yellow")


def read_settings() -> dict[str, Any]:
    """The arguments of `idiolect.compare`."""
    import yaml

    settings: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    return settings
