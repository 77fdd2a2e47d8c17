"""A run that is trained further, to the same bits as one that was asked for all rounds at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.errors import InputError, RunFolderError
from ..engines import Plan
from .folder import CONFIG, STATE
from .identity import FACT, identify, record_identity, require_identity
from .lock import lock_folder
from .settings import Config, write_config
from .store import Store


def extend(plan: Plan, config: Config, folder: Path, rounds: int) -> tuple[Plan, Config]:
    """The plan and the configuration of the run in a folder with more rounds, which the folder then says as well; an
    error, and nothing is changed, where its first rounds would have been others."""
    longer, further = replace(plan, rounds=rounds), replace(config, rounds=rounds)
    with lock_folder(folder):
        store = Store(folder / STATE)
        try:
            recorded = dict(store.fact(FACT) or {}).get("config", {})
            if config.rounds < rounds and recorded.get("rounds") == rounds:  # a process ended between the two writes
                require_identity(store, identify(longer, further), folder, "undo the change")
            else:
                require_identity(store, identify(plan, config), folder, "undo the change, then train it further")
                if reason := why_not_further(plan, config, rounds, store.facts.rounds_done):
                    raise InputError(f"{folder} cannot be trained to {rounds} rounds: {reason}")
                record_identity(store, identify(longer, further))
            write_config(further, folder / CONFIG)
        except OSError as error:
            raise RunFolderError(f"the run folder {folder} cannot be written: {error.strerror}") from error
        finally:
            store.close()
    return longer, further


def why_not_further(plan: Plan, config: Config, rounds: int, done: int) -> str:
    """Why a run that has `done` some of its rounds cannot have so many in all; "" where it can."""
    factor, reason = plan.training.schedule.factor, plan.method.refuses.more_rounds
    if rounds <= plan.rounds:
        return f"it has {plan.rounds}; give a larger number, or resume it without --rounds"
    if not done:
        return "it has not begun; start one with as many rounds"
    if reason:
        return f"{plan.method.name}: {reason}, so its first ones would have been others; start a run with as many"
    if any(factor(at, plan.rounds) != factor(at, rounds) for at in range(done)):
        return (
            f"the learning rate of its first rounds depends on their number (schedule={config.schedule}); start a run"
            " with as many rounds"
        )
    if done == plan.rounds and done % config.eval_every:
        return (
            f"its last round, {done}, was evaluated though eval_every={config.eval_every} would not have it in a longer"
            " run; start a run with as many rounds"
        )
    return ""
