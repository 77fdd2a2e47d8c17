"""A phase: the static description of a stretch of local training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which data, how long, which parameters. Static: never depends on data.

    Attributes:
        name: what the method calls it.
        slots: the slots it trains; their optimiser state is made fresh each round unless the method kept it. A phase
            that trains none only looks at data, and does not count as local steps.
        part: names of the model's parameters that it trains; None is all of them.
        epochs: passes over the data; None is the run's local epochs.
        steps: instead of epochs, exactly so many steps (the data are passed over as often as needed).
        data: `train`, `holdout` (the share of the training data that `Method.holdout` sets aside) or `public`.
        stream: which random order; phases of one stream see the same batches in the same order.
        ahead: so many rounds later the same stream has this phase's order (to say now what is used then).
        share: the share of the data used, the first of the random order.
        samples: at most so many samples, the first of the random order.
        batch_size, lr: None is the run's.
        draws: how many independent batches each step gets; more than one come as a tuple.
        noise: shapes of standard normal tensors that the engine draws for each step (-1 is the batch).
    """

    name: str = "train"
    slots: tuple[str, ...] = ("params",)
    part: frozenset[str] | None = None
    epochs: int | None = None
    steps: int | None = None
    data: str = "train"
    stream: str = "train"
    ahead: int = 0
    share: float = 1.0
    samples: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    draws: int = 1
    noise: tuple[tuple[str, tuple[int, ...]], ...] = ()
