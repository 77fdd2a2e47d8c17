"""The commands that run something: run, resume, compare, demo."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..comparison.api import compare as run_comparison
from ..comparison.api import resume_comparison
from ..comparison.folder import SPEC, slug
from ..comparison.leaderboard import Comparison
from ..contract.method import Method
from ..contract.method import methods as registry
from ..core.errors import InputError, MissingExtraError, RunFolderError
from ..core.expressions import parse
from ..engines import Plan
from ..engines.machine import cores
from ..report.loggers import with_logs
from ..report.terminal import reporter
from ..runs.api import carry_out, open_run
from ..runs.folder import new_folder, next_round
from ..runs.settings import Config, configure
from ..runs.setup import make_plan
from . import screen
from .report import report
from .settings import ConfigFile, JsonLines, Overrides, Quiet, gathered, with_settings

DEMO_METHODS = ("local", "fedavg", "finetune(fedavg)", "fedprox", "ditto", "fedper")
DEMO_MORE = ("fedlag", "lgmix", "flayer", "pfedgate", "fedfac")
"""These take part where they are registered."""
DEMO_SETTINGS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.1",
    "clients": 20,
    "rounds": 15,
    "lr": 0.2,
    "eval_every": 5,
    "engine": "loop",
}
DEMO_SEEDS = 3
INTERRUPTED = 130

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at a time, each in its own process.")]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="KIND:PLACE", help="Log every round as well: tensorboard:DIR or mlflow:URI."),
]


@with_settings()
def run(
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for the results; else runs/METHOD-DATA-SEED, or the next free."),
    ] = None,
    override: Overrides = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    settings: Any = None,
) -> None:
    """Train one federation with one method.

    The results go into a folder: the configuration, the metrics of every client and round, a summary, and the state
    from which an interrupted run is continued.

    [bold]Examples[/bold]
      idiolect run --method fedavg --rounds 20
      idiolect run -m 'fedprox(mu=0.1)' --partition dirichlet:0.1 --out runs/a
      idiolect run -m ditto -o method.lam=0.5 --clients 20 --participation 0.5
      idiolect run experiment.yaml --lr 0.01
    """
    chosen = configure(gathered(config, settings), override)
    folder = new_folder(out) if out is not None else free_folder(chosen)
    train(make_plan(chosen, {}), chosen, folder, quiet, json_lines, log)


def train(plan: Plan, config: Config, folder: Path, quiet: bool, json_lines: bool = False, log: Logs = None) -> None:
    """Start or continue a run, show how it goes on and what came of it."""
    if not quiet and not json_lines:
        for line in requirements(plan.method):
            screen.ERR.print(line, style="dim", soft_wrap=True)
    with with_logs(reporter(screen.ERR, quiet, sys.stdout if json_lines else None), log) as told:
        told.start(config.method, plan.rounds, next_round(folder, plan.method))
        result = carry_out(plan, config, folder, partial(told.step, config.method))
        summary, complete = result.summary, result.complete
        if complete or json_lines:
            told.end(config.method, summary)
    result.store.close()
    if json_lines:
        raise typer.Exit(0 if complete else INTERRUPTED)
    screen.show_result(summary)
    where = screen.place(folder)
    if not complete:
        screen.say(f"stopped after round {summary['rounds_done']}; continue with: idiolect resume {where}", "yellow")
        raise typer.Exit(INTERRUPTED)
    screen.say(f"results: {where}")


NEEDS = {
    "public": "all clients and the server see the public data",
    "models": "clients may have different networks",
    "server models": "the server keeps the latest model of every client",
    "server training": "the server trains, too",
}


def requirements(method: Method) -> list[str]:
    """What a method needs beyond parameters, in sentences."""
    held = [f"{method.name}: {NEEDS.get(each, each)}" for each in method.needs]
    if method.holdout:
        held.append(f"{method.name}: {method.holdout:.0%} of every client's training data are set aside for it")
    return held


def free_folder(config: Config) -> Path:
    """The next free name for a run's results."""
    base = f"runs/{slug(config.method)}-{slug(parse(config.data).name)}-{config.seed}"
    return next_free(Path(base))


