"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import idiolect

from ..core.errors import MissingExtraError
from . import screen
from .report import report
from .settings import Quiet

METHODS = ("local", "fedavg", "finetune(fedavg)", "fedprox", "ditto", "fedper")
MORE = ("fedlag", "lgmix", "flayer", "pfedgate", "fedfac")
"""These take part where they are registered."""
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.1",
    "clients": 20,
    "rounds": 15,
    "lr": 0.2,
    "eval_every": 5,
    "engine": "loop",
}
SEEDS = 3


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
    """See what personalization gains: a small comparison on real data, in about a minute.

    Twenty clients hold handwritten digits, each mostly of a few classes. One model for all (fedavg), a model of one's
    own (local) and personalized methods are compared with three seeds. Called again, it continues or shows the results.

    [bold]Example[/bold]
      idiolect demo
    """
    from ..engines.machine import cores
    from .training import follow_comparison

    chosen = [*METHODS, *(name for name in MORE if name in idiolect.contract.methods)]
    screen.say(f"{len(chosen)} methods x {SEEDS} seeds on handwritten digits of {SETTINGS['clients']} clients")
    follow_comparison(
        lambda reporter: idiolect.compare(
            chosen,
            seeds=SEEDS,
            baseline="fedavg",
            out=out,
            jobs=jobs or min(4, cores()),
            reporter=reporter,
            **SETTINGS,
        ),
        out,
        quiet,
        page=False,
    )
    screen.paragraph("how one works: idiolect methods ditto; your own: idiolect compare --help", "dim")
    try:
        report([out], out / "report.html", quiet=quiet)
    except MissingExtraError as error:
        screen.paragraph(str(error), "yellow")
