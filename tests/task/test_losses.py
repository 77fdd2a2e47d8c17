"""Losses and metrics: hand-worked values, what is undefined, and what suits which data."""

from __future__ import annotations

import math

import pytest
import scipy.spatial
import sklearn.metrics
import torch
from torch import nn

from idiolect import Task
from idiolect.core.errors import ModelError, UnknownNameError
from idiolect.task.losses import LOSSES, dice_loss, fit_loss
from idiolect.task.metrics import METRICS, fit_metrics

# Four samples of two classes as logits; class 1 is believed by the margins -2, 1, -1, 3.
LOGITS = torch.tensor([[1.0, -1.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 2.0]])
MARGINS = LOGITS[:, 1] - LOGITS[:, 0]
TRUTH = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 2 / 4),  # samples 0 and 3
        ("auc", 3 / 4),  # of the pairs (1 above 0), -1 > -2, -1 < 1, 3 > -2, 3 > 1
        ("sensitivity", 1 / 2),
        ("specificity", 1 / 2),
        ("f1", 1 / 2),  # precision 1/2, sensitivity 1/2
    ],
)
def test_two_classes_by_hand(name, value):
    assert METRICS[name](LOGITS, TRUTH) == pytest.approx(value)
    assert METRICS[name](MARGINS, TRUTH) == pytest.approx(value)
    assert METRICS[name](MARGINS[:, None], TRUTH.float()) == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        ("auc", 0, math.nan),
        ("auc", 1, math.nan),
        ("sensitivity", 0, math.nan),
        ("sensitivity", 1, 0.5),
        ("specificity", 1, math.nan),
        ("specificity", 0, 0.5),
    ],
)
def test_a_client_with_one_class_has_no_value_where_it_is_undefined(name, label, value):
    assert METRICS[name](LOGITS, torch.full((4,), label)) == pytest.approx(value, nan_ok=True)


def test_f1_is_undefined_only_without_any_positive():
    assert math.isnan(METRICS["f1"](torch.tensor([-1.0, -2.0]), torch.tensor([0, 0])))
    assert METRICS["f1"](torch.tensor([-1.0, 2.0]), torch.tensor([0, 0])) == 0
    assert METRICS["f1"](torch.tensor([-1.0, -2.0]), torch.tensor([0, 1])) == 0


