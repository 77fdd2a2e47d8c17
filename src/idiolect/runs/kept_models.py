"""Models that are trained on clients' own data before they predict: tuned ones, and those of clients that never take
part. They cannot be made again without the data, so a finished run keeps them in its store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core import codec
from ..core.tree import Slots
from ..engines.client_evaluation import find_adaptation

if TYPE_CHECKING:
    from .result import Result

log = logging.getLogger("idiolect")
ROUND = "adapted"
"""The fact that says of which round they are."""
MOST_MB = 512
"""What they may take in all."""


def keep_adapted(result: Result) -> None:
    """Write down the models of the selected round that only the data could make again."""
    plan, store = result.plan, result.store
    at = _chosen(result)
    wanted = [index for index in range(len(plan.data)) if _is_adapted(result, index)]
    if not wanted or store.fact(ROUND) == at:
        return
    megabytes = len(wanted) * codec.size(result.personal_slots(wanted[0])) / 1e6
    if megabytes > MOST_MB:
        log.info(
            "the models that clients tune take %.0f MB and are not kept; idiolect.load will ask for the data to make"
            " them again, unless save_models=true",
            megabytes,
        )
        return
    store.keep(((_name(index), result.personal_slots(index)) for index in wanted), {ROUND: at})


def find_adapted(result: Result, index: int, at: int | None) -> Slots | None:
    """A client's model that was kept, if it is of the round `at`, counted from 0; None is the newest."""
    newest = result.store.facts.rounds_done - 1
    known: int | None = result.store.fact(ROUND)
    return result.store.kept(_name(index)) if known is not None and known == (newest if at is None else at) else None


def _chosen(result: Result) -> int:
    facts = result.store.facts
    return facts.rounds_done - 1 if facts.selected is None else facts.selected


def _is_adapted(result: Result, index: int) -> bool:
    plan = result.plan
    return bool(find_adaptation(plan.context(index, plan.rounds - 1), index in plan.data.unseen))


def _name(index: int) -> str:
    return f"adapted {index}"
