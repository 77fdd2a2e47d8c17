"""FedRoD: a generic head trained with a balanced soft-max, and a private head on features that it does not change."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import methods, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import first_client, first_server
from idiolect.methods.fedrod import HYPER, OWN
from idiolect.testing import check_bad_options, check_regression_refused, check_wrappers, play, tiny_model, tiny_plan
from idiolect.testing.scalar import context_of, numeric_gradient, personal_model, train_client, with_log


def test_the_hand_worked_example():
    """Logits (0, 0), class 0, counts (3, 1): the balanced soft-max gives class 0 the probability 3/4.

    With features 0 only the biases move, at learning rate 1 by minus the gradient: the generic one by (1/4, -1/4), the
    private one, on the plain soft-max, by (1/2, -1/2).
    """
    plan = tiny_plan("fedrod", lr=1.0)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    x, y = torch.zeros(1, 1), torch.tensor([0])
    task = Task(module, (x, y), classes=2)
    ctx = context_of(plan, 0, task=task, class_counts=torch.tensor([3.0, 1.0]))
    work = with_log({**task.initial, **first_client(ctx)})
    after = ctx.phase.step(ctx, work, Batch(x, y, torch.ones(1)))
    assert after["params"]["1.bias"].tolist() == pytest.approx([0.25, -0.25])
    assert after[OWN]["1.bias"].tolist() == pytest.approx([0.5, -0.5])


def test_both_gradients_are_those_of_their_losses():
    """Finite differences; class 2 is absent, the last sample is padding, and the private loss leaves the body alone."""
    plan = tiny_plan("fedrod(gamma=0.8)", lr=1.0)
    x, y = plan.split(0, "train")[0][:5].double(), torch.tensor([0, 1, 0, 0, 1])
    task = Task(tiny_model().double(), (x, y), classes=3)
    ctx, params = context_of(plan, 0, task=task, class_counts=torch.tensor([3.0, 1.0, 0.0])), task.net.params
    draw = torch.Generator().manual_seed(0)
    own = {n: torch.randn(params[n].shape, generator=draw, dtype=torch.float64) for n in ("4.weight", "4.bias")}
    batch = Batch(x, y, torch.tensor([1.0, 1, 1, 1, 0]))
    after = ctx.phase.step(ctx, with_log({**task.initial, OWN: own}), batch)

    def features(p):
        return F.linear(F.linear(x, p["0.weight"], p["0.bias"]).relu(), p["2.weight"], p["2.bias"]).relu()

    def balanced(p):
        odds = F.linear(features(p), p["4.weight"], p["4.bias"]).exp() * torch.tensor([3**0.8, 1.0, 0.0])
        return -(odds / odds.sum(1, keepdim=True))[torch.arange(4), y[:4]].log().mean()

    fixed = features(params)

    def personal(p):
        logits = F.linear(fixed, params["4.weight"], params["4.bias"]) + F.linear(fixed, p["4.weight"], p["4.bias"])
        return F.cross_entropy(logits[:4], y[:4])

    for name, gradient in numeric_gradient(balanced, params).items():
        assert torch.allclose(params[name] - after["params"][name], gradient, atol=1e-6), name
    for name, gradient in numeric_gradient(personal, own).items():
        assert torch.allclose(own[name] - after[OWN][name], gradient, atol=1e-6), name


def test_a_client_of_one_class_leaves_the_generic_model_alone_and_stays_finite():
    """With one class the balanced soft-max is certain: it has no gradient, and the absent classes no infinity."""
    plan = tiny_plan("fedrod")
    server, outcome = first_server(plan.server(0)), train_client(plan, 2)
    for name, leaf in outcome.upload.slots["params"].items():
        assert torch.equal(leaf, server["params"][name])
    assert outcome.state[OWN]["4.bias"][1] > 0
    assert all(torch.isfinite(leaf).all() for leaf in outcome.state[OWN].values())


def test_the_prediction_is_the_sum_of_both_heads():
    plan = tiny_plan("fedrod")
    played = play(plan)
    ctx, model = personal_model(plan, played.server, played.clients[0], round=2)
    x, _ = plan.split(0, "test")
    summed = {**model["params"], **tree.add(model[OWN], model["params"])}
    assert torch.allclose(plan.method.predict(ctx, model, x), ctx.task.forward(summed, {}, x).outputs, atol=1e-5)


def test_a_client_that_never_trained_predicts_with_the_generic_head():
    plan = tiny_plan("fedrod")
    server = play(plan).server
    ctx, model = personal_model(plan, server, round=2)
    x, _ = plan.split(0, "test")
    assert torch.equal(plan.method.predict(ctx, model, x), ctx.task.forward(server["params"], {}, x).outputs)


def test_the_private_head_never_leaves_a_client():
    outcome = train_client(tiny_plan("fedrod"))
    assert set(outcome.upload.slots) == {"params", "buffers", "weight"}
    assert set(outcome.state) == {OWN}


def test_without_the_balance_the_shared_model_is_fedavgs_and_the_prediction_is_not():
    """The client predicts with both heads, whatever gamma."""
    plan = tiny_plan("fedrod(gamma=0)")
    played, plain = play(plan), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in played.server["params"].items())
    ctx, model = personal_model(plan, played.server, played.clients[0])
    x = plan.data.clients[0].x
    assert not torch.allclose(plan.method.predict(ctx, model, x), ctx.task.forward(model["params"], {}, x).outputs)


def test_the_default_acts():
    played, plain = play(tiny_plan("fedrod")), play(tiny_plan("fedavg"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in played.server["params"].items())
    assert all(state[OWN]["4.weight"].any() for state in played.clients.values())


def test_the_learning_rate_of_the_private_head_is_an_option():
    def moved(options: str) -> torch.Tensor:
        return play(tiny_plan(f"fedrod{options}", rounds=1)).clients[0][OWN]["4.bias"]

    assert moved("(own_lr=0.001)").norm() < 0.1 * moved("").norm()


# -- heads made from class shares ----------------------------------------------------------------------


def test_the_network_that_makes_heads_is_averaged_and_nothing_is_private():
    plan = tiny_plan("fedrod(hyper=true)", rounds=1)
    played = play(plan)
    assert all(not state for state in played.clients.values())
    sent = [train_client(plan, i).upload.slots[HYPER] for i in range(5)]
    mean = tree.mean(sent, [14, 9, 6, 3, 1])
    assert all(torch.allclose(leaf, mean[n]) for n, leaf in played.server[HYPER].items())


def test_made_heads_depend_on_class_shares_alone():
    plan = tiny_plan("fedrod(hyper=true, hidden=4)")
    server = play(plan).server
    ctx = plan.context(0, 2)

    def head(counts: list[float]) -> torch.Tensor:
        return plan.method.private_head(replace(ctx, class_counts=torch.tensor(counts)), server)["4.weight"]

    assert torch.allclose(head([2.0, 1.0, 1.0]), head([4.0, 2.0, 2.0]))
    assert not torch.allclose(head([2.0, 1.0, 1.0]), head([1.0, 2.0, 1.0]))


def test_at_first_made_heads_are_zero():
    plan = tiny_plan("fedrod(hyper=true)")
    server = first_server(plan.server(0))
    assert not any(leaf.any() for leaf in plan.method.private_head(plan.context(0, 0), server).values())


# -- unseen clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedrod", "fedrod(hyper=true)"])
def test_an_unseen_client_trains_its_private_head_alone(method):
    plan = tiny_plan(method, unseen=1, norm=True)
    ctx, model = personal_model(plan, play(plan).server, index=5, round=2)
    assert model[OWN]["5.weight"].any() == (method != "fedrod")
    tuned = adapt_model(plan, ctx, model, unseen=True)
    for slot in ("params", "buffers"):
        assert all(torch.equal(leaf, model[slot][n]) for n, leaf in tuned[slot].items())
    assert not torch.equal(tuned[OWN]["5.weight"], model[OWN]["5.weight"])
    assert [phase.epochs for phase in plan.method.onboard(ctx)] == [10]


def test_wrappers_wrap_it():
    check_wrappers("fedrod")
    check_wrappers("fedrod(hyper=true)", ["finetune({})"])


def test_fine_tuning_trains_the_model_under_the_sum_of_heads():
    plan = tiny_plan("finetune(fedrod)")
    played = play(plan)
    ctx, model = personal_model(plan, played.server, played.clients[0], round=2)
    tuned = adapt_model(plan, ctx, model, unseen=False)
    assert torch.equal(tuned[OWN]["4.weight"], model[OWN]["4.weight"])
    x, y = plan.split(0, "train")
    before, after = (F.cross_entropy(plan.method.predict(ctx, each, x), y) for each in (model, tuned))
    assert after < before


# -- refusals ------------------------------------------------------------------------------------------


def test_a_model_that_changes_what_its_last_layer_gives_is_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    with pytest.raises(ModelError, match="fedrod feeds the output layer 0 by itself"):
        methods.build("fedrod").check(Task(module, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3))


def test_a_model_that_is_one_layer_is_all_head():
    task = Task(nn.Linear(4, 3), (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    method = methods.build("fedrod")
    method.check(task)
    assert set(first_client(context_of(tiny_plan("fedrod"), task=task))[OWN]) == {"weight", "bias"}


def test_a_task_without_classes_is_refused():
    check_regression_refused("fedrod", "fedrod works with one class per sample")


def test_one_logit_for_two_classes_is_refused():
    task = Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.tensor([0.0, 1.0])), loss="bce", classes=2)
    with pytest.raises(ModelError, match="a logit per class"):
        methods.build("fedrod").check(task)


def test_bad_options_are_named():
    check_bad_options("fedrod", "gamma=-1", "hyper=2", "hidden=0", "own_lr=0")


def test_a_client_without_class_counts_gets_a_finite_head_from_the_network():
    plan = tiny_plan("fedrod(hyper=true)")
    ctx = context_of(plan, class_counts=torch.zeros(3))
    head = plan.method.private_head(ctx, first_server(plan.server(0)))
    assert all(torch.isfinite(leaf).all() for leaf in head.values())
