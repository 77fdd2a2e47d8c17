"""The page: tables and pictures of a study as one HTML file that needs nothing else."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import yaml

from .. import __version__
from ..comparison.folder import SPEC
from ..comparison.tables import footnotes, protocol_lines
from ..core.errors import RunFolderError
from ..core.files import write_text
from ..core.tables import Table
from . import clients, curves, why
from .pictures import Picture, style
from .reading import read_study
from .runs import Study
from .tables import clients as clients_table
from .tables import leaderboard, runs, targets, versus

MARK = '<meta name="generator" content="idiolect report">'
WIDE_TABLE = 400
"""A table of more clients than this is not shown on the page; the figures' folder has it as CSV."""


def write_report(
    folders: Sequence[str | Path],
    out: str | Path = "report.html",
    baseline: str | None = None,
    target: float = 0.9,
    watch: Callable[[str], None] = lambda _: None,
) -> Study:
    """Write one page about the runs in some folders, and return what it is about.

    Args:
        folders: folders of runs or of comparisons.
        out: the page; an earlier report is replaced, any other file is an error.
        baseline: the method that the others are tested against; the comparison's, else FedAvg, else the first.
        target: the share of the best score that the curves mark.
        watch: is told what is being drawn.

    >>> import idiolect
    >>> folder = getfixture("tmp_path")
    >>> board = idiolect.compare("local, fedavg", clients=4, rounds=2, seeds=1, model="linear", out=folder / "a")
    >>> write_report([folder / "a"], folder / "report.html").methods == [each.method for each in board.rows]
    True
    """
    path = Path(out)
    check_target(path)
    with style():
        study = read_study(folders, baseline)
        write_text(path, page(study, folders, target, watch))
    return study


def check_target(path: Path) -> None:
    """Refuse to overwrite anything but an earlier report."""
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder; give the name of a file, as in --out {path / 'report.html'}")
    try:
        occupied = path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    if occupied:
        raise RunFolderError(f"{path} exists and is no report; choose another name with --out")


def page(study: Study, folders: Sequence[str | Path], target: float, watch: Callable[[str], None]) -> str:
    """The whole page as text."""

    def drawn(pictures: Iterable[Picture], of: str = "") -> str:
        parts = []
        for each in pictures:
            watch(each.title)
            parts.append(figure(each, of))
        return "".join(parts)

    several = len(study.methods) > 1
    tests = [show_table(versus(study), study.baseline)] if several else []
    pairs = [curves.difference_picture(study), curves.wins_picture(study)] if several else []
    sections = {
        "Leaderboard": protocol(study)
        + show_table(leaderboard(study), study.baseline, title=False)
        + bullets("footnotes", footnotes(study.comparison))
        + "".join(tests)
        + grid(drawn(pairs)),
        "Curves": grid(drawn(curves.pictures(study, target))) + show_table(targets(study), study.baseline),
        "Clients": grid(drawn(clients.pictures(study))) + client_table(study),
        "Why": grid(drawn(why.common(study)) + "".join(drawn(why.own(study, each), each) for each in study.methods)),
        "Run it again": again(study, folders),
    }
    held = study.comparison.protocol
    lead = (
        f"{len(study.methods)} method{'s' * several}, {held['partition']['clients']} clients, {held['rounds']} rounds,"
        f" {len(study.seeds)} seed{'s' * (len(study.seeds) > 1)}; test {study.metric} under one protocol."
    )
    body = [warnings(study.notes)] + [
        f'<section id="{slug(name)}"><h2>{name}</h2>{content}</section>' for name, content in sections.items()
    ]
    return Template(_resource("page.html")).substitute(
        title=escape(f"{held['data']}, {held['partition']['name']}"),
        lead=escape(lead),
        nav="".join(f'<a href="#{slug(name)}">{name}</a>' for name in sections),
        body="\n".join(body),
        footer=escape(f"Made by idiolect {__version__} on {datetime.now(UTC):%Y-%m-%d}."),
        css=_resource("page.css"),
        js=_resource("page.js"),
    )


def slug(name: str) -> str:
    """A heading as an anchor."""
    return name.lower().replace(" ", "-")


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


