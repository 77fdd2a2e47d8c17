"""The server's side: from a configuration to a finished run, with clients that a post reaches. The state is in a folder
of the federation, so a server that is started again goes on after its last round."""

from __future__ import annotations

import fcntl
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..core.errors import RunFolderError
from ..engines import Plan
from ..runs.result import Result
from ..runs.round_loop import Progress, RoundLoop
from ..runs.settings import OWN, Config, write_config
from ..runs.setup import weights_hash
from ..runs.store import Store
from .client import NONE
from .membership import Post, Roster
from .project import Project, seats_of
from .settings import Deployment
from .transport import FlowerEngine

log = logging.getLogger("idiolect")


def serve(post: Post, project: Project, config: Config, deployment: Deployment, folder: Path) -> Result:
    """Start or continue a federation's run."""
    config = replace(
        config,
        data=config.data if project.load_data is None else OWN,
        model=config.model if project.build_model is None else OWN,
    )
    seats = seats_of(config)
    store = Store(folder / "state.sqlite")
    roster = Roster(post, seats, deployment, store)
    log.info("federation %s: waiting for %d clients", deployment.federation, seats)
    roster.gather(range(seats), deployment.needed(seats), deployment.wait)
    plan = project.server_plan(config, roster.data(), {i: each.samples for i, each in roster.members.items()})
    roster.expect(weights_hash(plan))
    identify(store, plan, config, folder)
    engine = FlowerEngine(plan, roster, store, deployment)
    experiment = RoundLoop(plan, engine, store, config.eval_every)
    if (first := experiment.first_round) > 0:
        log.info("continuing after round %d", first)
    experiment.run(report)
    result = Result(plan, config, store, experiment.metric, experiment.point, folder)
    result.write()
    engine.finish()
    log.info("complete after %d rounds: %s", plan.rounds, folder)
    return result


@contextmanager
def only_one(folder: Path, patience: float) -> Iterator[None]:
    """Hold a federation's folder for one server; another that is still ending is waited for."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with (folder / "lock").open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise RunFolderError(
                        f"another server of this federation is using {folder}; stop its run first, as in: flwr stop"
                    ) from error
                time.sleep(0.2)
        yield


def identify(store: Store, plan: Plan, config: Config, folder: Path) -> None:
    """Refuse to continue a run with other settings or initial weights than it was started with."""
    identity = {"settings": config.hash, "weights": weights_hash(plan)}
    known = store.fact("identity")
    if known is None:
        write_config(config, folder / "config.yaml")
        store.commit(NONE, {}, {}, [], {"identity": identity, "engine": "flower"})
    elif known != identity:
        differ = " and ".join(key for key in identity if known.get(key) != identity[key])
        raise RunFolderError(
            f"this federation was started with other {differ} (see {folder / 'config.yaml'}); "
            f'continue it with the same, or give the new run another name, as in federation = "second"'
        )


def report(progress: Progress) -> None:
    """A line of the log for every round; before the first evaluation there is no score to tell."""
    score = "" if math.isnan(progress.score) else f"validation {progress.score:.4f}, "
    log.info(
        "round %d of %d: %d clients sampled, training loss %.4f, %s%.1f s",
        progress.round + 1,
        progress.rounds,
        progress.clients,
        progress.loss,
        score,
        progress.seconds,
    )
