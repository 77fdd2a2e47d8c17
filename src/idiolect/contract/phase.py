"""A phase: the static description of a stretch of local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.tree import Slots
    from .context import ClientContext

Step = Callable[..., "Slots"]
"""(ctx, work, batch) -> work; with several streams, the batch is a tuple of batches."""


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: its step, which data, how long, which parameters. Static: never depends on data.

    Attributes:
        step: (ctx, work, batch) -> work, a bound method of the method. Never a lambda: engines group clients by their
            phases, and two lambdas are never equal.
        name: what the method calls it; records and errors do, too.
        slots: the slots it trains; their optimiser state is made fresh each round. A phase that trains none only looks
            at data, all of them (a last batch of one is dropped only where it cannot be trained on), and does not count
            as local steps.
        part: names of the model's parameters that it trains; None is all of them.
        before: (ctx, work) -> work, once, before the phase's first step.
        epochs: passes over the data; None is the run's local epochs.
        steps: instead of epochs, exactly so many steps (the data are passed over as often as needed).
        lr, batch_size: None is the run's. A learning rate of its own follows the run's schedule, too.
        data: `train`, `holdout` (the share of the training data that `Needs.holdout` sets aside), `public`, or `next
            public` (in the order that `public` has in the next round: to say now what is used then).
        stream: which random order; phases of one stream see the same batches in the same order. With several, each step
            gets a batch of each, as a tuple.
        samples: at most so many samples, the first of the random order; a fraction is a share of the client's.
        noise: names and shapes of standard normal tensors that the engine draws for each step (-1 is the batch).
    """

    step: Step
    name: str = "train"
    slots: tuple[str, ...] = ("params",)
    part: frozenset[str] | None = None
    before: Callable[[ClientContext, Slots], Slots] | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    data: str = "train"
    stream: str | tuple[str, ...] = "train"
    samples: int | float | None = None
    noise: tuple[tuple[str, tuple[int, ...]], ...] = ()


def look(ctx: ClientContext, work: Slots, batch: Any) -> Slots:
    """A step that changes nothing."""
    return work


NO_PHASE = Phase(look, "none", slots=())
"""The phase of a context that is not in one: before training, after it, and in prediction."""
