"""`run`, `resume` and `load`: from a configuration, or from a user's own objects, to a `Result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..contract import Method
from ..core.errors import RunFolderError
from ..engines import Loop, Plan, engines, resolve
from ..task.metrics import Metric
from ..task.schedules import Schedule
from .folder import MODELS, STATE, create_folder, new_folder, read_folder, require_objects
from .interrupt import catch_interrupt
from .progress import Reporter
from .result import Result
from .round_loop import Progress, RoundLoop
from .settings import OWN, Config, mark_objects
from .setup import make_plan, separate, weights_hash
from .store import Store

Watch = Callable[[Progress], None]


def run(
    method: str | Method = "fedavg",
    data: Any = "digits",
    *,
    model: str | nn.Module | None = None,
    models: Sequence[nn.Module] = (),
    model_of: Sequence[int] = (),
    loss: str | Callable[[Tensor, Tensor], Tensor] | None = None,
    metrics: str | Mapping[str, Callable[[Tensor, Tensor], Any] | Metric] | None = None,
    initial: str | Path | Mapping[str, Tensor] | None = None,
    schedule: str | Schedule | Callable[[int, int], float] = "constant",
    public: Any = None,
    out: str | Path | None = None,
    watch: Watch = lambda _: None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Result:
    """Train a federation and return its result.

    Args:
        method: a method or an expression, such as `"fedprox(mu=0.1)"`.
        data: a source's name, a `Federation`, or a list (or mapping) of clients: (x, y), data sets, or
            mappings of splits.
        model: a network's name or any module; its weights are the initial ones.
        models, model_of: several networks and, per client, which it has (for methods that allow it).
        loss: a loss's name or a function (outputs, targets) -> a value per sample or per batch.
        metrics: names, as in "accuracy, auc", or own functions (outputs, targets) -> number by name; the first is the
            headline.
        initial: initial weights, a state dict or a safetensors file.
        schedule: the learning rate over rounds: an expression or a function (round, rounds) -> factor.
        public: what everybody sees, for methods that need it: a source's name, a share of the data, or (x, y).
        out: a new folder for the run; without it the run stays in memory.
        watch: called after every round.
        reporter: receives how the run goes on, as by `compare`.
        settings: any other setting of `Config`, such as rounds, lr, clients, partition, seed.

    >>> import torch
    >>> result = run("fedavg", "digits", clients=5, rounds=2, seed=0)
    >>> result.summary["rounds_done"], result.model(0)(torch.zeros(1, 1, 8, 8)).shape
    (2, torch.Size([1, 10]))
    """
    given = {"method": method, "data": data, "model": model, "models": models, "model_of": model_of, "loss": loss}
    given |= {"metrics": metrics, "initial": initial, "schedule": schedule, "public": public}
    config, objects = separate({**given, **settings})
    folder = None if out is None else new_folder(Path(out))
    return carry_out(make_plan(config, objects), config, folder, watch, reporter)


def carry_out(
    plan: Plan, config: Config, folder: Path | None, watch: Watch, reporter: Reporter | None = None
) -> Result:
    """Start or continue a run in a folder (or in memory) and return its result."""
    if folder is not None:
        create_folder(folder, config)
    store = Store(None if folder is None else folder / STATE, cache_mb=config.cache_mb, device=config.device)
    reporter, label = reporter or Reporter(), config.method
    reporter.start(
        label, plan.rounds, -plan.method.needs.setup_rounds if (at := store.facts.next_round) is None else at
    )
    engine = engines.build(begin(plan, config, folder, store)).make(plan)
    loop = RoundLoop(plan, engine, store, config.eval_every)

    def report(progress: Progress) -> None:
        reporter.step(label, progress)
        watch(progress)

    try:
        with catch_interrupt() as asked:
            finished = loop.run(report, asked)
    finally:
        engine.close()
    result = Result(plan, config, store, loop.metric, loop.point, folder)
    result.write()
    if finished and config.save_models and folder is not None:
        result.save_models(folder / MODELS)
    if finished:
        reporter.end(label, result.summary)
    return result


def begin(plan: Plan, config: Config, folder: Path | None, store: Store) -> str:
    """The expression of a run's engine. When a run starts, engine and identity are recorded; when it is continued, the
    identity must be the same."""
    identity = {"data": plan.data.fingerprint, "partition": plan.data.partition_hash, "weights": weights_hash(plan)}
    known = store.facts
    if known.identity is not None and known.identity != identity:
        differ = " and ".join(name for name in identity if known.identity.get(name) != identity[name])
        raise RunFolderError(
            f"{folder} was run with other {differ}; continue it with the same, or choose another folder"
        )
    if known.engine is not None:
        return known.engine
    engine, measured = resolve(config.engine, plan)
    store.record({"identity": identity, "engine": engine, "calibration": measured})
    return engine


def open_run(folder: str | Path, **objects: Any) -> tuple[Plan, Config]:
    """The plan and the configuration of a run folder; what was given in Python must be given again."""
    folder = Path(folder)
    settings = read_folder(folder)
    require_objects(folder, settings, objects)
    config, known = separate({name: value for name, value in settings.items() if value != OWN})
    config = mark_objects(config, [name for name, value in settings.items() if value == OWN])
    return make_plan(config, known | objects), config


def resume(
    folder: str | Path, *, watch: Watch = lambda _: None, reporter: Reporter | None = None, **objects: Any
) -> Result:
    """Continue a run where it stopped; the result is bit-identical to an uninterrupted one.

    Args:
        folder: the run's folder.
        watch: called after every round.
        reporter: receives how the run goes on.
        objects: what was given to `run` as an object, under the same names.
    """
    plan, config = open_run(folder, **objects)
    return carry_out(plan, config, Path(folder), watch, reporter)


def load(folder: str | Path, **objects: Any) -> Result:
    """Open a run folder to read its metrics and models, without running anything.

    Args:
        folder: the run's folder.
        objects: what was given to `run` as an object, under the same names.
    """
    plan, config = open_run(folder, **objects)
    store = Store(Path(folder) / STATE, create=False)
    loop = RoundLoop(plan, Loop(plan), store, config.eval_every)
    return Result(plan, config, store, loop.metric, loop.point, Path(folder))
