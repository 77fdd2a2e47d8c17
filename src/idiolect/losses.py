"""Losses and metrics by name, and what fits a model's outputs to its targets. A loss gives one value
per sample; a metric gives one number for all samples of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import ModelError, UnknownNameError
from .options import did_you_mean

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A function (outputs, targets) -> number, and whether more of it is better."""

    function: Callable[[Tensor, Tensor], Any]
    higher_is_better: bool = True

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The metric on all samples of a client."""
        return float(self.function(outputs, y))


def class_axis(outputs: Tensor, y: Tensor) -> int:
    """The axis of `outputs` that runs over classes: 1 as in PyTorch, or the last one."""
    return 1 if outputs.shape[:1] + outputs.shape[2:] == y.shape else outputs.ndim - 1


def per_sample(values: Tensor) -> Tensor:
    """One value per sample: the mean over all further axes."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits, per sample (the mean over positions or pixels)."""
    return per_sample(F.cross_entropy(outputs.movedim(class_axis(outputs, y), 1), y, reduction="none"))


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared error per sample."""
    return per_sample((outputs.reshape(y.shape) - y) ** 2)


def mae(outputs: Tensor, y: Tensor) -> Tensor:
    """Absolute error per sample."""
    return per_sample((outputs.reshape(y.shape) - y).abs())


def bce(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of one logit per target, per sample."""
    return per_sample(
        F.binary_cross_entropy_with_logits(outputs.reshape(y.shape), y.to(outputs.dtype), reduction="none")
    )


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "mae": mae, "bce": bce}


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Share of right classes, over all samples and positions."""
    return (outputs.argmax(class_axis(outputs, y)) == y).to(torch.float64).mean()


def binary_accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Share of right classes where one logit says yes or no."""
    return ((outputs.reshape(y.shape) > 0) == (y > 0.5)).to(torch.float64).mean()


def fit_loss(loss: str | Loss | None, outputs: Tensor, y: Tensor, classes: int | None) -> tuple[Loss, bool]:
    """The loss as a function, and whether it gives one value per sample; checked on an example."""
    if loss is None:
        loss = "cross_entropy" if classes is not None else "mse"
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise UnknownNameError(
                f"there is no loss {loss!r}.{did_you_mean(loss, LOSSES)} Known: {', '.join(LOSSES)}."
            )
        _check_shapes(loss, outputs, y, classes)
        loss = LOSSES[loss]
    try:
        value = loss(outputs, y)
    except Exception as error:
        raise ModelError(
            f"the loss cannot compare outputs of shape {tuple(outputs.shape)} "
            f"with targets of shape {tuple(y.shape)}: {error}"
        ) from error
    if value.ndim == 0 or value.shape == outputs.shape[:1]:
        return loss, value.ndim == 1
    raise ModelError(
        f"the loss must give one value per sample or one per batch, but gives shape {tuple(value.shape)}"
        f" for {len(outputs)} samples"
    )


def _check_shapes(loss: str, outputs: Tensor, y: Tensor, classes: int | None) -> None:
    if loss == "cross_entropy":
        first, last = outputs.shape[:1] + outputs.shape[2:], outputs.shape[:-1]
        if outputs.ndim < 2 or y.shape not in (first, last):
            raise ModelError(
                f"the model's outputs of shape {tuple(outputs.shape)} do not fit labels of shape {tuple(y.shape)}; "
                f"a classifier gives one logit per class for each label"
            )
        given = outputs.shape[1] if y.shape == first else outputs.shape[-1]
        if classes is not None and given < classes:
            raise ModelError(f"the model gives {given} classes, but the data have {classes}; widen its output layer")
    elif outputs.numel() != y.numel():
        raise ModelError(
            f"the model's outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}"
        )


def fit_metrics(
    metrics: Mapping[str, Callable[[Tensor, Tensor], Any] | Metric] | None, outputs: Tensor, y: Tensor, loss: Loss
) -> dict[str, Metric]:
    """The metrics by name; without any, accuracy for classes and squared error for numbers."""
    if metrics:
        return {name: each if isinstance(each, Metric) else Metric(each) for name, each in metrics.items()}
    if loss is bce:
        return {"accuracy": Metric(binary_accuracy)}
    if not y.is_floating_point():
        return {"accuracy": Metric(accuracy)}
    return {
        "mse": Metric(lambda outputs, y: mse(outputs, y).mean(), higher_is_better=False),
        "mae": Metric(lambda outputs, y: mae(outputs, y).mean(), higher_is_better=False),
    }
