"""Which engine carries out the clients' work: an expression such as `workers(count=2)`, or `auto`, which measures."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..contract import Batch, Download
from ..contract.gradients import Autograd
from ..core.errors import DataError, InputError
from ..core.options import Options, option
from ..core.registry import Registry, describe
from ..kernels import find_dense
from .cluster.connection import find_address
from .loop import Engine, Loop
from .machine import cores
from .measured import recall, remember
from .phases import count_passes
from .plan import Plan
from .processes import Workers
from .slots import first_server
from .stack_size import fit_chunk
from .stackability import why_not_stackable

log = logging.getLogger("idiolect")

# Seconds of local training below which `auto` does not start processes.
WORTHWHILE = 10.0
# The share of a run that measuring may cost, and how many clients are timed at most.
SHARE, MOST_CLIENTS = 0.1, 24


@dataclass(frozen=True)
class Choice(Options):
    """Which engine, with which options."""

    def make(self, plan: Plan) -> Engine:
        """The engine, ready to carry out a plan."""
        raise TypeError(f"{describe(self)} must be resolved first")

    def check(self) -> None:
        """Raise an error if what it needs is not there."""


engines: Registry[Choice] = Registry("engine", Choice)


@engines.register("loop")
@dataclass(frozen=True)
class LoopChoice(Choice):
    """One client after another in plain Python: the reference, and the debugger."""

    def make(self, plan: Plan) -> Engine:
        """The reference."""
        return Loop(plan)


@engines.register("workers")
@dataclass(frozen=True)
class WorkersChoice(Choice):
    """Several processes of one thread each: the fastest for convolutions on a CPU."""

    count: int | None = option(None, min=1, help="number of processes; none is one per core, or per GPU")

    def make(self, plan: Plan) -> Engine:
        """A pool of processes."""
        return Workers(plan, self.count)


@engines.register("vector")
@dataclass(frozen=True)
class VectorChoice(Choice):
    """Clients stacked and traced at once, in several processes: the fastest for small dense models."""

    chunk: int | None = option(None, min=1, help="most clients per stack; none is what fits the caches, or a GPU")
    count: int | None = option(None, min=1, help="number of processes; none is one per core")

    def make(self, plan: Plan) -> Engine:
        """A pool of processes that stack clients; plain workers where the plan cannot be traced."""
        problem = why_not_stackable(plan)
        pool = Workers(plan, self.count, 0 if problem else self.chunk or fit_chunk(plan))
        pool.note_unstacked(problem)
        return pool


@engines.register("ray")
@dataclass(frozen=True)
class RayChoice(Choice):
    """Actors on a cluster of machines, by Ray: the bits of `workers`, or with stacks those of `vector`."""

    actors: int | None = option(None, min=1, help="number of actors; none is as many as the cluster has room for")
    cpus: float = option(1.0, min=0.0, help="cores that each reserves; it computes on one")
    gpus: float = option(0.0, min=0.0, help="GPUs that each reserves, or a share of one")
    vector: bool = option(False, help="stack and trace clients at once, as the engine vector does")
    chunk: int | None = option(None, min=1, help="most clients per stack; none is what fits the caches, or a GPU")
    sums: bool = option(True, help="add up on the actors what clients send, where the method allows it")
    timeout: float = option(3600.0, above=0.0, help="seconds that a group of clients may take")
    wait: float = option(300.0, min=0.0, help="seconds to wait for an actor where none is left")

    def check(self) -> None:
        """Raise an error if there is no cluster, or none that has room for the actors."""
        from .cluster.connection import check_cluster

        check_cluster(self.actors, self.cpus, self.gpus)

    def make(self, plan: Plan) -> Engine:
        """Actors, which are started when they are first needed."""
        if torch.device(plan.device).type != "cpu" and self.gpus == 0:
            raise InputError(
                f"device={plan.device} needs GPUs for the actors, which have none; write engine='ray(gpus=1)', or a"
                " share of one, as in ray(gpus=0.5)"
            )
        from .cluster.actor import ClientActor
        from .cluster.engine import RayEngine
        from .cluster.pool import ActorPool

        problem = why_not_stackable(plan) if self.vector else ""
        chunk = 0 if problem or not self.vector else self.chunk or fit_chunk(plan)
        pool = partial(ActorPool, ClientActor, self.actors, self.cpus, self.gpus, self.wait)
        engine = RayEngine(plan, pool, chunk, self.sums, self.timeout)
        engine.note_unstacked(problem)
        return engine


@engines.register("auto")
@dataclass(frozen=True)
class AutoChoice(Choice):
    """Times a few clients' work on each engine and takes the fastest; the choice is kept with the run."""


def have_same_bits(a: str, b: str) -> bool:
    """Whether two engines compute the same to the bit: those that stack clients do, and those that do not.

    >>> have_same_bits("workers(count=2)", "ray(actors=7)"), have_same_bits("vector(chunk=4)", "ray")
    (True, False)
    """
    return _kind(engines.build(a)) == _kind(engines.build(b))


def _kind(choice: Choice) -> tuple[str, int | None]:
    if isinstance(choice, VectorChoice) or (isinstance(choice, RayChoice) and choice.vector):
        return "stacks", choice.chunk
    return "one by one" if isinstance(choice, WorkersChoice | RayChoice) else type(choice).__name__, None


