"""The command `table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import idiolect

from ..core.errors import InputError
from ..core.expressions import split
from . import screen
from .drawing import Folders
from .settings import Trust


def table(
    folders: Folders,
    out: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file, by its ending .tex, .csv or .md; .svg is the diagram of ranks."),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="What stands for each comparison, as in selected, worst, mb_up, or a metric."
        ),
    ] = "selected",
    spread: Annotated[str, typer.Option(metavar="std|se|interval|none", help="Behind a mean over seeds.")] = "std",
    methods: Annotated[
        str | None, typer.Option("--methods", "-m", metavar="LIST", help="Which methods, in this order.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD=TEXT", help="What a method is called, as in 'fedlag(ditto)=Ours'."),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="DIR=TEXT", help="What a comparison is called; else data and partition.")
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Also a column with the mean rank.")] = False,
    marks: Annotated[bool, typer.Option("--marks/--no-marks", help="Mark best and second where that stands.")] = True,
    digits: Annotated[int | None, typer.Option(min=0, max=9, metavar="N", help="Digits of scores.")] = None,
    trust: Trust = False,
) -> None:
    """Put several comparisons into one table for a paper: methods down, data sets and partitions across.

    Best and second are marked only where the difference stands by paired tests over seeds. The same numbers go into
    LaTeX (booktabs), CSV and Markdown. With several comparisons, methods are also ranked over them.

    [bold]Examples[/bold]
      idiolect table results/digits results/mnist results/har --out table.tex --out table.csv
      idiolect table results/* --columns selected,worst --spread interval --label 'fedlag(ditto)=FedLAG' --ranks
      idiolect table results/* --out ranks.svg
    """
    made = idiolect.report.paper_table(
        folders,
        columns=columns,
        spread=spread,
        methods=split(methods) if methods else (),
        labels=_pairs("--label", label or ()),
        names=_pairs("--name", name or ()) or None,
        ranks=ranks,
        marks=marks,
        digits=digits,
        trust=trust,
    )
    for path in out or ():
        screen.say(f"written: {screen.place(made.write(path))}")
    if not out:
        screen.show(made.table)
        for line in made.table.note.split("\n"):
            screen.paragraph(line, "dim")


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Names by what they name; the last = stands between, since expressions have some."""
    pairs = {}
    for text in texts:
        key, equals, value = text.rpartition("=")
        if not (key.strip() and equals and value.strip()):
            raise InputError(f"{flag} {text!r} is not allowed; write it as in {flag} 'fedlag(ditto)=FedLAG'")
        pairs[key.strip()] = value.strip()
    return pairs
