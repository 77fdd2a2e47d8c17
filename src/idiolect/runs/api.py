"""`run`, `resume` and `load`: from a configuration, or from a user's own objects, to a `Result`."""

from __future__ import annotations

import copy
import hashlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..contract.method import Method
from ..core.errors import InputError, ModelError, RunFolderError
from ..core.registry import describe
from ..data import Federation
from ..data import load as load_data
from ..engines import Loop, Plan, engines, make_engine, resolve
from ..kernels import has_bf16
from ..models import build as build_model
from ..models import default_model
from ..task.metrics import Metric
from ..task.schedules import Custom, Schedule, schedules
from ..task.task import Task
from .result import Result
from .round_loop import Experiment, Progress
from .settings import Config, configure, read_config, write_config
from .store import Store

log = logging.getLogger("idiolect")
OWN = "(given in Python)"
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
        schedule: rate over rounds: an expression or a function (round, rounds) -> factor.
        public: what everybody sees, for methods that need it: a source's name, a share of the data, or (x, y).
        out: a new folder for the run; without it the run stays in memory.
        watch: called after every round.
        settings: any other setting of `Config`, such as rounds, lr, clients, partition, seed.

    >>> result = run("fedavg", "digits", clients=5, rounds=2, seed=0)
    >>> result.summary["rounds_done"], result.model(0)(torch.zeros(1, 1, 8, 8)).shape
    (2, torch.Size([1, 10]))
    """
    own: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    given = {"method": method, "data": data, "model": model, "loss": loss, "initial": initial, "schedule": schedule}
    for name, each in (given | {"metrics": metrics, "public": public}).items():
        if each is None or isinstance(each, str | float):
            settings[name] = each if each is None else str(each)
        elif isinstance(each, Method):
            settings[name] = describe(each)
        else:
            own[name] = each
            if name not in ("initial", "schedule"):
                marks[name] = OWN
    config = replace(configure(settings), **marks)
    plan = make_plan(config, own | {"models": models, "model_of": model_of}, method)
    folder = None if out is None else new_folder(Path(out))
    return carry_out(plan, config, folder, watch)


def make_plan(config: Config, own: Mapping[str, Any], method: str | Method | None = None) -> Plan:
    """Resolve names and objects into a plan; everything that can be wrong is found here, before anything runs."""
    chosen = method if isinstance(method, Method) else config.built_method()
    engines.build(config.engine)
    data = resolve_data(config, own)
    tasks = resolve_tasks(config, own, data)
    for task in tasks:
        try:
            task.net.to(config.device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"device={config.device!r} cannot be used: {str(error).splitlines()[0]}; choose another, such as cpu"
            ) from error
        task.net.precision = torch.bfloat16 if config.precision == "bf16" else None
        chosen.check(task)
    if config.precision == "bf16" and not has_bf16(config.device):
        log.warning("this processor has no instructions for bf16, which will be many times slower than fp32")
    schedule = own.get("schedule")
    if "public" in chosen.needs and data.public is None:
        raise InputError(
            f"{chosen.name} needs public data, which everybody sees; give a source or a share, as in public=0.1"
        )
    return Plan(
        method=chosen,
        tasks=tasks,
        data=data,
        rounds=config.rounds,
        optimizer=config.built_optimizer(),
        schedule=schedules.build(config.schedule) if schedule is None else as_schedule(schedule),
        lr=config.lr,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        participation=config.participation,
        weighting=config.weighting,
        seed=config.seed,
        models=tuple(own.get("model_of") or ()),
        norm_stats=config.norm_stats,
        norm_affine=config.norm_affine,
        device=config.device,
        after_local=config.after_local,
    )


def as_schedule(given: Schedule | Callable[[int, int], float]) -> Schedule:
    """A schedule from a schedule or a function."""
    return given if isinstance(given, Schedule) else Custom(given)


def resolve_data(config: Config, own: Mapping[str, Any]) -> Federation:
    """The federation that a configuration, or the user's own data, describes."""
    given = own.get("data", config.data)
    if isinstance(given, Federation):
        data = given
    else:
        data = load_data(
            given,
            partition=config.partition,
            clients=config.clients,
            split=config.split,
            seed=config.seed,
            unseen=config.unseen,
            public=own.get("public", config.public),
        )
    return data