def resolve(text: str, plan: Plan, one_machine: bool = False) -> tuple[str, dict[str, float]]:
    """The engine's expression with `auto` resolved, and the seconds per client that were measured; with `one_machine`,
    of what needs no cluster."""
    choice = engines.build(text)
    return calibrate(plan, one_machine) if isinstance(choice, AutoChoice) else (describe(choice), {})


def make_engine(text: str, plan: Plan) -> Engine:
    """The engine that an expression describes, ready to carry out a plan."""
    return engines.build(resolve(text, plan)[0]).make(plan)


def calibrate(plan: Plan, one_machine: bool = False) -> tuple[str, dict[str, float]]:
    """Train some clients for the first round on each candidate, and choose the fastest; nothing is kept of what they
    compute but the seconds, for the next run of this kind.

    A run that is over in seconds stays with the loop, whose start is free. Where measuring would cost more than a tenth
    of the run, because few clients train for few rounds, a rule decides instead.
    """
    cluster = "" if one_machine else find_address()
    present, known = len(plan.first_participants), recall(plan, cluster)
    visits, alone = present * plan.rounds, known.pop("loop", 0.0)
    if not alone and visits * SHARE < 1:
        alone = estimate_one_client(plan)
    elif not alone:
        alone = time_one_client(plan)
        remember(plan, {"loop": alone}, cluster)
    if alone * visits < WORTHWHILE:
        return "loop", {"loop": alone}
    clients = min(MOST_CLIENTS, present, int((visits * SHARE - 1) / 4))  # two candidates train them twice
    if not known and clients < min(present, 2 * cores()):
        return choose_by_rule(plan), {"loop": alone}
    if not known:
        known = measure(plan, clients, cluster) or {"loop": alone}
        remember(plan, known, cluster)
    return min(known, key=lambda text: known[text]), known


def measure(plan: Plan, clients: int, cluster: str = "") -> dict[str, float]:
    """Seconds per client of all candidates that can train and evaluate."""
    ids, seconds = plan.first_participants[:clients], dict[str, float]()
    message = plan.method.download(plan.server(0), first_server(plan.server(0)), ids)
    for text, engine in find_candidates(plan, cluster).items():
        try:
            time_training(engine, ids, message)
            seconds[text] = time_training(engine, ids, message)
            evaluate_some(engine, plan)
        except DataError:  # no engine can read what is broken
            raise
        except Exception as error:
            seconds.pop(text, None)
            log.warning("auto leaves out the engine %s, which failed: %s", text, str(error).partition("\n")[0])
        finally:
            engine.close()
    return seconds


def choose_by_rule(plan: Plan) -> str:
    """The engine that is usually the fastest: stacks for dense networks, workers for all others."""
    count, dense = cores(), all(find_dense(task) is not None for task in plan.tasks)
    if dense and len(plan.first_participants) > 1 and not why_not_stackable(plan):
        return f"vector(chunk={fit_chunk(plan)}, count={count})"
    return f"workers(count={count})" if count > 1 and len(plan.first_participants) > 1 else "loop"


def time_one_client(plan: Plan) -> float:
    """Seconds of one client's training by the loop."""
    ids = plan.first_participants[:1]
    message = plan.method.download(plan.server(0), first_server(plan.server(0)), ids)
    return time_training(Loop(plan), ids, message)


def estimate_one_client(plan: Plan) -> float:
    """About the seconds of one client's training by the loop: a gradient, times the steps."""
    index = plan.first_participants[0]
    ctx, part = plan.context(index, 0), plan.part(index, "train")
    steps = sum(count_passes(plan, phase, ctx.task, part.size).steps for phase in plan.method.phases(ctx))
    task = ctx.task.twin()
    x, y = part.take(torch.arange(min(part.size, plan.training.batch_size)))
    batch, seconds = Batch(x, y, torch.ones(len(y), device=plan.device)), []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            started = time.perf_counter()
            Autograd().of_loss(
                lambda part: task.loss(part["params"], task.net.buffers, batch), {"params": task.net.params}
            )
            seconds.append(time.perf_counter() - started)
    return min(seconds) * steps


def find_candidates(plan: Plan, cluster: str = "") -> dict[str, Engine]:
    """The engines that may be the fastest for a plan, by their expressions, also on a cluster if there is one."""
    count, chunk = cores(), fit_chunk(plan)
    found: dict[str, Engine] = {f"workers(count={count})": Workers(plan, count)} if count > 1 else {"loop": Loop(plan)}
    if problem := why_not_stackable(plan):
        log.info("auto leaves out the engine vector: %s", problem)
    else:
        found[f"vector(chunk={chunk}, count={count})"] = Workers(plan, count, chunk)
    if cluster:
        found["ray"] = RayChoice().make(plan)
        if not problem:
            found[f"ray(vector=true, chunk={chunk})"] = RayChoice(vector=True, chunk=chunk).make(plan)
    return found


def evaluate_some(engine: Engine, plan: Plan) -> None:
    """Evaluate two clients of each cohort, to see that it works."""
    server = plan.server(0)
    for ids, unseen in ((plan.data.seen[:2], False), (sorted(plan.data.unseen)[:2], True)):
        if ids:
            message = plan.method.download(server, first_server(server), ids)
            with torch.random.fork_rng(devices=[]):
                list(engine.evaluate(0, ids, dict.fromkeys, message, unseen))


def time_training(engine: Engine, ids: Sequence[int], message: Download) -> float:
    """Seconds per client of one round's training."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        for _ in engine.train(0, dict.fromkeys(ids), message):
            pass
    return (time.perf_counter() - started) / max(1, len(ids))
