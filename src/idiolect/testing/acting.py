"""Whether a method does anything: it trains, and it is no other method under a new name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..contract import ClientContext, Method, Phase, Wrapper, methods
from ..contract.phase import look
from ..core.options import options_of
from ..core.registry import describe
from ..engines.client_round import do_phases
from ..engines.slots import finish, first_client, first_server
from .checks import NEARLY, plain_of
from .differences import close, require
from .shared_runs import USUAL, make_plan, play_once
from .tiny import ROUNDS, Played

PLANS: tuple[dict[str, Any], ...] = (USUAL, {**USUAL, "norm": True})
"""Where methods are told apart: on the tiny federation and, for what acts on normalisation only, with that."""


def check_acts(method: Method) -> None:
    """Training changes what is kept or sent, and outcomes are not FedAvg's, Local's or those of a declared identity."""
    rounds = range(-method.needs.setup_rounds, 1)
    changes = any(not _same(_play_first(method, round), _play_first(Idle(method), round), 0.0) for round in rounds)
    require(
        changes,
        "its phases change no slot that is kept or sent, so that training is lost; declare in `slots` what they train, "
        "or let `finish` put it where it stays",
    )
    for other in _others(method):
        outcomes = ([_losses(play_once(each, **plan)) for each in (method, other)] for plan in PLANS)
        require(
            not all(_same(ours, theirs, NEARLY * ROUNDS) for ours, theirs in outcomes),
            f"it does what {describe(other)} does: on the tiny federation, with and without batch normalisation, every "
            f"client's validation and test loss after each of {ROUNDS} rounds is the same; choose defaults with which "
            "it acts, or declare this case in `identities`",
        )


class Idle(Wrapper):
    """A method whose phases look at their batches and change nothing."""

    name = "idle"
    touches_model = False

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's, with another step."""
        return [replace(phase, step=look) for phase in self.inner.phases(ctx)]


def _play_first(method: Method, round: int) -> dict[str, Tensor]:
    """What the first client keeps and sends after its part of a round, as a newcomer."""
    plan = make_plan(method)
    ctx, server = plan.context(0, round), plan.server(round)
    client, download = first_client(ctx), method.download(server, first_server(server), plan.data.seen)
    work, _ = do_phases(plan, ctx, client, download.of(0))
    kept, upload, _ = finish(ctx, client, work)
    return {
        f"{kind} {slot} {name}": leaf
        for kind, slots in (("kept", kept), ("sent", upload.slots), ("mask", upload.masks))
        for slot, leaves in slots.items()
        for name, leaf in leaves.items()
    }


def _others(method: Method) -> Iterator[Method]:
    """What it must not equal: FedAvg, Local, what a wrapper wraps, and what its neutral cases equal; but for methods of
    its own class, and for what it equals as one of those cases."""
    cases = [(methods.build(case, type(method)), plain_of(plain)) for case, plain in type(method).identities.items()]
    wrapped = [method.inner] if isinstance(method, Wrapper) else []
    equal = [plain for case, plain in cases if _has_options_of(method, case)]
    others = [methods.build("fedavg"), methods.build("local"), *wrapped, *(plain for _, plain in cases)]
    return (
        other
        for other in dict.fromkeys(others)
        if type(other) is not type(method) and other not in (*equal, *(wrapped if equal else ()))
    )


def _has_options_of(method: Method, case: Method) -> bool:
    """Whether a method has all options that make a neutral case, whatever its others are."""
    neutral = {name: getattr(case, name) for name, info in options_of(type(case)).items()}
    return all(
        getattr(method, name) == value
        for name, value in neutral.items()
        if value != options_of(type(case))[name].default
    )


def _losses(played: Played) -> dict[str, Tensor]:
    """The loss of what every client predicts with, adapted where that is done, by round and split."""
    points = {}
    for round, client, _, point, split, metric, value, _ in played.rows:
        if metric == "loss" and point in ("personal", "adapted"):
            points[f"{round} {client} {split}", point] = torch.tensor(value)
    return {
        where: points.get((where, "adapted"), loss) for (where, point), loss in points.items() if point == "personal"
    }


def _same(a: dict[str, Tensor], b: dict[str, Tensor], relative: float) -> bool:
    return a.keys() == b.keys() and all(close(leaf, b[name], relative) for name, leaf in a.items())