def test_the_metrics_of_two_classes_are_scikit_learns():
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(200, 2, generator=draw).round(decimals=1), torch.randint(0, 2, (200,), generator=draw)
    margin, found = outputs[:, 1] - outputs[:, 0], (outputs[:, 1] > outputs[:, 0]).long()
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(y, found),
        "auc": sklearn.metrics.roc_auc_score(y, margin),
        "sensitivity": sklearn.metrics.recall_score(y, found),
        "specificity": sklearn.metrics.recall_score(y, found, pos_label=0),
        "f1": sklearn.metrics.f1_score(y, found),
    }
    assert {name: METRICS[name](outputs, y) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_left_the_numbers_has_no_auc_and_no_r2(value):
    assert math.isnan(METRICS["auc"](torch.full((4, 2), value), TRUTH))
    assert math.isnan(METRICS["r2"](torch.full((4, 1), value), torch.arange(4.0)))
    assert METRICS["r2"](torch.full((4, 1), 1e30), torch.arange(4.0)) < -1e50


def test_characters_are_counted_one_by_one():
    draw = torch.Generator().manual_seed(0)
    logits, y = torch.randn(3, 7, 20, generator=draw), torch.randint(0, 7, (3, 20), generator=draw)
    expected = sklearn.metrics.accuracy_score(y.flatten(), logits.argmax(1).flatten())
    assert METRICS["accuracy"](logits, y) == pytest.approx(expected)
    assert METRICS["accuracy"](logits.movedim(1, -1), y) == pytest.approx(expected)


# -- segmentation ------------------------------------------------------------------------------------------


def masks(*rows: str) -> torch.Tensor:
    """One mask from rows of 0 and 1."""
    return torch.tensor([[[int(each) for each in row] for row in rows]])


def logits(mask: torch.Tensor, classes: int = 2) -> torch.Tensor:
    """Certain logits [samples, classes, ...] that predict a mask."""
    return 50 * nn.functional.one_hot(mask, classes).movedim(-1, 1).float()


def test_dice_and_its_loss_by_hand():
    """Found 2 of 3 true pixels and 1 wrong: 2 * 2 / (3 + 3) = 2/3; the loss adds 1 above and below: 1 - 5/7."""
    found, truth = masks("110", "100"), masks("110", "010")
    assert METRICS["dice"](logits(found), truth) == pytest.approx(2 / 3)
    assert dice_loss(logits(found), truth).item() == pytest.approx(1 - 5 / 7)
    one_logit = 100.0 * (found - 0.5)
    assert METRICS["dice"](one_logit, truth) == pytest.approx(2 / 3)
    assert dice_loss(one_logit, truth.float()).item() == pytest.approx(1 - 5 / 7)


def test_dice_of_several_classes_is_their_mean_without_the_background():
    """Class 1 is right (1), class 2 has one pixel of two (2 * 1 / 3): mean 5/6."""
    truth, found = masks("0122"), masks("0120")
    assert METRICS["dice"](logits(found, 3), truth) == pytest.approx((1 + 2 / 3) / 2)
    last = logits(found, 3).movedim(1, -1)
    assert METRICS["dice"](last, truth) == pytest.approx((1 + 2 / 3) / 2)
    assert dice_loss(last, truth).item() == pytest.approx(dice_loss(logits(found, 3), truth).item())


def test_empty_regions():
    nothing, one = masks("0000", "0000", "0000"), masks("1000", "0000", "0000")
    assert METRICS["dice"](logits(nothing), nothing) == 1
    assert METRICS["hausdorff"](logits(nothing), nothing) == 0
    assert METRICS["dice"](logits(one), nothing) == 0
    assert METRICS["hausdorff"](logits(one), nothing) == pytest.approx(5)  # the diagonal of 3 x 4
    assert float(dice_loss(logits(nothing), nothing)) == pytest.approx(0, abs=1e-6)


def test_hausdorff_by_hand():
    """The far pixel (2, 3) is 3 right and 2 down of the only true one: sqrt(13); sets that agree are 0 apart."""
    found, truth = masks("1000", "0000", "0001"), masks("1000", "0000", "0000")
    assert METRICS["hausdorff"](logits(found), truth) == pytest.approx(math.sqrt(13))
    assert METRICS["hausdorff"](logits(truth), found) == pytest.approx(math.sqrt(13))
    both = torch.cat([found, truth])
    assert METRICS["hausdorff"](logits(both), torch.cat([truth, truth])) == pytest.approx(math.sqrt(13) / 2)
    assert not METRICS["hausdorff"].higher_is_better


def test_dice_and_hausdorff_are_those_of_scikit_learn_and_scipy():
    """Dice is the F1 of pixels, here of each image by itself; Hausdorff by the distance of every pair of pixels."""
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(4, 2, 12, 9, generator=draw), torch.rand(4, 12, 9, generator=draw).gt(0.8).long()
    found = outputs.argmax(1)
    dice = [sklearn.metrics.f1_score(a.flatten(), b.flatten()) for a, b in zip(y, found, strict=True)]
    assert METRICS["dice"](outputs, y) == pytest.approx(sum(dice) / 4)
    pairs = [scipy.spatial.distance.cdist(a.nonzero(), b.nonzero()) for a, b in zip(y, found, strict=True)]
    apart = [max(each.min(0).max(), each.min(1).max()) for each in pairs]
    assert METRICS["hausdorff"](outputs, y) == pytest.approx(sum(apart) / 4)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_gradient_of_the_dice_loss_is_that_of_finite_differences(classes):
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, classes, 3, 4, generator=draw, dtype=torch.float64).requires_grad_()
    truth = torch.randint(0, classes, (2, 3, 4), generator=draw)
    assert torch.autograd.gradcheck(lambda held: dice_loss(held, truth), outputs)


# -- numbers -----------------------------------------------------------------------------------------------


def test_numbers_by_hand():
    """Errors 1, 0, -1 about targets 1, 2, 3: MSE 2/3, MAE 2/3, R2 = 1 - 2/2 = 0."""
    outputs, y = torch.tensor([[2.0], [2.0], [2.0]]), torch.tensor([1.0, 2.0, 3.0])
    values = {name: METRICS[name](outputs, y) for name in ("mse", "mae", "r2")}
    assert values == pytest.approx({"mse": 2 / 3, "mae": 2 / 3, "r2": 0.0})
    assert math.isnan(METRICS["r2"](outputs[:1], y[:1]))
    assert METRICS["r2"].higher_is_better
    assert not METRICS["mae"].higher_is_better


