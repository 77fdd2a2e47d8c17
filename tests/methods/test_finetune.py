"""Fine-tuning before prediction: of a throw-away copy, by everybody, on top of what the inner method does."""

import pytest
import torch

from idiolect.contract import Training, has_one_model, methods
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.testing import check_bad_options, play, require_equal, tiny_plan
from idiolect.testing.scalar import half_squared_error, personal_model, scalar, scalar_federation, scalar_task


def tuned_weight(method: str, unseen: bool = False) -> float:
    """What a client of one sample, whose loss is (w - 3)^2 / 2, predicts with when the personal model is 1; the rate
    is 0.1."""
    task = scalar_task(1.0, torch.ones(1, 1), torch.full((1, 1), 3.0), loss=half_squared_error)
    training = Training(lr=0.1, epochs=1, batch_size=1)
    plan = Plan(methods.build(method), (task,), scalar_federation(3.0), 1, training)
    ctx, model = personal_model(plan, {"params": scalar(1.0), "buffers": {}})
    return (adapt_model(plan, ctx, model, unseen=unseen) or model)["params"]["weight"].item()


@pytest.mark.parametrize(
    ("options", "weight"), [("epochs=0", 1.0), ("epochs=1", 1.2), ("epochs=2", 1.38), ("epochs=1, lr=0.5", 2.0)]
)
def test_the_copy_takes_as_many_steps_as_asked_for(options, weight):
    """1 - 0.1 (1 - 3) = 1.2, and 1.2 - 0.1 (1.2 - 3) = 1.38; with the rate 0.5, 2."""
    assert tuned_weight(f"finetune({options})") == pytest.approx(weight)


@pytest.mark.parametrize(("options", "weight"), [("epochs=2", 1.542), ("epochs=0", 1.2)])
def test_an_unseen_client_is_made_ready_by_the_inner_method_and_then_tunes_like_all_others(options, weight):
    """FedAvg trains it for one epoch, 1.2; two more are 1.38 and 1.38 - 0.1 (1.38 - 3) = 1.542."""
    assert tuned_weight(f"finetune({options})", unseen=True) == pytest.approx(weight)


def test_the_federation_is_untouched():
    require_equal(play(tiny_plan("finetune(ditto)")), play(tiny_plan("ditto")), "what is kept and sent")


def test_before_it_is_tuned_the_personal_model_is_the_inner_methods():
    """So engines may predict for all clients with one model where the inner method lets them."""
    assert has_one_model(methods.build("finetune(fedavg)"))
    assert not has_one_model(methods.build("finetune(ditto)"))


def test_bad_options_are_named():
    check_bad_options("finetune", "epochs=-1", "lr=0")
