"""Losses and metrics by name, and what fits a model's outputs to its targets. A loss gives one value
per sample; a metric gives one number for all samples of a client. SciPy and scikit-learn, which take long to import,
are imported where they are used."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.code import user_code
from ..core.errors import ModelError
from ..core.functions import Functions

Loss = Callable[[Tensor, Tensor], Tensor]


def class_axis(outputs: Tensor, y: Tensor) -> int:
    """The axis of `outputs` that runs over classes: 1 as in PyTorch, or the last one. Where both would fit, because
    there are as many positions as classes, it is 1."""
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


def dice_loss(outputs: Tensor, y: Tensor) -> Tensor:
    r"""One minus the soft Dice score per sample: :math:`1 - (2 \sum p g + 1) / (\sum p + \sum g + 1)`, with the
    probabilities p and the truth g of a class; the mean over all classes but class 0, the background.

    One right pixel of four, with certainty, and nothing else wrong: 1 - (2 + 1) / (1 + 1 + 1) = 0.

    >>> dice_loss(torch.tensor([[[9.0, -9, -9, -9]]]) * 9, torch.tensor([[[1, 0, 0, 0]]])).round(decimals=4)
    tensor([0.])
    """
    chance, truth = foreground(outputs, y)
    both, either = (chance * truth).flatten(2).sum(2), (chance + truth).flatten(2).sum(2)
    return (1 - (2 * both + 1) / (either + 1)).mean(1)


def cox(outputs: Tensor, y: Tensor) -> Tensor:
    r"""Minus Cox's partial log-likelihood of a batch, per event: the mean over the events i of
    :math:`\log \sum_{j: t_j \ge t_i} e^{r_j} - r_i`, with the risks r that the network gives (Breslow's way with ties).

    Targets are times, below 0 where the event was not observed until then. A batch without an event has no loss.

    >>> cox(torch.zeros(2, 1), torch.tensor([1.0, -2.0]))  # one event, while two were at risk
    tensor(0.6931)
    """
    risk, times = outputs.reshape(-1), y.reshape(-1)
    at_risk = times.abs()[None] >= times.abs()[:, None]
    whole = torch.where(at_risk, risk[None], -torch.inf).logsumexp(1)
    event = (times > 0).to(risk.dtype)
    return ((whole - risk) * event).sum() / event.sum().clamp_min(1)


def foreground(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and truth [samples, classes but the background, ...]; a single logit says yes or no."""
    if outputs.numel() == y.numel():
        return outputs.reshape(y.shape).sigmoid().unsqueeze(1), y.to(outputs.dtype).unsqueeze(1)
    chance = outputs.movedim(class_axis(outputs, y), 1).softmax(1)[:, 1:]
    kinds = torch.arange(1, chance.shape[1] + 1, device=y.device).reshape(1, -1, *[1] * (y.ndim - 1))
    return chance, (y.unsqueeze(1) == kinds).to(outputs.dtype)


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "mae": mae,
    "bce": bce,
    "dice": dice_loss,
    "cox": cox,
}


losses: Functions[Loss] = Functions("loss", LOSSES, group="idiolect.losses")


def no_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of a task that is only for predicting."""
    raise ModelError("a personal model predicts and has no loss; compute one of its outputs")


def fit_loss(loss: str | Loss | None, outputs: Tensor, y: Tensor, classes: int | None) -> tuple[Loss, bool]:
    """The loss as a function, and whether it gives one value per sample; checked on an example."""
    if loss is None and classes == 2 and outputs.numel() == y.numel():
        loss = "bce"  # one logit says yes or no
    elif loss is None:
        loss = "cross_entropy" if classes is not None else "mse"
    if isinstance(loss, str):
        named, loss = loss, losses.find(loss)
        if named in LOSSES:
            _check_shapes(named, outputs, y, classes)
    shapes = f"outputs of shape {tuple(outputs.shape)} with targets of shape {tuple(y.shape)}"
    with user_code(f"the loss cannot compare {shapes}", ModelError):
        outputs = outputs.detach().requires_grad_(outputs.is_floating_point())
        value = loss(outputs, y)
    if not isinstance(value, Tensor):
        raise ModelError(f"the loss must give a tensor, not a {type(value).__name__}")
    if outputs.requires_grad and not value.requires_grad:
        raise ModelError(
            "nothing can be learned from the loss, since it has no gradient: compute it of the model's outputs with"
            " functions of PyTorch, without .item(), .detach() or NumPy"
        )
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
        logits = outputs.shape[1] if y.shape == first else outputs.shape[-1]
        if classes is not None and logits < classes:
            one = ", or say loss=bce, for which one logit is enough" if (logits, classes) == (1, 2) else ""
            raise ModelError(
                f"the model gives {logits} classes, but the data have {classes}; widen its output layer{one}"
            )
    elif loss == "dice" and outputs.ndim > y.ndim:
        _check_shapes("cross_entropy", outputs, y, classes)
    elif loss == "cox" and y[0].numel() > 1:
        raise ModelError(
            f"cox takes one time per sample, below 0 where the event was not observed until then, but the targets have"
            f" the shape {tuple(y.shape)}; with times and events in two columns: torch.where(event == 1, time, -time)"
        )
    elif outputs.numel() != y.numel():
        raise ModelError(
            f"the model's outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}"
        )
