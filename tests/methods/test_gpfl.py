"""GPFL: shared class embeddings guide the features, and a valve turns them into global and personal ones."""

import math

import pytest
import torch
from torch import nn

from idiolect import Batch, Task, run
from idiolect.contract.method import methods
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client import train, tuned_view
from idiolect.methods.gpfl import CLASSES, CONDITION, VALVE, Valve
from idiolect.testing import check_method, play, tiny_plan, views


def started(plan, index=0, newcomer=True):
    """A client's context and its working slots at the beginning of the first round."""
    ctx, server = plan.context(index, 0, newcomer), plan.server(0)
    download = plan.method.download(server, plan.method.server_init(server), (index,)).of(index)
    work = plan.method.begin(ctx, plan.method.client_init(ctx), download)
    ctx.phase = plan.method.phases(ctx)[0]
    return ctx, {**work, "log": {"loss": torch.zeros(()), "samples": torch.zeros(())}}


def first_batch(plan, size=4):
    x, y = plan.split(0, "train")
    return Batch(x[:size], y[:size], torch.ones(size))


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
        "gpfl.received": classes,
        CONDITION: {"global": torch.zeros(2), "personal": torch.zeros(2)},
    }
    ctx = plan.context(0, 0)
    ctx.nets[VALVE].__init__(valve)
    return plan.method, ctx, slots


def test_the_hand_worked_example():
    """Scale 1, shift -1: (2, 0) becomes ReLU(2 x 2 - 1, -1) = (3, 0). Its cosines with (1, 0) and (0, 2) are 1 and 0,
    so class 0 costs log(1 + exp(-1)) = 0.313, and its distance from (1, 0) is 2. For class 1 the cosine term is
    log(1 + exp(1)) = 1.313 and the distance |(3, -2)| = sqrt(13)."""
    method, ctx, slots = hand_worked(lam=0.5)
    features, y = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    assert method.valve(ctx, slots, "global", features)[0].tolist() == [3.0, 0.0]
    wanted = [math.log(1 + math.exp(-1)) + 0.5 * 2, math.log(1 + math.exp(1)) + 0.5 * math.sqrt(13)]
    assert method.guidance(ctx, slots, features, y).tolist() == pytest.approx(wanted)


def test_conditions_are_the_plain_and_the_clients_mean_of_the_received_embeddings():
    """The conditions come from the embeddings that were just received, not from those held before."""
    plan = tiny_plan("gpfl")
    ctx = plan.context(0, 0)
    table = torch.arange(15.0).reshape(3, 5)
    download = {**ctx.initial, CLASSES: {"weight": table}, VALVE: ctx.nets[VALVE].params}
    held = plan.method.begin(ctx, plan.method.client_init(ctx), download)[CONDITION]
    counts = torch.bincount(plan.split(0, "train")[1], minlength=3).float()
    assert torch.allclose(held["global"], table.mean(0))
    assert torch.allclose(held["personal"], (counts[:, None] * table).sum(0) / counts.sum())


def test_the_pull_is_towards_the_received_embeddings_and_directions_follow_the_trained_ones():
    plan = tiny_plan("gpfl(mu=0)")
    ctx, work = started(plan)
    y = torch.tensor([0, 1])
    moved = {**work, CLASSES: {"weight": work[CLASSES]["weight"] * 3}}
    features = torch.ones(2, 5)
    values = [plan.method.guidance(ctx, slots, features, y) for slots in (work, moved)]
    assert torch.allclose(*values)  # longer embeddings: same directions, same received ones


@pytest.mark.parametrize("slot", ["params", CLASSES, VALVE])
def test_gradients_by_finite_differences(slot):
    plan = tiny_plan("gpfl(lam=0.3, mu=0.2)", lr=1.0)
    ctx, work = started(plan)
    batch = Batch(*(part.double() if part.is_floating_point() else part for part in first_batch(plan)))
    work = {s: {n: leaf.double() for n, leaf in each.items()} for s, each in work.items()}

    def value(held):
        out = plan.method.forward(ctx, held, batch.x, train=True)
        guided = plan.method.guidance(ctx, held, out.features, batch.y)
        return float(ctx.task.score(out.outputs, batch) + guided.mean())

    after = plan.method.step(ctx, work, batch)
    decay = 0.0 if slot == "params" else 0.2
    for name, leaf in work[slot].items():
        at, ends = (0,) * leaf.ndim, []
        for sign in (1, -1):
            moved = leaf.clone()
            moved[at] += sign * 1e-6
            ends.append(value({**work, slot: {**work[slot], name: moved}}))
        slope = (ends[0] - ends[1]) / 2e-6 + decay * leaf[at].item()
        assert (leaf - after[slot][name])[at].item() == pytest.approx(slope, abs=1e-6)