def test_the_metrics_of_numbers_are_scikit_learns():
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(50, 2, generator=draw), torch.randn(50, 2, generator=draw)
    expected = {
        "mse": sklearn.metrics.mean_squared_error(y, outputs),
        "mae": sklearn.metrics.mean_absolute_error(y, outputs),
        "r2": sklearn.metrics.r2_score(y, outputs),
    }
    assert {name: METRICS[name](outputs, y) for name in expected} == pytest.approx(expected, rel=1e-5)


# -- what suits the data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "y", "loss", "names"),
    [
        (torch.zeros(2, 3), torch.zeros(2).long(), "cross_entropy", ["accuracy"]),
        (LOGITS, TRUTH, "cross_entropy", ["accuracy", "auc", "sensitivity", "specificity", "f1"]),
        (MARGINS, TRUTH.float(), "bce", ["accuracy", "auc", "sensitivity", "specificity", "f1"]),
        (torch.zeros(2, 5, 9), torch.zeros(2, 5).long(), "cross_entropy", ["accuracy"]),
        (torch.zeros(2, 5, 2), torch.zeros(2, 5).long(), "cross_entropy", ["accuracy"]),
        (torch.zeros(2, 2, 4, 4), torch.zeros(2, 4, 4).long(), "dice", ["dice", "hausdorff", "accuracy"]),
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4), "dice", ["dice", "hausdorff", "accuracy"]),
        (torch.zeros(2, 1), torch.zeros(2), "mse", ["mse", "mae", "r2"]),
    ],
)
def test_metrics_follow_from_the_data(outputs, y, loss, names):
    function, per_sample = fit_loss(loss, outputs, y, None)
    assert per_sample
    assert list(fit_metrics(None, outputs, y, function)) == names
    assert list(fit_metrics({}, outputs, y, function)) == names


def test_metrics_are_chosen_by_name():
    for given in ("auc, accuracy", ["auc", "accuracy"], ("auc", "accuracy")):
        assert list(fit_metrics(given, LOGITS, TRUTH, LOSSES["cross_entropy"])) == ["auc", "accuracy"]
    with pytest.raises(UnknownNameError, match="Did you mean accuracy"):
        fit_metrics("acuracy", LOGITS, TRUTH, LOSSES["cross_entropy"])
    with pytest.raises(ModelError, match="the metric f1 does not fit classes; choose among accuracy"):
        fit_metrics("f1", torch.zeros(2, 3), TRUTH[:2], LOSSES["cross_entropy"])
    with pytest.raises(ModelError, match="the metric accuracy does not fit numbers; choose among mse, rmse, mae, r2"):
        fit_metrics("accuracy", torch.zeros(2, 1), torch.zeros(2), LOSSES["mse"])


def test_own_metrics_stay_as_they_are():
    found = fit_metrics({"hits": lambda outputs, y: 7}, LOGITS, TRUTH, LOSSES["cross_entropy"])
    assert found["hits"](LOGITS, TRUTH) == 7.0


def test_a_segmentation_task_takes_the_dice_loss():
    images, truth = torch.rand(2, 3, 4, 4), torch.randint(0, 2, (2, 4, 4))
    task = Task(nn.Conv2d(3, 2, 1), (images, truth), "dice", classes=2)
    assert task.losses(task.forward(task.net.params, {}, images).outputs, truth).shape == (2,)
    assert next(iter(task.metrics)) == "dice"
    with pytest.raises(ModelError, match="gives 2 classes, but the data have 3"):
        Task(nn.Conv2d(3, 2, 1), (images, truth), "dice", classes=3)
    with pytest.raises(ModelError, match="do not fit targets"):
        Task(nn.Linear(4, 3), (torch.rand(2, 4), torch.zeros(2, 2)), "dice")


def test_one_logit_is_enough_for_two_classes():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    task = Task(nn.Linear(3, 1), (x, y), metrics="ece, f1_macro, roc_auc, accuracy", classes=2)
    assert task.loss_fn is LOSSES["bce"]
    assert list(task.metrics) == ["calibration_error", "macro_f1", "auc", "accuracy"]
    with pytest.raises(ModelError, match="or say loss=bce, for which one logit is enough"):
        Task(nn.Linear(3, 1), (x, y), loss="cross_entropy", classes=2)


def test_a_loss_without_gradient_is_refused():
    with pytest.raises(ModelError, match="it has no gradient"):
        fit_loss(lambda outputs, y: (outputs.argmax(1) != y).float(), torch.randn(2, 3), torch.tensor([0, 1]), 3)
