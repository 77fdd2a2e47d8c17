"""What metrics compute: functions (outputs, targets) -> number, or one number per sample. SciPy, which takes long to
import, is imported where it is used. F1, AUC and R2 have the bits of scikit-learn's functions, whose checks of their
arguments took three quarters of a short run's time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .losses import class_axis, foreground, mse, per_sample


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
    """Area under the ROC curve; of several classes the mean over those that occur, each against all others. NaN where
    only one class is present, or an output is not finite."""
    chances, truth = _chances(outputs, y)
    kinds = np.unique(truth)
    if len(kinds) < 2 or not np.isfinite(chances).all():
        return math.nan
    if chances.shape[1] == 2:
        margin, _ = _margins(outputs, y)
        return area_under_roc(margin, truth == kinds[1])
    return float(np.mean([area_under_roc(chances[:, kind], truth == kind) for kind in kinds]))


def area_under_roc(scores: np.ndarray, truth: np.ndarray) -> float:
    """The area under the ROC curve by trapezoids, where both classes occur; NaN where a score is not finite.

    >>> area_under_roc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    if not np.isfinite(scores).all():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    at = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last of equal scores
    true = np.cumsum(truth[order], dtype=np.float64)[at]
    false = 1 + at - true
    corner = np.ones(len(at), dtype=bool)  # what lies on a line between two others adds nothing
    corner[1:-1] = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
    x, height = (np.append(0.0, steps[corner]) / steps[-1] for steps in (false, true))
    return float((np.diff(x) * (height[1:] + height[:-1]) / 2).sum())


def _chances(outputs: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [targets, classes] and the true classes [targets]; a single logit says class 1 or class 0."""
    if outputs.numel() == y.numel():
        one = outputs.detach().reshape(-1).double().sigmoid()
        return torch.stack([1 - one, one], 1).cpu().numpy(), (y > 0.5).long().reshape(-1).cpu().numpy()
    logits = outputs.detach().movedim(class_axis(outputs, y), -1).double()
    return logits.softmax(-1).reshape(-1, logits.shape[-1]).cpu().numpy(), y.reshape(-1).cpu().numpy()


def balanced_accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share that is recognised, as the mean over the classes that occur."""
    chances, truth = _chances(outputs, y)
    right = chances.argmax(1) == truth
    return float(np.mean([right[truth == kind].mean() for kind in np.unique(truth)]))


def macro_f1(outputs: Tensor, y: Tensor) -> float:
    """The mean of the F1 scores of the classes that occur or are predicted."""
    chances, truth = _chances(outputs, y)
    chosen = chances.argmax(1)
    kinds = np.unique(np.concatenate([truth, chosen]))
    return float(np.mean([_f1(chosen == kind, truth == kind) for kind in kinds]))


def _f1(chosen: np.ndarray, truth: np.ndarray) -> float:
    either = int(chosen.sum()) + int(truth.sum())
    return 2 * int((chosen & truth).sum()) / either if either else math.nan


def log_loss(outputs: Tensor, y: Tensor) -> float:
    """The mean of minus the logarithm of the probability of the true class, which counts as at least 1e-15."""
    chances, truth = _chances(outputs, y)
    return float(-np.log(np.maximum(chances[np.arange(len(truth)), truth], 1e-15)).mean())


BINS = 15
"""Into how many bins of equal width calibration sorts probabilities."""


def calibration_error(outputs: Tensor, y: Tensor) -> float:
    """Expected calibration error (Guo et al., ICML 2017): samples sorted into 15 bins by the probability of the class
    that is predicted, the mean over samples of the gap between that probability and the accuracy in their bin."""
    chances, truth = _chances(outputs, y)
    chosen = chances.argmax(1)
    sure, right = chances[np.arange(len(truth)), chosen], chosen == truth
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(sure[bins == at].sum() - right[bins == at].sum()) for at in np.unique(bins)]
    return float(np.sum(gaps) / len(truth))


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
    margin, truth = _margins(outputs, y)
    return _f1(margin > 0, truth)


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


def iou(outputs: Tensor, y: Tensor) -> Tensor:
    """Intersection over union |P and G| / |P or G| of predicted and true regions, the mean over samples and classes but
    the background; 1 where both are empty."""
    predicted, truth = (region.flatten(2) for region in _regions(outputs, y))
    both, either = (predicted & truth).sum(2).double(), (predicted | truth).sum(2).double()
    return torch.where(either > 0, both / either.clamp_min(1), 1.0).mean()


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
    if len(y) < 2 or not bool(torch.isfinite(outputs).all()):
        return math.nan
    truth = y.reshape(len(y), -1).double().cpu().numpy()
    found = outputs.detach().reshape(truth.shape).double().cpu().numpy()
    errors, spread = ((truth - part) ** 2 for part in (found, truth.mean(0)))
    left, all_of_it = errors.sum(0), spread.sum(0)
    explained = 1 - np.divide(left, all_of_it, out=np.where(left > 0, 1.0, 0.0), where=all_of_it > 0)
    return float(np.mean(explained))


def rmse(outputs: Tensor, y: Tensor) -> float:
    """The root of the mean squared error."""
    return float(mse(outputs, y).double().mean().sqrt())


def c_index(outputs: Tensor, y: Tensor) -> float:
    """Harrell's concordance: of the pairs of which one is known to have had its event first, the share in which it has
    the higher risk, ties counting half. Targets are times, below 0 where the event was not observed. NaN without such
    pairs, or where an output is not finite.

    >>> c_index(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([1.0, 5.0, -4.0]))
    1.0
    """
    risk, times = outputs.detach().reshape(-1).double(), y.reshape(-1)
    if not bool(torch.isfinite(risk).all()):
        return math.nan
    first = (times > 0)[:, None] & (times.abs()[:, None] < times.abs()[None])
    if not bool(first.any()):
        return math.nan
    gap = risk[:, None] - risk[None]
    return float((((gap > 0).double() + 0.5 * (gap == 0))[first]).mean())
