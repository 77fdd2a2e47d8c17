"""Slots, declared: where a value stays between rounds, whether it travels, and how the server adds it up. All carrying
in and out of a client's work follows from these declarations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..core import tree
from ..core.tree import Slots, Tree

if TYPE_CHECKING:
    from .context import RoundContext

Init = Callable[[Any], Tree]
"""ctx -> the first value of a slot; ctx is the server's for slots that live there, else the client's."""


@dataclass(frozen=True)
class Slot:
    """What becomes of one slot; `shared`, `private` and `scratch` make the three usual kinds.

    Attributes:
        home: where its value stays between rounds: on the `server`, on the `client`, or nowhere (`round`: made anew
            each round, then forgotten).
        init: its first value; None is the initial model's parameters.
        down: whether clients get it.
        up: whether clients send it: not (``""``), so that the server sees weighted sums over clients (`sum`), or so
            that it also sees each client's (`each`; `Refuses.summing` says why).
        weigh: by what a client counts in the sums: by the `run`'s weighting, `uniform`, or by a leaf that it sends,
            `<slot>/<leaf>`: a number weighs the client, a vector the rows of its leaves (counts of classes).
        missing: a coordinate that a client did not send is left out of the mean (`keep`: one that nobody sent keeps its
            value), or counts with the value `before` the round, or as `zero`.
        holds: a `model` (its buffers then travel along, in `buffers_of` the slot), `parameters` (leaves named like the
            model's), or something `other`. Of the first two, private names never leave the client.
    """

    home: Literal["server", "client", "round"]
    init: Init | None = None
    down: bool = False
    up: Literal["", "sum", "each"] = ""
    weigh: str = "run"
    missing: Literal["keep", "before", "zero"] = "keep"
    holds: Literal["model", "parameters", "other"] = "other"

    def first(self, ctx: RoundContext) -> Tree:
        """The slot's first value."""
        return ctx.initial["params"] if self.init is None else self.init(ctx)


def shared(init: Init | None = None, **facts: Any) -> Slot:
    """A slot that the server keeps, sends to clients, and averages over what they send back."""
    return Slot("server", init, down=True, up="sum", **facts)


def private(init: Init | None = None, **facts: Any) -> Slot:
    """A slot that stays on the client."""
    return Slot("client", init, **facts)


def scratch(init: Init | None = None, **facts: Any) -> Slot:
    """A slot that is made anew each round and forgotten after it."""
    return Slot("round", init, **facts)


def zeros_like_params(ctx: RoundContext) -> Tree:
    """A tree of zeros in the model's shape."""
    return tree.zeros_like(ctx.initial["params"])


def zeros_like_shared(ctx: RoundContext) -> Tree:
    """A tree of zeros in the shape of the parameters that leave the client."""
    return tree.drop(zeros_like_params(ctx), ctx.private_names)


def initial_buffers(ctx: RoundContext) -> Tree:
    """The initial model's buffers."""
    return ctx.initial["buffers"]


def nothing(ctx: RoundContext) -> Tree:
    """An empty tree: for a slot that is first filled in `finish`."""
    return {}


def zero(*names: str) -> Init:
    """A slot of numbers that start at zero.

    >>> zero("right", "samples").__name__
    'zero'
    """

    def zero(ctx: RoundContext) -> Tree:
        device = ctx.training.device
        return {name: torch.zeros((), device=device) for name in names}

    return zero


def buffers_of(slot: str) -> str:
    """The slot that holds the buffers of the model in `slot`.

    >>> buffers_of("params"), buffers_of("ditto.own")
    ('buffers', 'ditto.own.buffers')
    """
    return "buffers" if slot == "params" else f"{slot}.buffers"


def private_of(slot: str) -> str:
    """The slot that holds what a client keeps of the shared model in `slot`.

    >>> private_of("params"), private_of("fedem.1")
    ('private', 'fedem.1.private')
    """
    return "private" if slot == "params" else f"{slot}.private"


def mask_of(slot: str) -> str:
    """The slot in which `finish` says which coordinates of `slot` are sent."""
    return f"{slot}.mask"


def slot_of(slot: str, network: int) -> str:
    """Where the server keeps a slot of the clients' `network`-th network: `params`, `params@1`, ..."""
    return slot if network == 0 else f"{slot}@{network}"


def just_trained(work: Slots) -> bool:
    """Whether a client's slots are those right after its local training, which alone hold the log of it."""
    return "log" in work


def model_in(work: Slots, slot: str) -> Slots:
    """The model in `slot` as the one that predicts: its parameters in `params`, its buffers in `buffers`."""
    return {"params": work[slot], "buffers": work[buffers_of(slot)]}


def keep_model(work: Slots, slot: str) -> Slots:
    """The working slots with the model in `slot`, too: the inverse of `model_in`."""
    return {**work, slot: work["params"], buffers_of(slot): work["buffers"]}