def next_free(base: Path) -> Path:
    """`base`, or base-2, base-3, ... where it is taken."""
    tries = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in range(1, 10**6))
    return next(each for each in tries if not each.exists())


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a comparison.")],
    jobs: Jobs = 1,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
) -> None:
    """Continue a run or a comparison that was interrupted.

    The result is the same, to the bit, as without the interruption. Of something that is complete, the results are
    shown again.

    [bold]Examples[/bold]
      idiolect resume runs/fedavg-digits-0
      idiolect resume results/x --jobs 2
    """
    if (folder / SPEC).is_file():
        compared(folder, quiet, resume_comparison, folder, jobs=jobs, json_lines=json_lines, log=log)
        return
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; start a run with: idiolect run --out {folder}")
    plan, config = open_run(folder)
    train(plan, config, folder, quiet, json_lines, log)


@with_settings(without=("method",))
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "-m",
            metavar="LIST",
            help="Expressions, split at commas; all: every method that can run here.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="SEEDS", help="How many, from --seed on, or which: 3 or 0,5,7[dim]; default 3[/dim]."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="What others are tested against[dim]; default fedavg, else the first[/dim]."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the comparison; else results/comparison, the next free one."),
    ] = None,
    jobs: Jobs = 1,
    override: Overrides = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    settings: Any = None,
) -> None:
    """Compare methods on the same partitions, initial weights and sampled clients.

    Every method runs with every seed. The leaderboard gives means over seeds with 95 % intervals, paired differences
    to a baseline, and what each method costs. Called again with the same folder, the comparison goes on where it
    stopped; methods and seeds may be added.

    [bold]Examples[/bold]
      idiolect compare --methods 'local, fedavg, fedprox(mu=0.1)' --out results/x
      idiolect compare -m all --partition dirichlet:0.1 --jobs 2 --out results/all
      idiolect compare results/x/comparison.yaml --lr 0.01 --out results/y
    """
    given = gathered(config, settings)
    asked = {name: given.pop(name, None) for name in ("methods", "seeds", "baseline", "skipped", "rates")}
    flags = {"methods": methods, "seeds": seeds, "baseline": baseline}
    asked |= {name: each for name, each in flags.items() if each is not None}
    if "method" in given:
        raise InputError(f"a comparison has several methods; write 'methods:' instead of 'method:' in {config}")
    if not asked["methods"]:
        raise InputError("no methods to compare; name some with --methods 'local, fedavg, fedprox(mu=0.1)', or all")
    if deep := [each for each in override or () if each.startswith("method")]:
        raise InputError(f"-o {deep[0]}: there are several methods; write options in --methods, as in fedprox(mu=0.1)")
    chosen = configure(given, override).as_dict()
    folder = out or next_free(Path("results/comparison"))
    compared(
        folder,
        quiet,
        run_comparison,
        asked["methods"],
        seeds=3 if asked["seeds"] is None else asked["seeds"],
        baseline=asked["baseline"],
        rates=asked["rates"],
        out=folder,
        jobs=jobs,
        json_lines=json_lines,
        log=log,
        **{name: each for name, each in chosen.items() if name != "method"},
    )


def compared(
    folder: Path,
    quiet: bool,
    start: Any,
    *arguments: Any,
    json_lines: bool = False,
    log: Logs = None,
    page: bool = True,
    **named: Any,
) -> Comparison:
    """Start or continue a comparison, show how it goes on, what came of it and, with `page`, how to get its report."""
    where = screen.place(folder)
    try:
        with with_logs(reporter(screen.ERR, quiet, sys.stdout if json_lines else None), log) as told:
            comparison: Comparison = start(*arguments, **named, reporter=told)
    except KeyboardInterrupt:
        if (folder / SPEC).is_file() and not json_lines:
            screen.say(f"stopped; continue with: idiolect resume {where}", "yellow")
        raise typer.Exit(INTERRUPTED) from None
    if json_lines:
        return comparison
    screen.show_comparison(comparison)
    screen.say(f"results: {where} (comparison.md, .csv, .json, and a folder for every run)")
    if page:
        screen.say(f"see it: idiolect report {where}")
    return comparison


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
    chosen = [*DEMO_METHODS, *(name for name in DEMO_MORE if name in registry)]
    screen.say(
        f"{len(chosen)} methods x {DEMO_SEEDS} seeds on handwritten digits of {DEMO_SETTINGS['clients']} clients"
    )
    compared(
        out,
        quiet,
        run_comparison,
        chosen,
        seeds=DEMO_SEEDS,
        baseline="fedavg",
        out=out,
        jobs=jobs or min(4, cores()),
        page=False,
        **DEMO_SETTINGS,
    )
    screen.paragraph("how one works: idiolect methods ditto; your own: idiolect compare --help", "dim")
    try:
        report([out], out / "report.html", quiet=quiet)
    except MissingExtraError as error:
        screen.paragraph(str(error), "yellow")
