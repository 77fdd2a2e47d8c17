"""FedRoD: a generic head trained with a balanced soft-max, and a private head on features that it does not change."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.context import Context
from idiolect.contract.method import methods
from idiolect.core import tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client import train, tuned_view
from idiolect.engines.plan import Plan
from idiolect.task.network import Net
from idiolect.testing import play, tiny_model, tiny_plan, views

OWN, HYPER = "fedrod.own", "fedrod.hyper"


def context(plan: Plan, task: Task, counts: list[float]) -> Context:
    """Client 0's context for another model and other class counts."""
    ctx = plan.context(0, 0)
    ctx.task, ctx.counts = task, torch.tensor(counts)
    ctx.nets = {name: Net(module) for name, module in plan.method.modules(task).items()}
    return ctx


def working(model: dict, **slots) -> dict:
    zero = torch.zeros((), dtype=torch.float64)
    return {**model, **slots, "log": {"loss": zero, "samples": zero}}


def slopes(objective, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradient by central differences."""
    found = {}
    for name, leaf in params.items():
        nudges = 1e-6 * torch.eye(leaf.numel(), dtype=torch.float64).reshape(-1, *leaf.shape)
        both = [[objective({**params, name: leaf + s * nudge}) for s in (1, -1)] for nudge in nudges]
        found[name] = torch.stack([(up - down) / 2e-6 for up, down in both]).reshape(leaf.shape)
    return found


def test_the_hand_worked_example():
    """Logits (0, 0), class 0, counts (3, 1): the balanced soft-max gives class 0 the probability 3/4.

    With features 0 only the biases move, at rate 1 by minus the slope: the generic one by (1/4, -1/4), the private one,
    on the plain soft-max, by (1/2, -1/2).
    """
    plan = tiny_plan("fedrod", lr=1.0)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    x, y = torch.zeros(1, 1), torch.tensor([0])
    task = Task(module, (x, y), classes=2)
    own = {OWN: {name: torch.zeros_like(task.net.params[name]) for name in ("1.weight", "1.bias")}}
    work = working(task.initial, **own)
    after = plan.method.step(context(plan, task, [3.0, 1.0]), work, Batch(x, y, torch.ones(1)))
    assert after["params"]["1.bias"].tolist() == pytest.approx([0.25, -0.25])
    assert after[OWN]["1.bias"].tolist() == pytest.approx([0.5, -0.5])


def test_both_gradients_are_those_of_their_losses():
    """Finite differences; class 2 is absent, the last sample is padding, and the private loss leaves the body alone."""
    plan = tiny_plan("fedrod(gamma=0.8)", lr=1.0)
    x, y = plan.split(0, "train")[0][:5].double(), torch.tensor([0, 1, 0, 0, 1])
    task = Task(tiny_model().double(), (x, y), classes=3)
    ctx, params = context(plan, task, [3.0, 1.0, 0.0]), task.net.params
    draw = torch.Generator().manual_seed(0)
    own = {n: torch.randn(params[n].shape, generator=draw, dtype=torch.float64) for n in ("4.weight", "4.bias")}
    batch = Batch(x, y, torch.tensor([1.0, 1, 1, 1, 0]))
    after = plan.method.step(ctx, working(task.initial, **{OWN: own}), batch)

    def features(p):
        return F.linear(F.linear(x, p["0.weight"], p["0.bias"]).relu(), p["2.weight"], p["2.bias"]).relu()

    def balanced(p):
        odds = F.linear(features(p), p["4.weight"], p["4.bias"]).exp() * torch.tensor([3**0.8, 1.0, 0.0])
        return -(odds / odds.sum(1, keepdim=True))[torch.arange(4), y[:4]].log().mean()

    fixed = features(params)

    def personal(p):
        logits = F.linear(fixed, params["4.weight"], params["4.bias"]) + F.linear(fixed, p["4.weight"], p["4.bias"])
        return F.cross_entropy(logits[:4], y[:4])

    for name, slope in slopes(balanced, params).items():
        assert torch.allclose(params[name] - after["params"][name], slope, atol=1e-6), name
    for name, slope in slopes(personal, own).items():
        assert torch.allclose(own[name] - after[OWN][name], slope, atol=1e-6), name


def test_a_client_of_one_class_leaves_the_generic_model_alone_and_stays_finite():
    """With one class the balanced soft-max is certain: it has no slope, and the absent classes no infinity."""
    plan = tiny_plan("fedrod")
    server = plan.method.server_init(plan.server(0))
    outcome = train(plan, 2, 0, None, plan.method.download(plan.server(0), server, (2,)).of(2))
    for name, leaf in outcome.upload.slots["params"].items():
        assert torch.equal(leaf, server["params"][name])
    assert outcome.state[OWN]["4.bias"][1] > 0
    assert all(torch.isfinite(leaf).all() for leaf in outcome.state[OWN].values())


def test_the_prediction_is_the_sum_of_both_heads():
    plan = tiny_plan("fedrod")
    played, ctx = play(plan), plan.context(0, 2, newcomer=False)
    view = plan.method.view(ctx, played.clients[0], plan.method.download(plan.server(2), played.server, (0,)).of(0))
    x, _ = plan.split(0, "test")
    summed = {**view["params"], **tree.add(view[OWN], view["params"])}
    assert torch.allclose(plan.method.predict(ctx, view, x), ctx.task.forward(summed, {}, x).outputs, atol=1e-5)


def test_a_client_that_never_trained_predicts_with_the_generic_head():
    plan = tiny_plan("fedrod")
    ctx, server = plan.context(0, 2), play(plan).server
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.download(plan.server(2), server, (0,)).of(0))
    x, _ = plan.split(0, "test")
    assert torch.equal(plan.method.predict(ctx, view, x), ctx.task.forward(server["params"], {}, x).outputs)


def test_the_private_head_never_leaves_a_client():
    plan = tiny_plan("fedrod")
    server = plan.method.server_init(plan.server(0))
    outcome = train(plan, 0, 0, None, plan.method.download(plan.server(0), server, (0,)).of(0))
    assert set(outcome.upload.slots) == {"params", "buffers", "weight"}
    assert set(outcome.state) == {OWN}


def test_the_default_acts():
    played, plain = play(tiny_plan("fedrod")), play(tiny_plan("fedavg"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in played.server["params"].items())
    assert all(state[OWN]["4.weight"].any() for state in played.clients.values())


def test_the_rate_of_the_private_head_is_an_option():
    def moved(options: str) -> torch.Tensor:
        return play(tiny_plan(f"fedrod{options}", rounds=1)).clients[0][OWN]["4.bias"]

    assert moved("(own_lr=0.001)").norm() < 0.1 * moved("").norm()


# -- heads made from class shares ----------------------------------------------------------------------


def test_the_network_that_makes_heads_is_averaged_and_nothing_is_private():
    plan = tiny_plan("fedrod(hyper=true)", rounds=1)
    played = play(plan)
    assert all(not state for state in played.clients.values())
    start = plan.method.server_init(plan.server(0))
    sent = [
        train(plan, i, 0, None, plan.method.download(plan.server(0), start, (i,)).of(i)).upload.slots[HYPER]
        for i in range(5)
    ]
    mean = tree.mean(sent, [14, 9, 6, 3, 1])
    assert all(torch.allclose(leaf, mean[n]) for n, leaf in played.server[HYPER].items())


def test_made_heads_depend_on_class_shares_alone():
    plan = tiny_plan("fedrod(hyper=true, hidden=4)")
    server = play(plan).server
    ctx = plan.context(0, 2)

    def head(counts: list[float]) -> torch.Tensor:
        return plan.method.private_head(replace(ctx, counts=torch.tensor(counts)), server)["4.weight"]

    assert torch.allclose(head([2.0, 1.0, 1.0]), head([4.0, 2.0, 2.0]))
    assert not torch.allclose(head([2.0, 1.0, 1.0]), head([1.0, 2.0, 1.0]))


def test_at_first_made_heads_are_zero():
    plan = tiny_plan("fedrod(hyper=true)")
    server = plan.method.server_init(plan.server(0))
    assert not any(leaf.any() for leaf in plan.method.private_head(plan.context(0, 0), server).values())


# -- unseen clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedrod", "fedrod(hyper=true)"])
def test_an_unseen_client_trains_its_private_head_alone(method):
    plan = tiny_plan(method, unseen=1, norm=True)
    server, ctx = play(plan).server, plan.context(5, 2)
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.welcome(plan.server(2), server, 5))
    assert view[OWN]["5.weight"].any() == (method != "fedrod")
    tuned = tuned_view(plan, ctx, view, unseen=True)
    for slot in ("params", "buffers"):
        assert all(torch.equal(leaf, view[slot][n]) for n, leaf in tuned[slot].items())
    assert not torch.equal(tuned[OWN]["5.weight"], view[OWN]["5.weight"])


@pytest.mark.parametrize("wrapped", ["fedlag(fedrod, warmup=0)", "flayer(fedrod)", "finetune(fedrod(hyper=true))"])
def test_wrappers_ride_on_it(wrapped):
    assert all(torch.isfinite(leaf).all() for view in views(tiny_plan(wrapped)).values() for leaf in view.values())


def test_fine_tuning_trains_the_model_under_the_sum_of_heads():
    plan = tiny_plan("finetune(fedrod)")
    played, ctx = play(plan), plan.context(0, 2, newcomer=False)
    view = plan.method.view(ctx, played.clients[0], plan.method.download(plan.server(2), played.server, (0,)).of(0))
    tuned = tuned_view(plan, ctx, view, unseen=False)
    assert torch.equal(tuned[OWN]["4.weight"], view[OWN]["4.weight"])
    x, y = plan.split(0, "train")
    before, after = (F.cross_entropy(plan.method.predict(ctx, each, x), y) for each in (view, tuned))
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
    ctx = context(tiny_plan("fedrod"), task, [1.0, 1.0, 1.0])
    assert set(method.client_init(ctx)[OWN]) == {"weight", "bias"}


def test_a_task_without_classes_is_refused():
    with pytest.raises(ModelError, match="fedrod works with one class per sample"):
        methods.build("fedrod").check(Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.zeros(2, 1))))


def test_one_logit_for_two_classes_is_refused():
    task = Task(nn.Linear(2, 1), (torch.zeros(2, 2), torch.tensor([0.0, 1.0])), loss="bce", classes=2)
    with pytest.raises(ModelError, match="a logit per class"):
        methods.build("fedrod").check(task)


@pytest.mark.parametrize("bad", ["gamma=-1", "hyper=2", "hidden=0", "own_lr=0"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=f"fedrod: {bad.split('=')[0]}="):
        methods.build(f"fedrod({bad})")
