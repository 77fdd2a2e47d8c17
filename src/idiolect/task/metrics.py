"""Metrics: functions (outputs, targets) -> number, by name, and which of them suit a task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.code import may_name_code
from ..core.errors import InputError, ModelError
from ..core.expressions import parse, split
from ..core.functions import Functions, name_of
from .losses import Loss, bce, class_axis, dice_loss, foreground, mae, mse, per_sample


@dataclass(frozen=True)
class Metric:
    """A function (outputs, targets) -> number, and whether more of it is better. With `each` the function gives one
    value per sample, of which the metric is the mean. Values lie between `low` and `high`, or are NaN."""

    function: Callable[[Tensor, Tensor], Any]
    higher_is_better: bool = True
    each: bool = False
    low: float = -math.inf
    high: float = math.inf

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The metric on all samples of a client."""
        return self.parts(outputs, y, [len(y)])[0]

    def parts(self, outputs: Tensor, y: Tensor, sizes: list[int]) -> list[float]:
        """The metric of several clients, whose samples lie one after another.

        >>> METRICS["mae"].parts(torch.tensor([1.0, 2.0, 4.0]), torch.zeros(3), [2, 1])
        [1.5, 4.0]
        """
        if self.each:
            return [float(part.mean()) for part in torch.split(self.function(outputs, y).double(), sizes)]
        parts = zip(torch.split(outputs, sizes), torch.split(y, sizes), strict=True)
        return [float(self.function(*part)) for part in parts]


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Share of right classes per sample: one, or of all positions (of characters, where those are predicted)."""
    if outputs.numel() == y.numel():
        return per_sample(((outputs.reshape(y.shape) > 0) == (y > 0.5)).double())
    return per_sample((outputs.argmax(class_axis(outputs, y)) == y).double())


def _margins(outputs: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """For two classes: how much more class 1 is believed than class 0, and whether it is true."""
    if outputs.numel() == y.numel():
        margin = outputs.reshape(y.shape)
    else:
        logits = outputs.movedim(class_axis(outputs, y), 0)
        margin = logits[1] - logits[0]
    return margin.detach().flatten().double().cpu().numpy(), (y > 0.5).flatten().cpu().numpy()


def auc(outputs: Tensor, y: Tensor) -> float:
    """Area under the ROC curve; NaN where only one class is present, or an output is not finite."""
    from sklearn.metrics import roc_auc_score

    margin, truth = _margins(outputs, y)
    if truth.all() or not truth.any() or not np.isfinite(margin).all():
        return math.nan
    return float(roc_auc_score(truth, margin))


def sensitivity(outputs: Tensor, y: Tensor) -> float:
    """Share of class 1 that is found; NaN where there is none."""
    margin, truth = _margins(outputs, y)
    return float((margin[truth] > 0).mean()) if truth.any() else math.nan


def specificity(outputs: Tensor, y: Tensor) -> float:
    """Share of class 0 that is left alone; NaN where there is none."""
    margin, truth = _margins(outputs, y)
    return math.nan if truth.all() else float((margin[~truth] <= 0).mean())


def f1(outputs: Tensor, y: Tensor) -> float:
    """Harmonic mean of precision and sensitivity for class 1; NaN where it is neither present nor predicted."""
    from sklearn.metrics import f1_score

    margin, truth = _margins(outputs, y)
    return float(f1_score(truth, margin > 0, zero_division=math.nan))


def _regions(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted and true regions, bool [samples, classes but the background, ...]."""
    chance, truth = foreground(outputs, y)
    if outputs.numel() == y.numel():
        return chance > 0.5, truth > 0.5
    chosen = outputs.argmax(class_axis(outputs, y)).unsqueeze(1)
    kinds = torch.arange(1, chance.shape[1] + 1, device=y.device).reshape(1, -1, *[1] * (y.ndim - 1))
    return chosen == kinds, truth > 0.5


def dice(outputs: Tensor, y: Tensor) -> Tensor:
    """Dice score 2 |P and G| / (|P| + |G|) of predicted and true regions, the mean over samples and classes but the
    background; 1 where both are empty."""
    predicted, truth = (region.flatten(2) for region in _regions(outputs, y))
    both, either = (predicted & truth).sum(2).double(), (predicted.sum(2) + truth.sum(2)).double()
    return torch.where(either > 0, 2 * both / either.clamp_min(1), 1.0).mean()


