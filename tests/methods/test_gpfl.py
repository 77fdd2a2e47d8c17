"""GPFL: shared class embeddings guide the features, and a valve turns them into global and personal ones."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import methods
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.gpfl import CLASSES, CONDITION, RECEIVED, VALVE, Valve
from idiolect.task.network import Net, Output
from idiolect.testing import check_bad_options, check_export, check_wrappers, play, tiny_plan
from idiolect.testing.scalar import (
    numeric_gradient,
    pad_batch,
    personal_model,
    start_training,
    take_batch,
    to_double,
    train_client,
)

# -- the loss ------------------------------------------------------------------------------------------


def hand_worked(lam):
    """Scale 1 and shift -1 whatever the condition: linear maps of zero, and the layer norm's bias."""
    plan = tiny_plan(f"gpfl(lam={lam})")
    valve = Valve(2)
    for branch, value in ((valve.scale, 1.0), (valve.shift, -1.0)):
        nn.init.zeros_(branch[0].weight)
        nn.init.zeros_(branch[0].bias)
        nn.init.constant_(branch[2].bias, value)
    classes = {"weight": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}
    slots = {
        VALVE: dict(valve.named_parameters()),
        CLASSES: classes,
        RECEIVED: classes,
        CONDITION: {"global": torch.zeros(2), "personal": torch.zeros(2)},
    }
    return plan.method, replace(plan.context(0, 0), nets={VALVE: Net(valve)}), slots


def test_the_hand_worked_example():
    """Scale 1, shift -1: (2, 0) becomes ReLU(2 x 2 - 1, -1) = (3, 0). Its cosines with (1, 0) and (0, 2) are 1 and 0,
    so class 0 costs log(1 + exp(-1)) = 0.313, and its distance from (1, 0) is 2. For class 1 the cosine term is
    log(1 + exp(1)) = 1.313 and the distance |(3, -2)| = sqrt(13)."""
    method, ctx, slots = hand_worked(lam=0.5)
    features, y = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    assert method.valve(ctx, slots, "global", features)[0].tolist() == [3.0, 0.0]
    wanted = [math.log(1 + math.exp(-1)) + 0.5 * 2, math.log(1 + math.exp(1)) + 0.5 * math.sqrt(13)]
    for weight, value in (((1.0, 0.0), wanted[0]), ((0.0, 1.0), wanted[1]), ((1.0, 1.0), sum(wanted) / 2)):
        batch = Batch(features, y, torch.tensor(weight))
        assert method.penalty(ctx, slots, Output(features, features, {}), batch).item() == pytest.approx(value)


def test_conditions_are_the_plain_and_the_clients_mean_of_the_received_embeddings():
    """The conditions come from the embeddings that were just received, not from those held before."""
    plan = tiny_plan("gpfl")
    table = torch.arange(15.0).reshape(3, 5)
    _, work = start_training(plan, {**first_server(plan.server(0)), CLASSES: {"weight": table}})
    condition = work[CONDITION]
    counts = torch.bincount(plan.split(0, "train")[1], minlength=3).float()
    assert torch.allclose(condition["global"], table.mean(0))
    assert torch.allclose(condition["personal"], (counts[:, None] * table).sum(0) / counts.sum())


def test_the_pull_is_towards_the_received_embeddings_and_directions_follow_the_trained_ones():
    plan = tiny_plan("gpfl(mu=0)")
    ctx, work = start_training(plan)
    batch = Batch(torch.ones(2, 4), torch.tensor([0, 1]), torch.ones(2))
    longer = {**work, CLASSES: {"weight": work[CLASSES]["weight"] * 3}}
    out = Output(torch.ones(2, 3), torch.ones(2, 5), {})
    values = [plan.method.penalty(ctx, slots, out, batch) for slots in (work, longer)]
    assert torch.allclose(*values)  # longer embeddings: same directions, same received ones


@pytest.mark.parametrize("slot", ["params", CLASSES, VALVE])
def test_gradients_by_finite_differences(slot):
    plan = tiny_plan("gpfl(lam=0.3, mu=0.2)", lr=1.0)
    ctx, work = start_training(plan)
    batch = Batch(*(part.double() if part.is_floating_point() else part for part in take_batch(plan)))
    work = to_double(work)

    def value(leaves):
        slots = {**work, slot: leaves}
        out = plan.method.forward(ctx, slots, batch.x, train=True)
        return ctx.task.score(out.outputs, batch) + plan.method.penalty(ctx, slots, out, batch)

    after = ctx.phase.step(ctx, work, batch)[slot]
    decay = 0.0 if slot == "params" else 0.2
    for name, gradient in numeric_gradient(value, work[slot]).items():
        leaf = work[slot][name]
        assert torch.allclose(leaf - after[name], gradient + decay * leaf, atol=1e-6), name


