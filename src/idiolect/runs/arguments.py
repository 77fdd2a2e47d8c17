"""The names and types of what `run`, `compare`, `tune` and `advise` take beside their own arguments, for editors and
type checkers. What each means, its default and its range are in `Config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor, nn

from ..contract import Method
from ..data.transforms import Transform
from ..task.metrics import Given
from ..task.schedules import Schedule

Network = str | nn.Module | Callable[..., nn.Module]
Change = Transform | Callable[[Tensor], Tensor]


class Conditions(TypedDict, total=False):
    """The settings of a run that are text and numbers, but for its rounds; those that may also be objects are in
    `Objects`."""

    partition: str | None
    clients: int | None
    unseen: float | str | Sequence[str]
    split: Sequence[float] | None
    head: str | None
    participation: float
    presence: Mapping[str, str] | None
    dropout: float | None
    stragglers: float | None
    local_epochs: int
    batch_size: int
    lr: float
    optimizer: str
    momentum: float | None
    weight_decay: float | None
    clip: float | None
    optimizer_state: str
    weighting: str
    norm_stats: str | None
    norm_affine: str
    eval_every: int
    eval_clients: int | None
    select: str
    after_local: bool
    eval_global: bool
    seed: int
    partition_seed: int | None
    init_seed: int | None
    sampling_seed: int | None
    engine: str
    precision: str
    cache_mb: int
    sample_cache_mb: int
    sample_cache: str | None
    device: str
    save_models: bool


class Settings(Conditions, total=False):
    """The settings of a run that are text and numbers."""

    rounds: int


class Objects(TypedDict, total=False):
    """What may be given by name or as an object."""

    model: Network | None
    models: Sequence[Network]
    model_of: Sequence[int] | Mapping[str, int]
    loss: str | Callable[[Tensor, Tensor], Tensor] | None
    metrics: str | Sequence[Given] | Mapping[str, Given] | None
    transform: str | Change | Sequence[str | Change] | None
    initial: str | Path | Mapping[str, Tensor] | None
    schedule: str | Schedule | Callable[[int, int], float]
    public: Any


class Arguments(Settings, Objects, total=False):
    """Everything that describes a run but its method and its data."""


class RaceArguments(Conditions, Objects, total=False):
    """The same without the rounds."""


class Known(Objects, total=False):
    """What was given to a run as an object, and is given again."""

    method: str | Method
    data: Any
