"""The server's side, from a configuration to a finished run. Its state is in a folder of the federation, so a server
that is started again continues after its last round."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

from ..core.errors import RunFolderError
from ..core.tables import compact
from ..engines import Plan
from ..runs.result import Result
from ..runs.round_loop import Progress, RoundLoop
from ..runs.settings import OWN, Config, write_config
from ..runs.setup import weights_hash
from ..runs.store import Store
from .engine import FlowerEngine
from .folders import STATE_FILE, write_facts
from .membership import Membership
from .project import Project, count_clients
from .settings import Deployment
from .transport import Transport

log = logging.getLogger("idiolect")


def serve(transport: Transport, project: Project, config: Config, deployment: Deployment, folder: Path) -> Result:
    """Start or continue a federation's run.

    Args:
        transport: how to reach the SuperNodes.
        project: the user's functions.
        config: the settings of the run.
        deployment: the settings of the deployment.
        folder: the server's folder.
    """
    config = replace(
        config,
        data=config.data if project.load_data is None else OWN,
        model=config.model if project.build_model is None else OWN,
    )
    n_clients = count_clients(config)
    store = Store(folder / STATE_FILE)
    membership = Membership(transport, n_clients, deployment, store)
    log.info("federation %s: waiting for %d clients", deployment.federation, n_clients)
    membership.wait_for(range(n_clients), deployment.count_needed(n_clients), deployment.wait)
    plan = project.build_server_plan(config, membership.agree(), membership.count_samples())
    membership.require_weights(weights_hash(plan))
    membership.wait_for_agreed()
    check_identity(store, plan, config, folder)
    engine = FlowerEngine(plan, membership, store, deployment)
    experiment = RoundLoop(plan, engine, store, config.eval_every, config.select)
    if (first := experiment.first_round) > 0:
        log.info("continuing after round %d", first)
    experiment.run(log_round)
    result = Result(plan, config, store, experiment.metric, experiment.point, folder)
    result.write()
    engine.finish()
    log.info("complete after %d rounds: %s", plan.rounds, folder)
    return result


def check_identity(store: Store, plan: Plan, config: Config, folder: Path) -> None:
    """Refuse to continue a run with other settings or initial weights than it was started with."""
    identity = {"settings": config.hash, "weights": weights_hash(plan)}
    known = store.fact("identity")
    if known is None:
        write_config(config, folder / "config.yaml")
        write_facts(store, {"identity": identity, "engine": "flower"})
    elif known != identity:
        differ = " and ".join(key for key in identity if known.get(key) != identity[key])
        raise RunFolderError(
            f"this federation was started with other {differ} (see {folder / 'config.yaml'}); "
            f'continue it with the same, or give the new run another name, as in federation = "second"'
        )


def log_round(progress: Progress) -> None:
    """Log a line for every round; before the first evaluation there is no score."""
    score = "" if math.isnan(progress.score) else f"validation {compact(progress.score, 4)}, "
    log.info(
        "round %d of %d: %d clients sampled, training loss %s, %s%.1f s",
        progress.round + 1,
        progress.rounds,
        progress.clients,
        compact(progress.loss, 4),
        score,
        progress.seconds,
    )