def test_padding_changes_nothing():
    plan = tiny_plan("gpfl")
    ctx, work = start_training(plan)
    batch = take_batch(plan)
    a, b = (ctx.phase.step(ctx, work, each) for each in (batch, pad_batch(batch)))
    for slot in ("params", CLASSES, VALVE, "log"):
        assert all(torch.allclose(leaf, b[slot][n], atol=1e-6) for n, leaf in a[slot].items())


def test_the_model_is_trained_as_fedpers_where_the_valve_is_open_and_nothing_guides():
    """A valve of scale and shift 0 passes features that are not negative; equal embeddings have equal cosines."""
    plan = tiny_plan("gpfl(lam=0, mu=0)")
    ctx, work = start_training(plan)
    work = {
        **work,
        VALVE: {n: torch.zeros_like(leaf) for n, leaf in work[VALVE].items()},
        CLASSES: {"weight": torch.ones(3, 5)},
    }
    fedper, plain_work = start_training(tiny_plan("fedper"))
    plain = fedper.phase.step(fedper, plain_work, take_batch(plan))
    after = ctx.phase.step(ctx, work, take_batch(plan))
    assert all(torch.allclose(leaf, plain["params"][n], atol=1e-6) for n, leaf in after["params"].items())


# -- what is shared and what predicts --------------------------------------------------------------------


def test_body_embeddings_and_valve_are_averaged_and_the_output_layer_stays():
    plan = tiny_plan("gpfl")
    server, outcomes = first_server(plan.server(0)), {i: train_client(plan, i) for i in (0, 1)}
    after = aggregate(plan.server(0), server, {i: outcome.upload for i, outcome in outcomes.items()})
    head = {"4.weight", "4.bias"}
    for each in outcomes.values():
        assert each.upload.slots.keys() == {"params", "buffers", "weight", CLASSES, VALVE}
        assert not head & each.upload.slots["params"].keys()
    sent = [outcomes[i].upload.slots[CLASSES]["weight"] for i in (0, 1)]
    assert torch.allclose(after[CLASSES]["weight"], (14 * sent[0] + 9 * sent[1]) / 23, atol=1e-6)
    assert not torch.equal(after[VALVE]["scale.0.weight"], server[VALVE]["scale.0.weight"])


def test_a_client_predicts_with_its_own_layer_on_personal_features():
    plan = tiny_plan("gpfl")
    ctx, model = personal_model(plan)
    x = plan.split(0, "test")[0]
    features = ctx.task.forward(model["params"], model["buffers"], x).features
    personal = plan.method.valve(ctx, model, "personal", features)
    wanted = personal @ model["params"]["4.weight"].T + model["params"]["4.bias"]
    assert torch.allclose(plan.method.predict(ctx, model, x), wanted, atol=1e-6)


def test_an_unseen_client_trains_its_output_layer_only():
    plan = tiny_plan("gpfl", unseen=1)
    ctx, model = personal_model(plan, index=5, round=2)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    changed = {(s, n) for s, tree in model.items() for n, leaf in tree.items() if not torch.equal(leaf, tuned[s][n])}
    assert changed == {("params", "4.weight"), ("params", "4.bias")}


@pytest.mark.parametrize(("option", "slot"), [("lam", "params"), ("mu", VALVE)])
def test_the_defaults_act(option, slot):
    a, b = (play(tiny_plan(text)).server[slot] for text in ("gpfl", f"gpfl({option}=0)"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


# -- options and company -----------------------------------------------------------------------------------


def test_bad_options_are_named():
    check_bad_options("gpfl", "lam=-1", "mu=-0.1", "mu=true")


@pytest.mark.parametrize(
    ("module", "y", "classes", "problem"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), torch.zeros(2, 1), None, "one class per sample"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.LogSoftmax(1)), torch.tensor([0, 1]), 2, "computes more"),
    ],
)
def test_models_without_a_last_layer_on_features_are_refused(module, y, classes, problem):
    task = Task(module, (torch.randn(2, 4), y), classes=classes)
    with pytest.raises(ModelError, match=problem):
        methods.build("gpfl").check(task)


def test_wrappers_wrap_it():
    check_wrappers("gpfl")


def test_it_exports_a_predictor():
    check_export("finetune(gpfl)")
