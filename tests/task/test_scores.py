"""Metrics for any number of classes, times to events and regions, against scikit-learn and by hand."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from idiolect.task.losses import LOSSES, cox, fit_loss
from idiolect.task.metrics import METRICS, fit_metrics

DRAW = torch.Generator().manual_seed(0)
LOGITS, LABELS = torch.randn(60, 4, generator=DRAW), torch.randint(0, 4, (60,), generator=DRAW)
ONE, YES = torch.randn(60, 1, generator=DRAW), torch.randint(0, 2, (60,), generator=DRAW)


def values(outputs, y):
    return {name: METRICS[name](outputs, y) for name in ("macro_f1", "balanced_accuracy", "auc", "log_loss")}


def test_several_classes_are_scored_as_scikit_learn_does():
    chances, found = LOGITS.double().softmax(1).numpy(), LOGITS.argmax(1)
    assert values(LOGITS, LABELS) == pytest.approx(
        {
            "macro_f1": sklearn.metrics.f1_score(LABELS, found, average="macro"),
            "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(LABELS, found),
            "auc": sklearn.metrics.roc_auc_score(LABELS, chances, multi_class="ovr"),
            "log_loss": sklearn.metrics.log_loss(LABELS, chances),
        }
    )


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_scores_have_the_bits_of_scikit_learn(classes):
    """Also with ties, and with classes and samples that are few."""
    draw = torch.Generator().manual_seed(classes)
    for samples in range(2, 40, 3):
        outputs = torch.randn(samples, classes, generator=draw)
        outputs = (2 * outputs).round() if samples % 2 else outputs
        y = torch.randint(0, classes, (samples,), generator=draw)
        chances, truth = outputs.double().softmax(1).numpy(), y.numpy()
        found = outputs.argmax(1).numpy()
        assert METRICS["macro_f1"](outputs, y) == sklearn.metrics.f1_score(truth, found, average="macro")
        margin = (outputs[:, 1] - outputs[:, 0]).double().numpy()
        if classes == 2 and (truth.any() or (margin > 0).any()):
            assert METRICS["f1"](outputs, y) == sklearn.metrics.f1_score(truth, margin > 0)
        if len(kinds := np.unique(truth)) > 1:
            scores = {1: margin} if classes == 2 else {kind: chances[:, kind] for kind in kinds}
            areas = [sklearn.metrics.roc_auc_score(truth == kind, score) for kind, score in scores.items()]
            assert METRICS["auc"](outputs, y) == np.mean(areas)
        targets = torch.randn(samples, classes, generator=draw).round()
        targets[:, 0] = 1.0
        assert METRICS["r2"](outputs, targets) == sklearn.metrics.r2_score(targets.double(), outputs.double())


def test_a_score_that_is_not_finite_has_no_area():
    assert math.isnan(METRICS["auc"](torch.tensor([[math.inf], [0.0]]), torch.tensor([1, 0])))
    assert math.isnan(METRICS["auc"](torch.tensor([[math.nan], [0.0]]), torch.tensor([1, 0])))


def test_one_logit_is_scored_like_two():
    two = torch.cat([torch.zeros_like(ONE), ONE], 1)
    for y in (YES, YES.float()):
        assert values(ONE, y) == pytest.approx(values(two, YES))
    assert METRICS["calibration_error"](ONE, YES) == pytest.approx(METRICS["calibration_error"](two, YES))


def test_classes_that_do_not_occur_are_left_out():
    outputs, y = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 0])
    assert METRICS["balanced_accuracy"](outputs, y) == pytest.approx((2 / 3 + 1) / 2)
    assert METRICS["macro_f1"](outputs, y) == pytest.approx((0.8 + 2 / 3) / 2)
    assert math.isnan(METRICS["auc"](outputs, torch.zeros(4, dtype=torch.long)))


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    """Four samples at 0.8, of which two are right, and two at 0.55, of which both are: (|3.2 - 2| + |1.1 - 2|) / 6."""
    sure = torch.logit(torch.tensor([0.8, 0.8, 0.8, 0.8, 0.55, 0.55], dtype=torch.float64))
    y = torch.tensor([1, 1, 0, 0, 1, 1])
    assert METRICS["calibration_error"](sure[:, None], y) == pytest.approx((1.2 + 0.9) / 6)


def test_the_cox_loss_is_the_partial_likelihood_per_event():
    """Times 1, 2 (censored) and 3: at 1 all are at risk, at 3 the last alone."""
    risk, times = torch.tensor([[0.5], [1.0], [-1.0]]), torch.tensor([1.0, -2.0, 3.0])
    by_hand = (math.log(math.exp(0.5) + math.exp(1) + math.exp(-1)) - 0.5 + 0.0) / 2
    assert cox(risk, times).item() == pytest.approx(by_hand)
    assert cox(risk, -times.abs()).item() == 0
    assert fit_loss("cox", risk, times, None) == (cox, False)


def test_the_cox_loss_has_finite_gradients_also_without_events():
    for times in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0])):
        risk = torch.tensor([[0.5], [100.0], [-100.0]], requires_grad=True)
        (grad,) = torch.autograd.grad(cox(risk, times), risk)
        assert torch.isfinite(grad).all()


def test_concordance_counts_pairs_of_which_the_first_event_is_known():
    """Of times 1, 3, 5 and 4 (censored) the pairs are (1,3), (1,5), (1,4), (3,5), (3,4); risks agree in 3, one ties."""
    times, risk = torch.tensor([1.0, 3.0, 5.0, -4.0]), torch.tensor([2.0, 3.0, 2.0, 1.0])
    assert METRICS["c_index"](risk[:, None], times) == pytest.approx((0 + 0.5 + 1 + 1 + 1) / 5)
    assert math.isnan(METRICS["c_index"](risk[:, None], -times.abs()))
    assert math.isnan(METRICS["c_index"](torch.full((4, 1), math.nan), times))
    assert list(fit_metrics(None, risk[:2, None], times[:2], cox)) == ["c_index"]


def test_iou_and_rmse():
    truth = torch.tensor([[[1, 1, 0, 0]]])
    assert METRICS["iou"](torch.tensor([[[9.0, -9, 9, -9]]]), truth) == pytest.approx(1 / 3)
    assert METRICS["iou"](torch.full((1, 1, 4), -9.0), torch.zeros(1, 1, 4)) == 1
    outputs, y = torch.tensor([1.0, 2.0, 4.0]), torch.zeros(3)
    assert METRICS["rmse"](outputs, y) == pytest.approx(np.sqrt(7))
    assert not METRICS["rmse"].higher_is_better


def test_what_is_usual_did_not_become_more():
    assert list(fit_metrics(None, LOGITS, LABELS, LOSSES["cross_entropy"])) == ["accuracy"]
    every = "accuracy, balanced_accuracy, macro_f1, auc, log_loss, calibration_error"
    assert ", ".join(fit_metrics(every, LOGITS, LABELS, LOSSES["cross_entropy"])) == every