def resolve_tasks(config: Config, own: Mapping[str, Any], data: Federation) -> tuple[Task, ...]:
    """The model (or models) with loss and metrics, checked against the data."""
    modules = list(own.get("models") or ())
    if not modules:
        given = own.get("model")
        modules = [
            given
            if isinstance(given, nn.Module)
            else build_model(config.model or default_model(data), data, seed=config.seed)
        ]
    initial = own.get("initial", config.initial)
    first = data.clients[0]
    x, y = first.split("train")
    tasks = []
    for module in modules:
        if initial is not None:
            module = with_weights(module, initial)
        tasks.append(
            Task(
                module,
                (x[:2], y[:2]),
                own.get("loss", config.loss),
                own.get("metrics", config.metrics),
                data.classes,
                config.head,
            )
        )
    return tuple(tasks)


def with_weights(module: nn.Module, initial: str | Path | Mapping[str, Tensor]) -> nn.Module:
    """A copy of a module with given weights."""
    if isinstance(initial, str | Path):
        try:
            initial = load_file(initial)
        except (OSError, SafetensorError) as error:
            raise InputError(f"the initial weights {initial} cannot be read as safetensors: {error}") from error
    module = copy.deepcopy(module)
    try:
        module.load_state_dict(dict(initial))
    except RuntimeError as error:
        raise ModelError(f"the initial weights do not fit the model: {error}") from error
    return module


def new_folder(path: Path) -> Path:
    """A folder for a new run; one that holds anything is never overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        holds = "already holds a run" if (path / "config.yaml").exists() else "exists and is not empty"
        raise RunFolderError(
            f"{path} {holds}; choose another folder with --out, or continue a run with: idiolect resume {path}"
        )
    return path


def carry_out(plan: Plan, config: Config, folder: Path | None, watch: Watch) -> Result:
    """Start or continue a run in a folder (or in memory) and return its result."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "config.yaml").exists():
                write_config(config, folder / "config.yaml")
        except OSError as error:
            raise RunFolderError(f"the run folder {folder} cannot be written: {error.strerror}") from error
    store = Store(None if folder is None else folder / "state.sqlite", cache_mb=config.cache_mb, device=config.device)
    identity = {"data": plan.data.fingerprint, "partition": plan.data.partition_hash, "weights": weights_hash(plan)}
    known = store.fact("identity")
    if known is not None and known != identity:
        differ = " and ".join(key for key in identity if known.get(key) != identity[key])
        raise RunFolderError(
            f"{folder} was run with other {differ}; continue it with the same, or choose another folder"
        )
    chosen = store.fact("engine")
    if chosen is None:
        chosen, measured = resolve(config.engine, plan)
        store.commit(-(2**39), {}, {}, [], {"identity": identity, "engine": chosen, "calibration": measured})
    engine = make_engine(chosen, plan)
    experiment = Experiment(plan, engine, store, config.eval_every)
    result = Result(plan, config, store, experiment.metric, experiment.point, folder)
    try:
        with stopping() as asked:
            finished = experiment.run(watch, asked)
    finally:
        engine.close()
    result.write()
    if finished and config.save_models and folder is not None:
        result.save_models(folder / "models")
    return result


def weights_hash(plan: Plan) -> str:
    """A short hash of the initial weights."""
    digest = hashlib.sha256()
    for task in plan.tasks:
        for leaves in task.initial.values():
            digest.update(b"".join(_bytes(leaf) for leaf in leaves.values()))
    return digest.hexdigest()[:12]


def _bytes(leaf: Tensor) -> bytes:
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a wish to stop after the round; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        log.warning("stopping after this round; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_run(folder: str | Path, **own: Any) -> tuple[Plan, Config]:
    """The plan and the configuration of a run folder; what was given in Python must be given again."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{folder} holds no run: config.yaml is missing; start one with: idiolect run")
    values = read_config(folder / "config.yaml")
    missing = [name for name, each in values.items() if each == OWN and own.get(name) is None]
    if missing:
        listing = ", ".join(f"{name}=..." for name in missing)
        raise RunFolderError(
            f"{folder} was started in Python with own {', '.join(missing)}; call it there again with {listing}"
        )
    marked = {name: each for name, each in values.items() if each == OWN}
    config = replace(configure({k: v for k, v in values.items() if v != OWN}), **marked)
    return make_plan(config, own, own.get("method")), config


def resume(folder: str | Path, *, watch: Watch = lambda _: None, **own: Any) -> Result:
    """Continue a run where it stopped; the result is bit-identical to an uninterrupted one."""
    plan, config = open_run(folder, **own)
    return carry_out(plan, config, Path(folder), watch)


def load(folder: str | Path, **own: Any) -> Result:
    """Open a run folder to read its metrics and models, without running anything."""
    plan, config = open_run(folder, **own)
    store = Store(Path(folder) / "state.sqlite", create=False)
    experiment = Experiment(plan, Loop(plan), store, config.eval_every)
    return Result(plan, config, store, experiment.metric, experiment.point, Path(folder))