def test_padding_changes_nothing():
    plan = tiny_plan("gpfl")
    ctx, work = started(plan)
    batch = first_batch(plan)
    padded = Batch(*(torch.cat([part, part[:1]]) for part in batch[:2]), torch.tensor([1.0, 1, 1, 1, 0]))
    a, b = (plan.method.step(ctx, work, each) for each in (batch, padded))
    for slot in ("params", CLASSES, VALVE, "log"):
        assert all(torch.allclose(leaf, b[slot][n], atol=1e-6) for n, leaf in a[slot].items())


def test_the_model_is_trained_as_fedpers_where_the_valve_is_open_and_nothing_guides():
    """A valve of scale and shift 0 passes features that are not negative; equal embeddings have equal cosines."""
    plan = tiny_plan("gpfl(lam=0, mu=0)")
    ctx, work = started(plan)
    work = {
        **work,
        VALVE: {n: torch.zeros_like(leaf) for n, leaf in work[VALVE].items()},
        CLASSES: {"weight": torch.ones(3, 5)},
    }
    other = tiny_plan("fedper")
    plain = other.method.step(
        other.context(0, 0), {s: work[s] for s in ("params", "buffers", "log")}, first_batch(plan)
    )
    after = plan.method.step(ctx, work, first_batch(plan))
    assert all(torch.allclose(leaf, plain["params"][n], atol=1e-6) for n, leaf in after["params"].items())


# -- what is shared and what predicts --------------------------------------------------------------------


def test_body_embeddings_and_valve_are_averaged_and_the_output_layer_stays():
    plan = tiny_plan("gpfl")
    server = plan.method.server_init(plan.server(0))
    download = plan.method.download(plan.server(0), server, (0, 1))
    outcomes = {i: train(plan, i, 0, None, download.of(i)) for i in (0, 1)}
    after = plan.method.aggregate(plan.server(0), server, {i: each.upload for i, each in outcomes.items()})
    head = {"4.weight", "4.bias"}
    for each in outcomes.values():
        assert each.upload.slots.keys() == {"params", "buffers", "weight", CLASSES, VALVE}
        assert not head & each.upload.slots["params"].keys()
    sent = [outcomes[i].upload.slots[CLASSES]["weight"] for i in (0, 1)]
    assert torch.allclose(after[CLASSES]["weight"], (14 * sent[0] + 9 * sent[1]) / 23, atol=1e-6)
    assert not torch.equal(after[VALVE]["scale.0.weight"], server[VALVE]["scale.0.weight"])


def test_a_client_predicts_with_its_own_layer_on_personal_features():
    plan = tiny_plan("gpfl")
    ctx, _ = started(plan)
    server = plan.method.server_init(plan.server(0))
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.download(plan.server(0), server, (0,)).of(0))
    x = plan.split(0, "test")[0]
    features = ctx.task.forward(view["params"], view["buffers"], x).features
    personal = plan.method.valve(ctx, view, "personal", features)
    wanted = personal @ view["params"]["4.weight"].T + view["params"]["4.bias"]
    assert torch.allclose(plan.method.predict(ctx, view, x), wanted, atol=1e-6)


def test_an_unseen_client_trains_its_output_layer_only():
    plan = tiny_plan("gpfl", unseen=1)
    ctx, server = plan.context(5, 2), plan.method.server_init(plan.server(2))
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.welcome(plan.server(2), server, 5))
    tuned = tuned_view(plan, ctx, view, unseen=True)
    changed = {(s, n) for s, each in view.items() for n, leaf in each.items() if not torch.equal(leaf, tuned[s][n])}
    assert changed == {("params", "4.weight"), ("params", "4.bias")}


@pytest.mark.parametrize(("option", "slot"), [("lam", "params"), ("mu", VALVE)])
def test_the_defaults_act(option, slot):
    a, b = (play(tiny_plan(text)).server[slot] for text in ("gpfl", f"gpfl({option}=0)"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


# -- options and company -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["lam=-1", "mu=-0.1", "mu=true"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=f"gpfl: {bad.split('=')[0]}="):
        methods.build(f"gpfl({bad})")


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


@pytest.mark.parametrize("wrapped", ["fedlag(gpfl, warmup=0)", "flayer(gpfl)", "finetune(gpfl)"])
def test_wrappers_ride_on_it(wrapped):
    found = views(tiny_plan(wrapped))
    assert all(torch.isfinite(leaf).all() for view in found.values() for leaf in view.values())


def test_it_exports_a_predictor():
    result = run("finetune(gpfl)", clients=6, rounds=1, seed=0, unseen=0.2, engine="loop")
    assert result.model(0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_it_keeps_the_contract():
    check_method("gpfl", ["messages", "pure", "through_bytes"])