# -- parts ------------------------------------------------------------------------------------------------


def warnings(notes: Sequence[str]) -> str:
    """What was left out."""
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f'<div class="warning" role="note">{lines}</div>' if notes else ""


def bullets(kind: str, lines: Sequence[str]) -> str:
    """A list."""
    return f'<ul class="{kind}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def protocol(study: Study) -> str:
    """Under which conditions all numbers hold."""
    return bullets("protocol", protocol_lines(study.comparison))


def grid(figures: str) -> str:
    """Figures beside each other, as many as fit."""
    return f'<div class="figures">{figures}</div>' if figures else ""


def figure(picture: Picture, of: str = "") -> str:
    """A picture with title and caption; `of` names the method that it is about."""
    about = f'<span class="of">{escape(of)}</span> ' if of else ""
    return (
        f'<figure id="{picture.name}"{" class=wide" if picture.wide else ""}><h4>{about}{escape(picture.title)}</h4>'
        f'<div class="drawing">{picture.inline()}</div><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


def show_table(table: Table, baseline: str = "", title: bool = True) -> str:
    """A table that can be sorted by each of its columns."""
    leaders = table.leaders()
    words = {
        at for at in range(1, len(table.columns)) if table.rows and isinstance(table.rows[0][at].value, str)
    }  # fmt: skip
    heads = "".join(
        f'<th scope="col"{" class=text" if at in words else ""}'
        f"{' data-first=descending' if column.best == 'high' else ''}>"
        f'<button type="button">{breakable(column.head)}</button></th>'
        for at, column in enumerate(table.columns)
    )
    rows = []
    for row, cells in enumerate(table.rows):
        shown = []
        for at, cell in enumerate(cells):
            kind = " ".join(filter(None, ["best" * ((row, at) in leaders), "text" * (at in words)]))
            value = "" if isinstance(cell.value, float) and math.isnan(cell.value) else cell.value
            marked = f' class="{kind}"' if kind else ""
            shown.append(f'<td{marked} data-value="{escape(str(value), quote=True)}">{breakable(cell.text)}</td>')
        rows.append(f"<tr{' class=baseline' if cells[0].value == baseline else ''}>{''.join(shown)}</tr>")
    head = f"<h3>{escape(table.title)}</h3>" if title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'{head}{note}<div class="scroll"><table id="table-{table.name}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def breakable(text: str) -> str:
    """Text that may be broken after a bracket or a comma, as the expressions of methods should be."""
    return re.sub(r"(?<=[(,])", "<wbr>", escape(text))


def client_table(study: Study) -> str:
    """Every client, to be opened; left out where there are very many."""
    table = clients_table(study)
    if len(table.rows) > WIDE_TABLE:
        return ""
    return f"<details><summary>{len(table.rows)} clients, one by one</summary>{show_table(table)}</details>"


def again(study: Study, folders: Sequence[str | Path]) -> str:
    """Commands, settings, versions and hashes."""
    first = study.first(study.baseline)
    specs = [Path(folder) for folder in folders if (Path(folder) / SPEC).is_file()]
    if len(folders) == len(specs) == 1:
        commands = [f"idiolect compare {shlex.quote(str(specs[0] / SPEC))} --out results/again"]
        settings = yaml.safe_load((specs[0] / SPEC).read_text(encoding="utf-8"))
        name = SPEC
    else:
        places = [run.folder for method in study.methods for run in study.runs[method].values()]
        commands = [f"idiolect run {shlex.quote(str(place / 'config.yaml'))}" for place in places]
        settings, name = dict(first.config), "config.yaml"
    given = " ".join(shlex.quote(str(folder)) for folder in folders)
    text = "\n".join([*commands, f"idiolect report {given} --baseline {shlex.quote(study.baseline)}"])
    versions = ", ".join(f"{name} {each}" for name, each in first.summary["versions"].items())
    return (
        f"<pre><code>{escape(text)}</code></pre><p>With {escape(versions)}. Every run is the same to the bit on the"
        f" same engine and machine.</p><details><summary>{name}</summary>"
        f"<pre><code>{escape(yaml.safe_dump(settings, sort_keys=False))}</code></pre></details>"
        + show_table(runs(study))
    )
