"""The command `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import idiolect

from ..core.errors import InputError
from . import screen
from .folders import next_free
from .settings import (
    LINEUP,
    ConfigFile,
    Jobs,
    JsonLines,
    Logs,
    On,
    Overrides,
    Quiet,
    Trust,
    gather_settings,
    with_settings,
    without_method,
)

if TYPE_CHECKING:
    from ..comparison import Comparison
    from ..runs.progress import Reporter


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
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="rounds|gradients",
            help="What all methods get alike: rounds, or the gradients that FedAvg takes in them[dim]; default"
            " rounds[/dim].",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the comparison; else results/comparison, the next free one."),
    ] = None,
    tuned: Annotated[
        int | None,
        typer.Option(
            "--tuned", min=1, metavar="N", help="First tune every method by N trials on validation data, in DIR/tuning."
        ),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW:HIGH[:log]", help="With --tuned: what may be tried, as for idiolect tune."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="With --tuned: stop trials early that are worse than the median.")
    ] = False,
    presets: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Take options and learning rates from presets.yaml of a tuning."),
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Remove the runs of these methods and run them anew, as after an edit; or all."
        ),
    ] = None,
    jobs: Jobs = 1,
    on: On = None,
    override: Overrides = None,
    quiet: Quiet = False,
    json_lines: JsonLines = False,
    log: Logs = None,
    trust: Trust = False,
    settings: Any = None,
) -> None:
    """Compare methods on the same partitions, initial weights and sampled clients.

    Every method runs with every seed. The leaderboard gives means over seeds with 95 % intervals, paired differences
    to a baseline, and what each method costs. Called again with the same folder, the comparison goes on where it
    stopped; methods and seeds may be added. With --tuned every method is tuned first, by the same number of trials.

    [bold]Examples[/bold]
      idiolect compare --methods 'local, fedavg, fedprox(mu=0.1)' --out results/x
      idiolect compare -m all --partition dirichlet:0.1 --jobs 2 --out results/all
      idiolect compare -m all --on 'ray(cpus=2)' --out results/all
      idiolect compare -m 'fedavg, ditto, pfedme' --budget gradients
      idiolect compare -m 'fedavg, ditto, fedrep' --tuned 20 --out results/t
      idiolect compare -m 'fedavg, ditto' --presets results/t/tuning/presets.yaml
      idiolect compare results/x/comparison.yaml --lr 0.01 --out results/y
      idiolect compare results/x/comparison.yaml --rerun mine.py:Mine --out results/x
    """
    from .training import follow_comparison

    values = gather_settings(config, settings, trust, (methods, baseline, rerun, *(override or ())))
    lineup = {name: values.pop(name, None) for name in LINEUP}
    flags = {"methods": methods, "seeds": seeds, "baseline": baseline, "budget": budget}
    lineup |= {name: flag for name, flag in flags.items() if flag is not None}
    if "method" in values:
        raise InputError(f"a comparison has several methods; write 'methods:' instead of 'method:' in {config}")
    if not lineup["methods"]:
        raise InputError("no methods to compare; name some with --methods 'local, fedavg, fedprox(mu=0.1)', or all")
    if deep := [text for text in override or () if text.startswith("method")]:
        raise InputError(f"-o {deep[0]}: there are several methods; write options in --methods, as in fedprox(mu=0.1)")
    chosen = without_method(idiolect.runs.configure(values, override))
    folder = out or next_free(Path("results/comparison"))
    common: dict[str, Any] = {
        "seeds": 3 if lineup["seeds"] is None else lineup["seeds"],
        "baseline": lineup["baseline"],
        "budget": lineup["budget"] or "rounds",
        "out": folder,
        "jobs": jobs,
        "on": on,
        **chosen,
    }
    check_tuned(tuned, space, prune, presets, rerun)
    if tuned is not None:
        options = {"trials": tuned, "space": space or (), "prune": prune, **common}
        follow_comparison(lambda reporter: tune_first(lineup["methods"], options, reporter, json_lines), folder, quiet,
                          json_lines, log)  # fmt: skip
        return
    if presets is not None:
        lineup |= idiolect.tuning.use_presets(lineup["methods"], presets)
        common["baseline"] = None if lineup["baseline"] is None else take_baseline(lineup["baseline"], presets)
    follow_comparison(
        lambda reporter: idiolect.compare(
            lineup["methods"],
            rates=lineup["rates"],
            rounds_of=lineup["rounds_of"],
            rerun=rerun or (),
            reporter=reporter,
            trust=trust,
            **common,
        ),
        folder,
        quiet,
        json_lines,
        log,
    )


def check_tuned(
    tuned: int | None, space: Sequence[str] | None, prune: bool, presets: Path | None, rerun: str | None
) -> None:
    """Refuse options that do not go together."""
    if tuned is None and (space or prune):
        raise InputError(f"{'--space' if space else '--prune'} is for a tuning; give the number of trials with --tuned")
    if tuned is not None and (presets or rerun):
        raise InputError(f"--tuned finds options anew; leave out {'--presets' if presets else '--rerun'}")


def tune_first(methods: str, options: Mapping[str, Any], reporter: Reporter, json_lines: bool) -> Comparison:
    """Tune and compare; what tuning found is shown first."""
    from .tune import show_tuning

    found, comparison = idiolect.compare_tuned(methods, reporter=reporter, **options)
    if not json_lines:
        show_tuning(found)
        screen.say(f"presets: {screen.place(options['out'])}/tuning/presets.yaml")
    return comparison


def take_baseline(method: str, presets: Path) -> str:
    """The baseline as presets have it."""
    return str(idiolect.tuning.use_presets([method], presets)["methods"][0])
