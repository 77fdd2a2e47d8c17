"""FedBABU: a body learnt under a head that never moves, and a copy of both fine-tuned before predicting."""

import pytest
import torch

from idiolect import Task, run
from idiolect.contract import Training, methods
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.task.optimizers import SGD
from idiolect.testing import play, play_params, require_equal, tiny_plan
from idiolect.testing.scalar import (
    Product,
    download_of,
    half_squared_error,
    personal_model,
    scalar_federation,
    train_client,
)

HEAD = {"4.weight", "4.bias"}


def test_the_head_stays_at_the_common_initial_values():
    for optimizer in (SGD(), SGD(momentum=0.9, weight_decay=0.1)):
        plan = tiny_plan("fedbabu", optimizer=optimizer)
        for model in play_params(plan).values():
            assert all(torch.equal(model[n], plan.tasks[0].net.params[n]) for n in HEAD)
            assert not torch.equal(model["0.weight"], plan.tasks[0].net.params["0.weight"])


def test_the_head_is_never_sent():
    plan = tiny_plan("fedbabu")
    download, outcome = download_of(plan), train_client(plan)
    assert not HEAD & (set(download["params"]) | set(outcome.upload.slots["params"]))


def test_without_a_head_and_fine_tuning_it_is_fedavg_to_the_bit():
    require_equal(play(tiny_plan("fedbabu(layers=0, epochs=0)")), play(tiny_plan("fedavg")), "no head")


def test_the_default_acts():
    own, plain = play_params(tiny_plan("fedbabu")), play_params(tiny_plan("fedavg"))
    assert not torch.equal(own[0]["0.weight"], plain[0]["0.weight"])


def tuned_names(method, index=0, unseen=False):
    """What the tuned copy of a first personal model has changed."""
    plan = tiny_plan(method, unseen=1)
    ctx, model = personal_model(plan, index=index)
    tuned = adapt_model(plan, ctx, model, unseen)
    return {n for n, leaf in model["params"].items() if tuned and not torch.equal(leaf, tuned["params"][n])}


def test_fine_tuning_moves_body_and_head_or_one_of_them():
    assert tuned_names("fedbabu") == set(tiny_plan("fedavg").tasks[0].names)
    assert tuned_names("fedbabu(part=head)") == HEAD
    assert tuned_names("fedbabu(part=body)") == set(tiny_plan("fedavg").tasks[0].names) - HEAD
    assert tuned_names("fedbabu(epochs=0)") == set()


def test_an_unseen_client_fine_tunes_as_all_others_do():
    plan = tiny_plan("fedbabu", unseen=1)
    assert plan.method.onboard(plan.context(5, 0)) == ()
    assert tuned_names("fedbabu", index=5, unseen=True) == set(plan.tasks[0].names)


def test_five_passes_of_fine_tuning_by_default():
    (phase,) = methods.build("fedbabu").adapt(tiny_plan("fedbabu").context(0, 0))
    assert (phase.epochs, phase.part, phase.lr) == (5, None, None)


def test_the_hand_worked_example():
    """Loss (b h - 1)^2 / 2 at b = 2, h = 1, rate 0.1. Training moves b along (2 - 1) 1 = 1 to 1.9. Fine-tuning moves b
    along (1.9 - 1) 1 = 0.9 to 1.81 and h along (1.9 - 1) 1.9 = 1.71 to 0.829: the tuned product is 1.81 * 0.829 and
    its loss (1.50049 - 1)^2 / 2; untuned it is (1.9 - 1)^2 / 2 = 0.405."""
    data = scalar_federation(1.0)
    task = Task(Product(2.0, 1.0), data.clients[0].split("train"), loss=half_squared_error)
    plan = Plan(methods.build("fedbabu(epochs=1)"), (task,), data, rounds=1, training=Training(lr=0.1))
    played = play(plan)
    assert played.server["params"]["body.weight"].item() == pytest.approx(1.9)
    losses = {row[3]: row[6] for row in played.rows if row[4] == "test" and row[5] == "loss"}
    assert losses["personal"] == pytest.approx(0.405)
    assert losses["adapted"] == pytest.approx((1.81 * 0.829 - 1) ** 2 / 2)


def test_the_headline_is_the_fine_tuned_model():
    result = run("fedbabu(epochs=1)", scalar_federation(1.0), model=Product(2.0, 1.0), rounds=1, engine="loop")
    assert result.summary["point"] == "adapted"


@pytest.mark.parametrize("outer", ["fedlag(fedbabu, warmup=0, k=1)", "flayer(fedbabu)", "finetune(fedbabu)"])
def test_wrappers_wrap_it_and_the_head_stays_put(outer):
    plan = tiny_plan(outer)
    for model in play_params(plan).values():
        assert all(torch.equal(model[n], plan.tasks[0].net.params[n]) for n in HEAD)


def test_bad_options_are_refused():
    with pytest.raises(OptionError, match="epochs"):
        methods.build("fedbabu(epochs=-1)")
    with pytest.raises(OptionError, match="part must be one of all, body, head"):
        methods.build("fedbabu(part=tail)")
    with pytest.raises(OptionError, match="no head to fine-tune"):
        methods.build("fedbabu(part=head, layers=0)")
    with pytest.raises(ModelError, match="whole model"):
        tiny_plan("fedbabu(layers=3)")
    with pytest.raises(ModelError, match="3 layers"):
        tiny_plan("fedbabu(layers=4)")
