"""FedAS: received bodies are aligned with own class means, and clients are weighed by Fisher information."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.core import tree
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.phases import batches, run_phases
from idiolect.engines.slots import aggregate, first_client, first_server
from idiolect.methods.fedas import FISHER, OWN, PROTOTYPES
from idiolect.testing import check_bad_options, check_method, check_regression_refused, check_wrappers, play, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    make_upload,
    numeric_gradient,
    personal_model,
    start_training,
    to_double,
    train_client,
    with_log,
)

HEAD = {"4.weight", "4.bias"}


def second_round(plan, phase, index=0):
    """A client's context in one of its phases, and its working slots at the beginning of its second round."""
    server = first_server(plan.server(1))
    server["params"] = tree.map(lambda leaf: leaf + 0.1, server["params"])
    ctx, work = start_training(plan, server, first_client(plan.context(index, 0)), index, round=1)
    return replace(ctx, phase=plan.method.phases(ctx)[phase]), work


# -- alignment ---------------------------------------------------------------------------------------------


def test_the_hand_worked_alignment():
    """Prototypes 1 and 3, features 2 and 2: the loss is (1 + 1) / 2, its gradients in the features 1 and -1. With
    the body b x at b = 1 and x = (2, 2) that in b is 1 x 2 - 1 x 2 = 0; at x = (2, 4), the features being (2, 4), the
    gradients are 1 and 1, and that in b is 1 x 2 + 1 x 4 = 6."""
    plan = tiny_plan("fedas", lr=7.0)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    task = Task(module, (torch.ones(2, 1), torch.tensor([0, 1])), classes=2)
    ctx = context_of(plan, 1, round=1, newcomer=False, task=task)
    assert (ctx.phase.name, ctx.phase.part, ctx.lr) == ("align", {"0.weight"}, 0.01)
    params = {"0.weight": torch.ones(1, 1), "1.weight": torch.ones(2, 1)}
    work = with_log({"params": params, "buffers": {}})
    work[PROTOTYPES] = {"mean": torch.tensor([[1.0], [3.0]]), "count": torch.ones(2)}
    for x, gradient in (((2.0, 2.0), 0.0), ((2.0, 4.0), 6.0)):
        batch = Batch(torch.tensor(x)[:, None], torch.tensor([0, 1]), torch.ones(2))
        after = ctx.phase.step(ctx, work, batch)
        assert after["params"]["0.weight"].item() == pytest.approx(1 - 0.01 * gradient)
        assert torch.equal(after["params"]["1.weight"], params["1.weight"])
        assert after["log"] is work["log"]


def test_prototypes_are_the_own_models_class_means_over_all_batches():
    """They are those of the model of last time, not of the received body; an absent class counts 0."""
    plan = tiny_plan("fedas")
    ctx, work = second_round(plan, 0, index=2)
    found, _ = run_phases(plan, ctx, plan.method.phases(ctx)[:1], work)
    x, y = plan.split(2, "train")
    features = ctx.task.forward(work[OWN], {}, x).features
    assert torch.allclose(found[PROTOTYPES]["mean"][1], features[y == 1].mean(0), atol=1e-6)
    assert found[PROTOTYPES]["count"].tolist() == [0.0, 6.0, 0.0]
    assert not torch.equal(work["params"]["0.weight"], work[OWN]["0.weight"])


def test_the_gradient_of_alignment_by_finite_differences():
    plan = tiny_plan("fedas(align_lr=1.0)")
    ctx, work = second_round(plan, 1)
    x, y = plan.split(0, "train")
    batch = Batch(x[:6].double(), y[:6], torch.tensor([1.0, 1, 1, 1, 1, 0]).double())
    work = to_double(work)
    work[PROTOTYPES] = {"mean": torch.ones(3, 5).double(), "count": torch.tensor([3.0, 0.0, 1.0]).double()}

    def value(params):
        off = (ctx.task.forward(params, {}, batch.x).features - 1).square().mean(1)
        return float((off * (batch.y != 1) * batch.weight).sum() / 5)

    after = ctx.phase.step(ctx, work, batch)
    assert after["params"].keys() == work["params"].keys()
    for name, wanted in numeric_gradient(value, work["params"]).items():
        change = work["params"][name] - after["params"][name]
        assert torch.allclose(change, torch.zeros_like(wanted) if name in HEAD else wanted, atol=1e-6)


def test_alignment_brings_the_received_body_nearer_to_the_own_features():
    plan = tiny_plan("fedas(align_epochs=5, align_lr=0.1)")
    ctx, work = second_round(plan, 1)
    after, _ = run_phases(plan, ctx, plan.method.phases(ctx)[:2], work)
    x, y = plan.split(0, "train")

    def off(model):
        return float((ctx.task.forward(model, {}, x).features - after[PROTOTYPES]["mean"][y]).square().mean())

    assert off(after["params"]) < off(work["params"])