def hausdorff(outputs: Tensor, y: Tensor) -> float:
    """Hausdorff distance in pixels between predicted and true regions, the mean over samples and classes but the
    background: 0 where both are empty, the image's diagonal where one is."""
    predicted, truth = (region.flatten(0, 1).cpu().numpy() for region in _regions(outputs, y))
    return float(np.mean([_apart(a, b) for a, b in zip(predicted, truth, strict=True)]))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.spatial.distance import directed_hausdorff

    if not a.any() or not b.any():
        return 0.0 if a.any() == b.any() else math.hypot(*a.shape)
    first, second = np.argwhere(a), np.argwhere(b)
    return float(max(directed_hausdorff(first, second)[0], directed_hausdorff(second, first)[0]))


def r2(outputs: Tensor, y: Tensor) -> float:
    """Coefficient of determination, the mean over targets; NaN for fewer than two samples, or where an output is not
    finite."""
    from sklearn.metrics import r2_score

    if len(y) < 2 or not bool(torch.isfinite(outputs).all()):
        return math.nan
    truth = y.reshape(len(y), -1).double().cpu().numpy()
    return float(r2_score(truth, outputs.detach().reshape(truth.shape).double().cpu().numpy()))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, each=True, low=0.0, high=1.0),
    "auc": Metric(auc, low=0.0, high=1.0),
    "sensitivity": Metric(sensitivity, low=0.0, high=1.0),
    "specificity": Metric(specificity, low=0.0, high=1.0),
    "f1": Metric(f1, low=0.0, high=1.0),
    "dice": Metric(dice, low=0.0, high=1.0),
    "hausdorff": Metric(hausdorff, higher_is_better=False, low=0.0),
    "mse": Metric(mse, higher_is_better=False, each=True, low=0.0),
    "mae": Metric(mae, higher_is_better=False, each=True, low=0.0),
    "r2": Metric(r2, high=1.0),
}


known_metrics: Functions[Any] = Functions("metric", METRICS, group="idiolect.metrics")


_TWO_CLASSES = ("auc", "sensitivity", "specificity", "f1")


_NUMBERS = ("mse", "mae", "r2")


Given = str | Callable[[Tensor, Tensor], Any] | Metric
"""A metric as users give it: a name, a function (outputs, targets) -> number, or a `Metric`."""


def fit_metrics(
    metrics: str | Sequence[Given] | Mapping[str, Given] | None, outputs: Tensor, y: Tensor, loss: Loss
) -> dict[str, Metric]:
    """The metrics by name: names such as "accuracy, auc" or "accuracy, file.py:mine", own functions in a list or by
    name, or what suits the data.

    The first is the headline. Without any: accuracy for classes, and what is usual for two of them; Dice and Hausdorff
    distance for classes of pixels; squared and absolute error and R2 for numbers.
    """
    kind = _kind(outputs, y, loss)
    if not metrics:
        return {name: METRICS[name] for name in _USUAL[kind]}
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        listed = split(metrics) if isinstance(metrics, str) else list(metrics)
        named = [(_name_of(metric), metric) for metric in listed]
    if twice := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise InputError(f"two metrics are called {twice[0]!r}; give each its own name, as in metrics={{'mine': ...}}")
    return {name: _take(name, metric, kind) for name, metric in named}


def _name_of(metric: Given) -> str:
    """A metric's name in tables: that of its function, without file and options."""
    if not isinstance(metric, str):
        return name_of(metric)
    name = metric if may_name_code(metric) else parse(metric).name
    return name.rpartition(":")[2]


def _take(name: str, metric: Given, kind: str) -> Metric:
    if isinstance(metric, str):
        if metric in METRICS and metric not in _USUAL[kind]:
            raise ModelError(f"the metric {metric} does not fit {kind}; choose among {', '.join(_USUAL[kind])}")
        metric = known_metrics.find(metric)
    if not isinstance(metric, Metric) and not callable(metric):
        raise InputError(
            f"the metric {name!r} is a {type(metric).__name__}; give a name, a function (outputs, targets) -> number,"
            " or an idiolect.Metric"
        )
    return metric if isinstance(metric, Metric) else Metric(metric)


_USUAL = {
    "classes": ("accuracy",),
    "two classes": ("accuracy", *_TWO_CLASSES),
    "classes of pixels": ("dice", "hausdorff", "accuracy"),
    "numbers": _NUMBERS,
}


def _kind(outputs: Tensor, y: Tensor, loss: Loss) -> str:
    """What is predicted, in words."""
    yes_or_no = loss is bce or (loss is dice_loss and outputs.numel() == y.numel())
    if y.is_floating_point() and not yes_or_no:
        return "numbers"
    if y.ndim >= 3:
        return "classes of pixels"
    two = yes_or_no or outputs.shape[class_axis(outputs, y)] == 2
    return "two classes" if two and y.ndim == 1 else "classes"
