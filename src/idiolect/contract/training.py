"""How clients train: the options that belong to the run and not to a method."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..task.optimizers import SGD, Optimizer
from ..task.schedules import Schedule


@dataclass(frozen=True)
class Training:
    """The training options of a run.

    Attributes:
        optimizer, schedule: how parameters move, and how the learning rate changes over rounds.
        optimizer_state: `reset` in every round, or `keep`: momentum and moments stay on the client.
        lr: the learning rate before the schedule.
        epochs, batch_size: of a phase that does not say otherwise.
        weighting: clients count by their training `samples`, or `uniform`.
        norm_stats: running statistics of normalisation: `average`, `local` or `recompute`; None takes the method's.
        norm_affine: scale and shift of normalisation: `shared` or `local`.
        seed: determines everything random.
        device: where tensors live.
    """

    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Schedule)
    optimizer_state: str = "reset"
    lr: float = 0.05
    epochs: int = 1
    batch_size: int = 32
    weighting: str = "samples"
    norm_stats: str | None = None
    norm_affine: str = "shared"
    seed: int = 0
    device: str = "cpu"