def test_a_client_that_trains_for_the_first_time_has_nothing_to_align_with():
    plan = tiny_plan("fedas")
    names = {new: [p.name for p in plan.method.phases(plan.context(0, 0, new))] for new in (True, False)}
    assert names == {True: ["train", "fisher"], False: ["prototypes", "align", "train", "fisher"]}


def test_without_alignment_no_prototypes_are_computed():
    plan = tiny_plan("fedas(align_epochs=0)")
    assert [phase.name for phase in plan.method.phases(plan.context(0, 1, newcomer=False))] == ["train", "fisher"]


# -- Fisher information ------------------------------------------------------------------------------------


def send(body, trace, samples):
    """What a client sends whose body is a number."""
    return make_upload({"params": {"0.weight": torch.tensor(body)}, FISHER: {"trace": torch.tensor(trace)}}, samples)


def test_the_hand_worked_weights():
    """F = 25 each averages bodies 2 and 4 to 3, whatever the sample counts; F = 25 and 75, to 3.5."""
    plan = tiny_plan("fedas")
    before = {"params": {"0.weight": torch.tensor(0.0)}, "buffers": {}}
    for traces, wanted in (((25.0, 25.0), 3.0), ((25.0, 75.0), 3.5)):
        sent = enumerate(zip((2.0, 4.0), traces, (1.0, 9.0), strict=True))
        uploads = {i: send(body, trace, samples) for i, (body, trace, samples) in sent}
        assert aggregate(plan.server(0), before, uploads)["params"]["0.weight"].item() == wanted


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_no_information_at_all_keeps_the_body_and_the_runs_weighting_is_not_used(weighting):
    plan = tiny_plan("fedas", weighting=weighting)
    before = {"params": {"0.weight": torch.tensor(7.0)}, "buffers": {}}
    assert aggregate(plan.server(0), before, {0: send(1.0, 0.0, 3.0)})["params"]["0.weight"].item() == 7.0


def test_the_trace_is_the_sum_over_batches_of_squared_gradients_of_the_trained_model():
    """Client 0 has 14 samples: batches of 4, 4, 4 and 2, in the order of a first pass over them."""
    plan = tiny_plan("fedas")
    outcome, ctx, total = train_client(plan), context_of(plan, -1), 0.0
    for _, batch in batches(plan, ctx, 1):
        leaves = {n: leaf.clone().requires_grad_() for n, leaf in outcome.state[OWN].items()}
        ctx.task.loss(leaves, {}, batch).loss.backward()
        total += sum(float(leaf.grad.square().sum()) for leaf in leaves.values())
    assert outcome.upload.slots[FISHER]["trace"].item() == pytest.approx(total, rel=1e-5)


# -- what is kept and what predicts --------------------------------------------------------------------------


def test_without_alignment_and_fisher_weights_the_body_is_fedpers_to_the_bit():
    own, plain = play(tiny_plan("fedas(align_epochs=0, fisher=false)")), play(tiny_plan("fedper"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in own.server["params"].items())


@pytest.mark.parametrize("changed", ["align_epochs=0", "fisher=false"])
def test_the_defaults_act(changed):
    a, b = (play(tiny_plan(text)).server["params"] for text in ("fedas", f"fedas({changed})"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


def test_a_client_predicts_with_its_own_model_of_last_time_and_a_newcomer_with_the_received_body():
    plan = tiny_plan("fedas")
    outcome = train_client(plan)
    newer = {"params": tree.map(lambda leaf: leaf + 5, plan.tasks[0].net.params), "buffers": {}}
    later = personal_model(plan, newer, outcome.state, round=1)[1]["params"]
    assert all(torch.equal(later[n], leaf) for n, leaf in outcome.state[OWN].items())
    fresh = personal_model(plan, newer, index=1, round=1)[1]["params"]
    assert torch.equal(fresh["0.weight"], newer["params"]["0.weight"])
    assert not HEAD & outcome.upload.slots["params"].keys()


def test_an_unseen_client_trains_its_head_only():
    plan = tiny_plan("fedas", unseen=1)
    ctx, model = personal_model(plan, index=5, round=2)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    assert {n for n, leaf in model["params"].items() if not torch.equal(leaf, tuned["params"][n])} == HEAD


# -- options and company -------------------------------------------------------------------------------------


def test_bad_options_are_named():
    check_bad_options("fedas", "align_epochs=-1", "align_lr=0", "fisher=2", "layers=-1")


def test_a_task_without_classes_is_refused():
    check_regression_refused("fedas", "has none")


def test_wrappers_wrap_it():
    check_wrappers("fedas")


@pytest.mark.parametrize("expression", ["fedas(layers=3)", "fedas(layers=0)"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "identities"])
