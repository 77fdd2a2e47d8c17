"""Metrics: functions (outputs, targets) -> number, by name, and which of them suit a task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor

from ..core.code import may_name_code
from ..core.errors import InputError, ModelError
from ..core.expressions import parse, split
from ..core.functions import Functions, name_of
from . import scores
from .losses import Loss, bce, class_axis, cox, dice_loss, mae, mse


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


def _share(function: Callable[[Tensor, Tensor], Any], each: bool = False) -> Metric:
    return Metric(function, each=each, low=0.0, high=1.0)


def _error(function: Callable[[Tensor, Tensor], Any], each: bool = False) -> Metric:
    return Metric(function, higher_is_better=False, each=each, low=0.0)


METRICS: dict[str, Metric] = {
    "accuracy": _share(scores.accuracy, each=True),
    "balanced_accuracy": _share(scores.balanced_accuracy),
    "macro_f1": _share(scores.macro_f1),
    "auc": _share(scores.auc),
    "log_loss": _error(scores.log_loss),
    "calibration_error": _error(scores.calibration_error),
    "sensitivity": _share(scores.sensitivity),
    "specificity": _share(scores.specificity),
    "f1": _share(scores.f1),
    "dice": _share(scores.dice),
    "iou": _share(scores.iou),
    "hausdorff": _error(scores.hausdorff),
    "mse": _error(mse, each=True),
    "rmse": _error(scores.rmse),
    "mae": _error(mae, each=True),
    "r2": Metric(scores.r2, high=1.0),
    "c_index": _share(scores.c_index),
}


OTHER_NAMES = {
    "ece": "calibration_error",
    "roc_auc": "auc",
    "f1_macro": "macro_f1",
    "logloss": "log_loss",
    "concordance": "c_index",
}
"""What metrics are called elsewhere."""


known_metrics: Functions[Any] = Functions("metric", METRICS, group="idiolect.metrics")


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
    named = name_metrics(metrics)
    if twice := [name for name, count in Counter(name for name, _ in named).items() if count > 1]:
        raise InputError(f"two metrics are called {twice[0]!r}; give each its own name, as in metrics={{'mine': ...}}")
    taken = {name: _take(name, metric, kind) for name, metric in named}
    for name, metric in taken.items():
        _try_own(name, metric, outputs, y)
    return taken


def name_metrics(metrics: str | Sequence[Given] | Mapping[str, Given]) -> list[tuple[str, Given]]:
    """Metrics with their names in tables.

    >>> name_metrics("ece, ward.py:deaths_found")
    [('calibration_error', 'calibration_error'), ('deaths_found', 'ward.py:deaths_found')]
    """
    if isinstance(metrics, Mapping):
        return list(metrics.items())
    listed = split(metrics) if isinstance(metrics, str) else list(metrics)
    known = [OTHER_NAMES.get(each, each) if isinstance(each, str) else each for each in listed]
    return [(_name_of(metric), metric) for metric in known]


def _name_of(metric: Given) -> str:
    """A metric's name in tables: that of its function, without file and options."""
    if not isinstance(metric, str):
        return name_of(metric)
    name = metric if may_name_code(metric) else parse(metric).name
    return name.rpartition(":")[2]


def _take(name: str, metric: Given, kind: str) -> Metric:
    if isinstance(metric, str):
        if metric in METRICS and metric not in _FITTING[kind]:
            raise ModelError(f"the metric {metric} does not fit {kind}; choose among {', '.join(_FITTING[kind])}")
        metric = known_metrics.find(metric)
    if not isinstance(metric, Metric) and not callable(metric):
        raise InputError(
            f"the metric {name!r} is a {type(metric).__name__}; give a name, a function (outputs, targets) -> number,"
            " or an idiolect.Metric"
        )
    return metric if isinstance(metric, Metric) else Metric(metric)


def _try_own(name: str, metric: Metric, outputs: Tensor, y: Tensor) -> None:
    """Raise an error if a function of the user's gives no number for an example; what it cannot compute of so few
    samples, it may be able to of more."""
    if not isfunction(metric.function) or metric in METRICS.values() or metric.each:
        return
    try:
        value = metric.function(outputs.detach(), y)
    except Exception:
        return
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"the metric {name!r} must give one number, but gives {what}") from None


_TWO_CLASSES = ("auc", "sensitivity", "specificity", "f1")
_USUAL = {
    "classes": ("accuracy",),
    "two classes": ("accuracy", *_TWO_CLASSES),
    "classes of pixels": ("dice", "hausdorff", "accuracy"),
    "numbers": ("mse", "mae", "r2"),
    "times to events": ("c_index",),
}
"""What is measured where nothing is asked for."""
_OF_CLASSES = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "log_loss", "calibration_error")
_FITTING = {
    "classes": _OF_CLASSES,
    "two classes": (*_OF_CLASSES, *_TWO_CLASSES[1:]),
    "classes of pixels": ("dice", "iou", "hausdorff", *_OF_CLASSES),
    "numbers": ("mse", "rmse", "mae", "r2"),
    "times to events": ("c_index",),
}
"""What may be asked for."""


def _kind(outputs: Tensor, y: Tensor, loss: Loss) -> str:
    """What is predicted, in words."""
    yes_or_no = loss is bce or (loss is dice_loss and outputs.numel() == y.numel())
    if loss is cox:
        return "times to events"
    if y.is_floating_point() and not yes_or_no:
        return "numbers"
    if y.ndim >= 3:
        return "classes of pixels"
    two = yes_or_no or outputs.shape[class_axis(outputs, y)] == 2
    return "two classes" if two and y.ndim == 1 else "classes"
