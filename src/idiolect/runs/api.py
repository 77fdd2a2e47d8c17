"""`run`, `resume` and `load`: from a configuration, or from a user's own objects, to a `Result`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from ..contract import Method
from ..contract import methods as registry
from ..core.errors import OptionError, RunFolderError, UnknownNameError
from ..core.names import visible
from ..core.reading import doing
from ..core.trust import named_by, remember_code
from ..data import Federation
from ..engines import Loop, Plan, engines, resolve
from ..engines.choice import Choice, have_same_bits
from ..kernels import has_numba
from ..task.metrics import Given
from ..task.schedules import Schedule
from .arguments import Change, Known, Network, Settings
from .extending import extend
from .folder import MODELS, STATE, create_folder, new_folder, read_folder, require_objects
from .identity import LIBRARY, identify, read_identity, record_identity, require_code, require_identity
from .interrupt import Interrupt, catch_interrupt
from .kept_models import keep_adapted
from .lock import lock_folder
from .notebook import reporting
from .outline import has_outline, headline_of, plan_without_data, record_outline
from .practice import warn_of_data
from .progress import Reporter
from .result import Result
from .round_loop import Progress, RoundLoop
from .settings import OWN, Config, configure, mark_objects
from .setup import DEALING, arrange_clients, check_needs, check_objects, make_plan, separate
from .store import Store

log = logging.getLogger("idiolect")

Watch = Callable[[Progress], None]
UNCHANGED = "undo the change or give the same again, or start another run in another folder"
ON_INTERRUPT = ("raise", "return")


def run(
    method: str | Method = "fedavg",
    data: Any = "digits",
    *,
    model: Network | None = None,
    models: Sequence[Network] = (),
    model_of: Sequence[int] | Mapping[str, int] = (),
    loss: str | Callable[[Tensor, Tensor], Tensor] | None = None,
    metrics: str | Sequence[Given] | Mapping[str, Given] | None = None,
    transform: str | Change | Sequence[str | Change] | None = None,
    initial: str | Path | Mapping[str, Tensor] | None = None,
    schedule: str | Schedule | Callable[[int, int], float] = "constant",
    public: Any = None,
    out: str | Path | None = None,
    watch: Watch = lambda _: None,
    reporter: Reporter | None = None,
    on_interrupt: str = "raise",
    **settings: Unpack[Settings],
) -> Result:
    """Train a federation and return its result.

    What has a name may also be code of one's own: `file.py:name` or `package.module:name` (docs/data.md).

    Args:
        method: a method or an expression, such as `"fedprox(mu=0.1)"`.
        data: a source's name, a `Federation`, or a list (or mapping) of clients: (x, y), data sets, or
            mappings of splits.
        model: a network's name, or a class or function that builds one, with initial weights of each seed's own; or any
            module, whose weights are the initial ones.
        models, model_of: several networks and, per client in order or by name, which it has (for methods that allow
            it).
        loss: a loss's name or a function (outputs, targets) -> a value per sample or per batch.
        metrics: names, as in "accuracy, auc"; or a list, or a mapping from names, of such names, `Metric`s and own
            functions (outputs, targets) -> number. The first is the headline.
        transform: changes of inputs, in order: names, as in "crop(4), flip, normalize", or functions; random ones are
            for training samples alone.
        initial: initial weights, a state dict or a safetensors file.
        schedule: the learning rate over rounds: an expression or a function (round, rounds) -> factor.
        public: what everybody sees, for methods that need it: a source's name, a share of the data, or (x, y).
        out: a new folder for the run; without it the run stays in memory.
        watch: called after every round.
        reporter: receives how the run goes on, as by `compare`; none shows a bar in a notebook, and nothing elsewhere.
        on_interrupt: what follows after Ctrl-C or SIGTERM, once the round is committed: `raise` lets the signal have
            its usual effect, as `KeyboardInterrupt`; `return` returns the result, whose summary says that it is not
            finished.
        settings: any other setting of `Config`, such as rounds, lr, clients, partition, seed.

    >>> import torch
    >>> result = run("fedavg", "digits", clients=5, rounds=2, seed=0)
    >>> result.summary["rounds_done"], result.model(0)(torch.zeros(1, 1, 8, 8)).shape
    (2, torch.Size([1, 10]))
    """
    arguments = {"method": method, "data": data, "model": model, "models": models, "model_of": model_of, "loss": loss}
    arguments |= {
        "metrics": metrics,
        "transform": transform,
        "initial": initial,
        "schedule": schedule,
        "public": public,
    }
    config, objects = separate({**arguments, **settings})
    folder = None if out is None else new_folder(Path(out))
    with reporting(reporter) as shown:
        plan = make_plan(config, objects)
        check_needs(plan)
        return carry_out(plan, config, folder, watch, shown, on_interrupt)


def carry_out(
    plan: Plan,
    config: Config,
    folder: Path | None,
    watch: Watch,
    reporter: Reporter | None = None,
    on_interrupt: str = "raise",
    engine: str | None = None,
) -> Result:
    """Start or continue a run in a folder (or in memory) and return its result."""
    if on_interrupt not in ON_INTERRUPT:
        raise OptionError(f"on_interrupt={on_interrupt!r} is not allowed; choose {' or '.join(ON_INTERRUPT)}")
    if engine is not None or folder is None or not (folder / STATE).is_file():
        engines.build(engine or config.engine).check()  # before anything is written
    with lock_folder(folder), catch_interrupt() as request:
        result = _carry_out(plan, config, folder, watch, reporter or Reporter(), request, engine)
    if on_interrupt == "raise":
        request.pass_on()
    return result


def _carry_out(
    plan: Plan,
    config: Config,
    folder: Path | None,
    watch: Watch,
    reporter: Reporter,
    request: Interrupt,
    other: str | None = None,
) -> Result:
    if folder is not None:
        create_folder(folder, config)
    store = Store(None if folder is None else folder / STATE, cache_mb=config.cache_mb, device=config.device)
    label, known = config.method, store.facts
    if folder is not None and known.next_round is not None:
        store.check()
    reporter.start(
        label, plan.rounds, -plan.method.needs.setup_rounds if known.next_round is None else known.next_round
    )
    with doing("choosing the engine"):
        engine = begin(plan, config, folder, store, other).make(plan)
    loop = RoundLoop(plan, engine, store, config.eval_every, config.select)
    warn_of_data(plan.data, config.select)

    def report(progress: Progress) -> None:
        first.close()
        reporter.step(label, progress)
        watch(progress)

    try:
        with ExitStack() as first:
            first.enter_context(doing("compiling, first round" if has_numba() else "first round"))
            finished = loop.run(report, request)
    finally:
        engine.close()
        store.empty_log()
    result = Result(plan, config, store, loop.metric, loop.point, folder)
    if finished and folder is not None:
        keep_adapted(result)
    if finished and config.save_models and folder is not None:
        result.save_models(folder / MODELS)
    result.write()  # last: a summary of all rounds says that everything is there
    if finished:
        reporter.end(label, result.summary)
    return result


def begin(plan: Plan, config: Config, folder: Path | None, store: Store, other: str | None = None) -> Choice:
    """The choice of a run's engine. When a run starts, engine and identity are recorded; when it is continued, the
    identity must be the same, and the engine may be an `other` one."""
    identity, known = identify(plan, config), store.facts
    require_identity(store, identity, folder, UNCHANGED)
    if known.engine is not None and other is not None:
        chosen, _ = resolve(other, plan)
        if not have_same_bits(known.engine, chosen):
            log.warning("the run goes on with %s instead of %s, which differ by rounding", chosen, known.engine)
        store.record({"engine": chosen})
        return engines.build(chosen)
    if known.engine is not None:
        with named_by(folder or Path()):
            return engines.build(known.engine)
    engine, measured = resolve(config.engine, plan)
    if folder is not None:
        remember_code(config.as_dict().values())
    record_identity(store, identity)
    if folder is not None:
        record_outline(store, plan)
    store.record({"engine": engine, "calibration": measured})
    return engines.build(engine)


def open_run(folder: str | Path, **objects: Any) -> tuple[Plan, Config]:
    """The plan and the configuration of a run folder; what was given in Python must be given again. Clients are told
    apart by their names, so their order may be another one."""
    check_objects(objects)
    folder = Path(folder)
    settings = read_folder(folder)
    require_objects(folder, settings, objects)
    objects = arrange_clients(objects, read_identity(folder / STATE).get("clients", ()))
    own = [name for name, value in settings.items() if value == OWN]
    dealt = DEALING if "data" in own and isinstance(objects["data"], Federation) else ()
    named = {name: value for name, value in settings.items() if name not in (*own, *dealt)}
    if isinstance(objects.get("method"), Method):
        named["method"] = objects["method"]
    config, known = separate(named | {name: objects[name] for name in ("data",) if dealt})
    return make_plan(mark_objects(config, own), known | objects), mark_objects(config, own)


def read_settings(settings: Mapping[str, Any], objects: Mapping[str, Any]) -> Config:
    """The configuration of a run that is opened without its data, with marks at what was given in Python."""
    own = [name for name, value in settings.items() if value == OWN]
    named = {name: value for name, value in settings.items() if name not in own}
    method = {"method": objects["method"]} if "method" in objects else {}
    return mark_objects(configure(named | method), own)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    engine: str | None = None,
    watch: Watch = lambda _: None,
    reporter: Reporter | None = None,
    on_interrupt: str = "raise",
    trust: bool = False,
    **objects: Unpack[Known],
) -> Result:
    """Continue a run where it stopped; the result is bit-identical to an uninterrupted one.

    Args:
        folder: the run's folder.
        rounds: train it further, to so many rounds in all; the result is bit-identical to that of a run which was asked
            for as many at once. Refused where the first rounds would have been others: of a schedule or a method in
            which they depend on the number of rounds.
        engine: another engine to go on with, such as `workers` where a cluster is gone: `workers` and `ray` give the
            same bits, and so do `vector` and `ray(vector=true)`.
        watch: called after every round.
        reporter: receives how the run goes on.
        on_interrupt: as for `run`.
        trust: run code that the folder names, as in `method: mine.py:Mine`, though no run on this machine has used it.
        objects: what was given to `run` as an object, under the same names.
    """
    with named_by(folder, trust), reporting(reporter) as shown:
        plan, config = open_run(folder, **build_method(folder, objects))
        if rounds is not None:
            plan, config = extend(plan, config, Path(folder), rounds)
        return carry_out(plan, config, Path(folder), watch, shown, on_interrupt, engine)


def load(folder: str | Path, *, trust: bool = False, **objects: Unpack[Known]) -> Result:
    """Open a run folder to read its metrics and models, without running anything, and without the data. What needs
    data (training a model on them, scores of a figure) loads them by the name of their source, or asks for them.

    Args:
        folder: the run's folder.
        trust: as for `resume`.
        objects: what was given to `run` as an object, under the same names, as far as it is needed: a network that
            cannot be built from the folder, a loss for scores of new clients. With `data`, which are compared by name
            and fingerprint, all of it.

    >>> import idiolect, torch
    >>> place = getfixture("tmp_path") / "run"
    >>> clients = {"ann": (torch.rand(20, 2), [0, 1] * 10), "bob": (torch.rand(20, 2), [1, 0] * 10)}
    >>> result = idiolect.run("finetune(fedavg)", clients, model="linear", rounds=2, out=place)
    >>> again, x = idiolect.load(place), torch.rand(3, 2)
    >>> torch.equal(again.model("bob")(x), result.model("bob")(x)), again.summary == result.summary
    (True, True)
    """
    folder = Path(folder)

    def with_data() -> tuple[Plan, Config]:
        with named_by(folder, trust):
            plan, config = open_run(folder, **build_method(folder, objects))
        require_identity(store, identify(plan, config), folder, UNCHANGED, ignore=LIBRARY)
        return plan, config

    check_objects(objects)
    settings = read_folder(folder)
    store = Store(folder / STATE, write=False)
    if "data" in objects or not has_outline(store):
        plan, config = with_data()
        loop = RoundLoop(plan, Loop(plan), store, config.eval_every, config.select)
        return Result(plan, config, store, loop.metric, loop.point, folder)
    with named_by(folder, trust):
        known = build_method(folder, objects)
        config = read_settings(settings, known)
        plan = plan_without_data(store, config, known, folder)
    require_code(store, plan, config, folder, known, UNCHANGED)
    result = Result(plan, config, store, *headline_of(store), folder)
    result.fetch = lambda: with_data()[0]
    return result


def build_method(folder: str | Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The objects with the method built, which the user may name by an expression with code of his own; an error where
    the folder's is a class that only Python had, and is not given again."""
    check_objects(objects)
    method = objects.get("method")
    if isinstance(method, str):
        return {**objects, "method": registry.build(method)}
    if method is None:
        named = str(read_folder(Path(folder)).get("method", Config().method))
        try:
            registry.build(named)
        except UnknownNameError as error:
            raise RunFolderError(
                f"{folder} holds a run of {visible(named)}, which is no method that is known here; a class of your own"
                f" is given again in Python: idiolect.load({str(folder)!r}, method=...)"
            ) from error
    return dict(objects)
