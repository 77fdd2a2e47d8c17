"""FedCP: a policy splits every sample's features between a personal and a global output layer."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.analysis.discrepancy import discrepancy
from idiolect.contract import methods, tree
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.fedcp import BANDWIDTHS, CONTEXT, HEAD, POLICY, RECEIVED, RECEIVED_HEAD, gumbel
from idiolect.task.network import Net
from idiolect.testing import (
    check_bad_options,
    check_export,
    check_regression_refused,
    check_wrappers,
    play,
    tiny_plan,
)
from idiolect.testing.scalar import (
    numeric_gradient,
    pad_batch,
    personal_model,
    start_training,
    take_batch,
    to_double,
    train_client,
)

# -- the policy ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """One feature 4, scores (ln 3, 0), so r = 3/4: 2 x 3 + 10 x 1 = 16; and (2 + 10) / 2 = 6 is sent."""
    plan = tiny_plan("fedcp")
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    task = Task(module, (torch.ones(2, 1), torch.ones(2, 1)))
    policy = nn.Linear(1, 2)
    nn.init.zeros_(policy.weight)
    policy.bias.data = torch.tensor([math.log(3), 0.0])
    ctx = replace(plan.context(0, 0), task=task, nets={POLICY: Net(policy)})
    slots = {
        "params": {"0.weight": torch.ones(1, 1), "1.weight": torch.full((1, 1), 2.0)},
        "buffers": {},
        POLICY: ctx.nets[POLICY].params,
        HEAD: {"1.weight": torch.full((1, 1), 10.0)},
        RECEIVED_HEAD: {"1.weight": torch.full((1, 1), 10.0)},
        CONTEXT: {"v": torch.ones(1)},
    }
    assert plan.method.predict(ctx, slots, torch.full((1, 1), 4.0)).item() == pytest.approx(16.0)
    assert plan.method.finish(ctx, slots)[HEAD]["1.weight"].item() == 6.0


def test_the_context_is_the_normalised_column_sum_of_the_own_layer_at_the_start_of_the_round():
    plan = tiny_plan("fedcp")
    ctx, work = start_training(plan)
    sums = work["params"]["4.weight"].sum(0)
    assert torch.allclose(work[CONTEXT]["v"], sums / sums.norm())
    assert torch.equal(ctx.phase.step(ctx, work, take_batch(plan))[CONTEXT]["v"], work[CONTEXT]["v"])


def test_the_context_of_a_client_that_has_trained_is_not_that_of_the_global_layer():
    """The own layer is made up: gradients of cross-entropy sum to zero over classes, so they change no column sum."""
    plan = tiny_plan("fedcp")
    server = first_server(plan.server(0))
    state = {"private": tree.map(lambda leaf: leaf + torch.arange(leaf.shape[-1]), server[HEAD])}
    _, work = start_training(plan, server, state, round=1)
    own, common = (F.normalize(layer["4.weight"].sum(0), dim=0) for layer in (work["params"], server[HEAD]))
    assert torch.allclose(work[CONTEXT]["v"], own)
    assert not torch.allclose(own, common, atol=1e-2)


def test_gumbel_noise_has_its_distribution_and_is_finite():
    """P(g <= t) = exp(-exp(-t)) at the image of a normal quantile; mean 0.577, variance pi^2 / 6."""
    z = torch.tensor([-7.0, -1.0, 0.0, 2.0, 7.0])
    found = gumbel(z).double()
    assert torch.isfinite(found).all()
    assert torch.allclose(torch.exp(-torch.exp(-found)), torch.special.ndtr(z.double()), atol=1e-6)
    many = gumbel(torch.randn(200_000, generator=torch.Generator().manual_seed(0)))
    assert many.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert many.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_noise_acts_in_training_and_never_in_prediction():
    plan = tiny_plan("fedcp")
    ctx, work = start_training(plan)
    work = {**work, RECEIVED_HEAD: tree.scale(work[HEAD], -1.0)}  # with equal layers the split would not matter
    x = take_batch(plan).x
    quiet = plan.method.forward(ctx, work, x, train=True).outputs
    noisy = replace(ctx, noise={"gumbel": torch.randn(4, 2, 5)})
    assert not torch.allclose(plan.method.forward(noisy, work, x, train=True).outputs, quiet)
    assert torch.allclose(plan.method.predict(noisy, work, x), quiet, atol=1e-6)


# -- the loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["params", POLICY])
def test_gradients_by_finite_differences(slot):
    plan = tiny_plan("fedcp(lam=2)", lr=1.0)
    ctx, work = start_training(plan)
    batch = Batch(*(part.double() if part.is_floating_point() else part for part in take_batch(plan)))
    work = to_double(work)
    work[RECEIVED] = tree.map(lambda leaf: leaf + 0.3, work["params"])
    work[RECEIVED_HEAD] = tree.scale(work[HEAD], -1.0)
    noise = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(0)).double()
    ctx = replace(ctx, noise={"gumbel": noise})
    received = ctx.task.forward(work[RECEIVED], {}, batch.x).features

    def value(leaves):
        out = plan.method.forward(ctx, {**work, slot: leaves}, batch.x, train=True)
        return ctx.task.score(out.outputs, batch) + 2 * discrepancy(out.features, received, batch.weight, BANDWIDTHS)

    after = ctx.phase.step(ctx, work, batch)[slot]
    for name, gradient in numeric_gradient(value, work[slot]).items():
        assert torch.allclose(work[slot][name] - after[name], gradient, atol=1e-6), name


def test_the_global_layer_and_the_received_body_are_frozen():
    plan = tiny_plan("fedcp")
    ctx, work = start_training(plan)
    after = ctx.phase.step(ctx, work, take_batch(plan))
    for slot in (HEAD, RECEIVED, RECEIVED_HEAD):
        assert all(torch.equal(leaf, work[slot][n]) for n, leaf in after[slot].items())


def test_padding_changes_nothing():
    plan = tiny_plan("fedcp")
    ctx, work = start_training(plan)
    work[RECEIVED] = tree.map(lambda leaf: leaf + 0.3, work["params"])
    batch = take_batch(plan)
    a, b = (ctx.phase.step(ctx, work, each) for each in (batch, pad_batch(batch)))
    for slot in ("params", POLICY, "log"):
        assert all(torch.allclose(leaf, b[slot][n], atol=1e-6) for n, leaf in a[slot].items())


def test_features_are_held_by_default():
    a, b = (play(tiny_plan(text)).server["params"] for text in ("fedcp", "fedcp(lam=0)"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


# -- what is sent and what predicts ------------------------------------------------------------------------


def test_the_global_layer_is_the_mean_of_half_own_half_global_ones_and_the_own_ones_stay():
    plan = tiny_plan("fedcp")
    server, outcomes = first_server(plan.server(0)), {i: train_client(plan, i) for i in (0, 1)}
    after = aggregate(plan.server(0), server, {i: outcome.upload for i, outcome in outcomes.items()})
    own = [outcomes[i].state["private"]["4.weight"] for i in (0, 1)]
    assert not {"4.weight", "4.bias"} & outcomes[0].upload.slots["params"].keys()
    halves = [(weight + server[HEAD]["4.weight"]) / 2 for weight in own]
    assert torch.allclose(after[HEAD]["4.weight"], (14 * halves[0] + 9 * halves[1]) / 23, atol=1e-6)


def test_a_newcomers_own_layer_is_the_newest_global_one_and_a_regulars_its_own():
    plan = tiny_plan("fedcp", unseen=1)
    server = first_server(plan.server(0))
    server[HEAD] = tree.map(lambda leaf: leaf + 1, server[HEAD])
    _, new = personal_model(plan, server, index=5)
    assert torch.equal(new["params"]["4.weight"], server[HEAD]["4.weight"])
    own = {name: server["params"][name] for name in ("4.weight", "4.bias")}
    _, regular = personal_model(plan, server, {"private": own}, index=5)
    assert torch.equal(regular["params"]["4.weight"], own["4.weight"])


def test_an_unseen_client_trains_its_own_layer_only():
    plan = tiny_plan("fedcp", unseen=1)
    ctx, model = personal_model(plan, index=5, round=2)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    changed = {(s, n) for s, tree in model.items() for n, leaf in tree.items() if not torch.equal(leaf, tuned[s][n])}
    assert changed == {("params", "4.weight"), ("params", "4.bias")}


def test_right_after_training_the_global_layer_predicts_as_it_was_received():
    """What is sent in its place is half the own one."""
    plan = tiny_plan("fedcp")
    ctx, work = start_training(plan)
    trained = ctx.phase.step(ctx, work, take_batch(plan))
    model = plan.method.personal_model(replace(ctx, newcomer=False), plan.method.finish(ctx, trained))
    assert torch.equal(model[RECEIVED_HEAD]["4.weight"], work[HEAD]["4.weight"])
    assert torch.equal(model["params"]["4.weight"], trained["params"]["4.weight"])


def test_right_after_training_it_predicts_as_trained():
    plan = tiny_plan("fedcp", after_local=True)
    assert {row[3] for row in play(plan).rows} >= {"personal", "after_local"}


# -- options and company -----------------------------------------------------------------------------------


def test_bad_options_are_named():
    check_bad_options("fedcp", "lam=-1", "lam=x")


def test_a_task_without_classes_is_refused():
    check_regression_refused("fedcp", "one class per sample")


def test_an_output_layer_without_columns_is_refused():
    task = Task(nn.Sequential(nn.Linear(4, 2), nn.PReLU(2)), (torch.randn(2, 4), torch.tensor([0, 1])), classes=2)
    with pytest.raises(ModelError, match=r"shape \(2,\)"):
        methods.build("fedcp").check(task)


def test_wrappers_wrap_it():
    check_wrappers("fedcp")


def test_it_exports_a_predictor():
    check_export("finetune(fedcp)")
