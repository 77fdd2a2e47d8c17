"""The page: tables and figures of a study as one HTML file that needs nothing else; what it looks like is in
templates/."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markupsafe import Markup, escape

from .. import __version__
from ..comparison.conclusion import summarize
from ..comparison.folder import SPEC
from ..comparison.tables import footnotes, leaderboard_tables, name_data, protocol_lines
from ..core.errors import RunFolderError
from ..core.files import write_text
from ..core.names import visible
from .curves import curve_charts, run_chart
from .figures.all import make_pictures
from .figures.picture import Picture, style
from .folders import read_study
from .study import Study
from .tables import align_table, clients_table, fold_columns, rounds_table, runs_table, targets_table, wins_table

if TYPE_CHECKING:
    from jinja2 import Environment

MARK = '<meta name="generator" content="idiolect report">'
MOST_CLIENTS = 400
"""A table of more clients than this is not shown on the page; the figures' folder has it as CSV."""


def write_report(
    folders: Sequence[str | Path],
    out: str | Path = "report.html",
    baseline: str | None = None,
    target: float = 0.9,
    watch: Callable[[str], None] = lambda _: None,
    trust: bool = False,
) -> Study:
    """Write one page about the runs in some folders, and return what it is about.

    Args:
        folders: folders of runs or of comparisons.
        out: the page; an earlier report is replaced, any other file is an error.
        baseline: the method that the others are tested against; the comparison's, else FedAvg, else the first.
        target: the share of the best score that the curves mark.
        watch: is told what is being drawn.
        trust: run code that the folders name, though no run on this machine has used it; only pictures of models and of
            data need it, and are else left out with a note.

    >>> import idiolect
    >>> folder = getfixture("tmp_path")
    >>> board = idiolect.compare("local, fedavg", clients=4, rounds=2, seeds=1, model="linear", out=folder / "a")
    >>> write_report([folder / "a"], folder / "report.html").methods == [row.method for row in board.rows]
    True
    """
    path = Path(out)
    check_target(path)
    with style():
        study = read_study(folders, baseline, trust)
        write_text(path, render(study, folders, target, watch))
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


def render(study: Study, folders: Sequence[str | Path], target: float, watch: Callable[[str], None]) -> str:
    """The whole page as text."""

    def draw(picture: Picture) -> Markup:
        watch(picture.title)
        return Markup(picture.inline())

    single = len(study.methods) == 1
    curves = curve_charts(study, target)
    pictures = make_pictures(study, target)
    pictures["Curves"] = []  # drawn as charts
    protocol = study.comparison.protocol
    tables = list(leaderboard_tables(study.comparison))
    first, *rest = (name for name in pictures if pictures[name] or name != "Why")
    return make_page(
        "page.html",
        title=name_data(protocol).replace("own data,", "Own data,", 1),
        mark=Markup(MARK),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        lead=lead(study),
        verdict=summarize(study.comparison),
        sections=["Scores" if single else first, *rest, "Run it again"],
        single=single,
        course=run_chart(study) if single else None,
        rounds=rounds_table(study) if single and len(study.seeds) == 1 else None,
        first=[pictures["Leaderboard"].pop(0)] if pictures["Leaderboard"] else [],
        notes=study.notes,
        protocol=[*protocol_lines(study.comparison), *study.names],
        leaderboard=tables[1:] if single and len(study.seeds) == 1 else tables,
        footnotes=footnotes(study.comparison),
        curves=curves,
        targets=targets_table(study),
        wins=None if single else wins_table(study),
        clients=clients_table(study),
        most_clients=MOST_CLIENTS,
        runs=runs_table(study),
        baseline="" if single else study.baseline,
        pictures=pictures,
        draw=draw,
        again=again(study, folders),
    )  # fmt: skip


def make_page(template: str, connect: str = "", **values: Any) -> str:
    """A page from its template; scripts run only if they are the page's own, and nothing is loaded from elsewhere."""
    js = _source("page.js")
    hashed = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    policy = f"default-src 'none'; {connect}script-src 'sha256-{hashed}'; style-src 'unsafe-inline'; img-src data:"
    page = environment().get_template(template)
    return page.render(version=__version__, css=_source("page.css"), js=js, policy=Markup(policy), **values)


@cache
def environment() -> Environment:
    """The templates; whatever they are given is escaped, and a name that they are not given is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("idiolect.report")
    environment = Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value, lines=True) if type(value) is str else value,
    )
    environment.filters |= {"breakable": breakable, "aligned": align_table, "folded": fold_columns}
    return environment


def _source(name: str) -> Markup:
    """A style sheet or a script as it is."""
    return Markup(files(__package__).joinpath("templates", name).read_text(encoding="utf-8").rstrip())


def breakable(text: str) -> Markup:
    """Text that may be broken inside the expression of a method: after a bracket or a comma.

    >>> breakable("fedlag(ditto, k=1) & more (points)")
    Markup('fedlag(<wbr>ditto, k=1) &amp; more (points)')
    """
    return Markup(re.sub(r"(?<=\w\()|(?<=,)(?=[^\s\d])", "<wbr>", str(escape(visible(text)))))


def lead(study: Study) -> str:
    """What the page is about, in a sentence."""
    protocol, methods, seeds = study.comparison.protocol, len(study.methods), len(study.seeds)
    return (
        f"{methods} method{'s' * (methods > 1)}, {protocol['partition']['clients']} clients,"
        f" {protocol['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}; test {study.metric} under one protocol."
    )


def again(study: Study, folders: Sequence[str | Path]) -> dict[str, Any]:
    """Commands that run it again, the settings and the file that holds them, and versions."""
    first = study.first(study.baseline)
    specs = [Path(folder) / SPEC for folder in folders if (Path(folder) / SPEC).is_file()]
    if len(folders) == len(specs) == 1:
        commands = [f"idiolect compare {shlex.quote(str(specs[0]))} --out results/again"]
        settings, file = yaml.safe_load(specs[0].read_text(encoding="utf-8")), SPEC
    else:
        configs = [run.folder / "config.yaml" for method in study.methods for run in study.runs[method].values()]
        commands = [f"idiolect run {shlex.quote(str(config))}" for config in configs]
        settings, file = dict(first.config), "config.yaml"
    quoted = " ".join(shlex.quote(str(folder)) for folder in folders)
    return {
        "commands": [*commands, f"idiolect report {quoted} --baseline {shlex.quote(study.baseline)}"],
        "versions": ", ".join(f"{name} {version}" for name, version in first.summary["versions"].items()),
        "file": file,
        "settings": yaml.safe_dump(settings, sort_keys=False),
    }
