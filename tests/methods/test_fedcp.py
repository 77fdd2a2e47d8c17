"""FedCP: a policy splits every sample's features between a personal and a global output layer."""

import math

import pytest
import torch
from torch import nn

from idiolect import Batch, Task, run
from idiolect.contract.method import methods
from idiolect.core import tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client import train, tuned_view
from idiolect.methods.fedcp import BANDWIDTHS, CONTEXT, FROZEN, HEAD, POLICY, discrepancy, gumbel
from idiolect.task.network import Net
from idiolect.testing import check_method, play, tiny_plan, views


def started(plan, server=None):
    """Client 0's context and working slots at the beginning of the first round."""
    ctx = plan.context(0, 0)
    server = server or plan.method.server_init(plan.server(0))
    work = plan.method.begin(
        ctx, plan.method.client_init(ctx), plan.method.download(plan.server(0), server, (0,)).of(0)
    )
    ctx.phase = plan.method.phases(ctx)[0]
    return ctx, {**work, "log": {"loss": torch.zeros(()), "samples": torch.zeros(())}}


def batch_of(plan, size=4):
    x, y = plan.split(0, "train")
    return Batch(x[:size], y[:size], torch.ones(size))


# -- the policy ------------------------------------------------------------------------------------------


def test_the_hand_worked_example():
    """One feature 4, scores (ln 3, 0), so r = 3/4: 2 x 3 + 10 x 1 = 16; and (2 + 10) / 2 = 6 is sent."""
    plan = tiny_plan("fedcp")
    ctx = plan.context(0, 0)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    ctx.task = Task(module, (torch.ones(2, 1), torch.ones(2, 1)))
    policy = nn.Linear(1, 2)
    nn.init.zeros_(policy.weight)
    policy.bias.data = torch.tensor([math.log(3), 0.0])
    ctx.nets[POLICY] = Net(policy)
    slots = {
        "params": {"0.weight": torch.ones(1, 1), "1.weight": torch.full((1, 1), 2.0)},
        "buffers": {},
        POLICY: ctx.nets[POLICY].params,
        HEAD: {"1.weight": torch.full((1, 1), 10.0)},
        CONTEXT: {"v": torch.ones(1)},
    }
    assert plan.method.predict(ctx, slots, torch.full((1, 1), 4.0)).item() == pytest.approx(16.0)
    _, upload = plan.method.end(ctx, {}, slots)
    assert upload.slots[HEAD]["1.weight"].item() == 6.0


def test_the_context_is_the_normalised_column_sum_of_the_own_layer_at_the_start_of_the_round():
    plan = tiny_plan("fedcp")
    ctx, work = started(plan)
    sums = work["params"]["4.weight"].sum(0)
    assert torch.allclose(work[CONTEXT]["v"], sums / sums.norm())
    assert torch.equal(plan.method.step(ctx, work, batch_of(plan))[CONTEXT]["v"], work[CONTEXT]["v"])


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
    ctx, work = started(plan)
    work = {**work, HEAD: tree.scale(work[HEAD], -1.0)}  # with equal layers the split would not matter
    x = batch_of(plan).x
    quiet = plan.method.forward(ctx, work, x, train=True).outputs
    ctx.noise = {"gumbel": torch.randn(4, 2, 5)}
    assert not torch.allclose(plan.method.forward(ctx, work, x, train=True).outputs, quiet)
    assert torch.allclose(plan.method.predict(ctx, work, x), quiet, atol=1e-6)


# -- the loss --------------------------------------------------------------------------------------------


def test_the_discrepancy_is_the_double_sum_over_pairs_and_ignores_padding():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, 2, generator=draw, dtype=torch.float64) for _ in range(2))

    def k(x, y):
        return sum(math.exp(-float((x - y).square().sum()) / (2 * s)) for s in BANDWIDTHS)

    pairs = [k(a[l], a[m]) + k(b[l], b[m]) - 2 * k(a[l], b[m]) for l in range(3) for m in range(3)]  # noqa: E741
    assert discrepancy(a, b, torch.ones(3).double()).item() == pytest.approx(sum(pairs) / 9)
    padded = [torch.cat([each, 9 * torch.ones(2, 2)]) for each in (a, b)]
    assert discrepancy(*padded, torch.tensor([1.0, 1, 1, 0, 0]).double()).item() == pytest.approx(sum(pairs) / 9)
    assert discrepancy(a, a, torch.ones(3).double()).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("slot", ["params", POLICY])
def test_gradients_by_finite_differences(slot):
    plan = tiny_plan("fedcp(lam=2)", lr=1.0)
    ctx, work = started(plan)
    batch = Batch(*(part.double() if part.is_floating_point() else part for part in batch_of(plan)))
    work = {s: {n: leaf.double() for n, leaf in each.items()} for s, each in work.items()}
    work[FROZEN], work[HEAD] = tree.map(lambda leaf: leaf + 0.3, work["params"]), tree.scale(work[HEAD], -1.0)
    ctx.noise = {"gumbel": torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(0)).double()}
    frozen = ctx.task.forward(work[FROZEN], {}, batch.x).features

    def value(held):
        out = plan.method.forward(ctx, held, batch.x, train=True)
        return float(ctx.task.score(out.outputs, batch) + 2 * discrepancy(out.features, frozen, batch.weight))

    after = plan.method.step(ctx, work, batch)
    for name, leaf in work[slot].items():
        at, ends = (0,) * leaf.ndim, []
        for sign in (1, -1):
            moved = leaf.clone()
            moved[at] += sign * 1e-6
            ends.append(value({**work, slot: {**work[slot], name: moved}}))
        assert (leaf - after[slot][name])[at].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_the_global_layer_and_the_received_body_are_frozen():
    plan = tiny_plan("fedcp")
    ctx, work = started(plan)
    after = plan.method.step(ctx, work, batch_of(plan))
    for slot in (HEAD, FROZEN):
        assert all(torch.equal(leaf, work[slot][n]) for n, leaf in after[slot].items())


def test_padding_changes_nothing():
    plan = tiny_plan("fedcp")
    ctx, work = started(plan)
    work[FROZEN] = tree.map(lambda leaf: leaf + 0.3, work["params"])
    batch = batch_of(plan)
    padded = Batch(*(torch.cat([part, part[:1]]) for part in batch[:2]), torch.tensor([1.0, 1, 1, 1, 0]))
    a, b = (plan.method.step(ctx, work, each) for each in (batch, padded))
    for slot in ("params", POLICY, "log"):
        assert all(torch.allclose(leaf, b[slot][n], atol=1e-6) for n, leaf in a[slot].items())


def test_features_are_held_by_default():
    a, b = (play(tiny_plan(text)).server["params"] for text in ("fedcp", "fedcp(lam=0)"))
    assert any(not torch.equal(leaf, b[name]) for name, leaf in a.items())


# -- what is sent and what predicts ------------------------------------------------------------------------


def test_the_global_layer_is_the_mean_of_half_own_half_global_ones_and_the_own_ones_stay():
    plan = tiny_plan("fedcp")
    server = plan.method.server_init(plan.server(0))
    download = plan.method.download(plan.server(0), server, (0, 1))
    outcomes = {i: train(plan, i, 0, None, download.of(i)) for i in (0, 1)}
    after = plan.method.aggregate(plan.server(0), server, {i: each.upload for i, each in outcomes.items()})
    own = [outcomes[i].state["private"]["4.weight"] for i in (0, 1)]
    assert not {"4.weight", "4.bias"} & outcomes[0].upload.slots["params"].keys()
    halves = [(each + server[HEAD]["4.weight"]) / 2 for each in own]
    assert torch.allclose(after[HEAD]["4.weight"], (14 * halves[0] + 9 * halves[1]) / 23, atol=1e-6)


def test_a_newcomers_own_layer_is_the_newest_global_one_and_a_regulars_its_own():
    plan = tiny_plan("fedcp", unseen=1)
    server = plan.method.server_init(plan.server(0))
    server[HEAD] = tree.map(lambda leaf: leaf + 1, server[HEAD])
    message = plan.method.welcome(plan.server(0), server, 5)
    for newcomer, wanted in ((True, server[HEAD]["4.weight"]), (False, server["params"]["4.weight"])):
        ctx = plan.context(5, 0, newcomer)
        view = plan.method.view(ctx, plan.method.client_init(ctx), message)
        assert torch.equal(view["params"]["4.weight"], wanted)


def test_an_unseen_client_trains_its_own_layer_only():
    plan = tiny_plan("fedcp", unseen=1)
    ctx, server = plan.context(5, 2), plan.method.server_init(plan.server(2))
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.welcome(plan.server(2), server, 5))
    tuned = tuned_view(plan, ctx, view, unseen=True)
    changed = {(s, n) for s, each in view.items() for n, leaf in each.items() if not torch.equal(leaf, tuned[s][n])}
    assert changed == {("params", "4.weight"), ("params", "4.bias")}


def test_right_after_training_it_predicts_as_trained():
    plan = tiny_plan("fedcp", after_local=True)
    assert {row[3] for row in play(plan).rows} >= {"view", "after_local"}


# -- options and company -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["lam=-1", "lam=x"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match="fedcp: lam="):
        methods.build(f"fedcp({bad})")


def test_a_task_without_classes_is_refused():
    task = Task(nn.Linear(4, 1), (torch.randn(2, 4), torch.zeros(2, 1)))
    with pytest.raises(ModelError, match="one class per sample"):
        methods.build("fedcp").check(task)


def test_an_output_layer_without_columns_is_refused():
    task = Task(nn.Sequential(nn.Linear(4, 2), nn.PReLU(2)), (torch.randn(2, 4), torch.tensor([0, 1])), classes=2)
    with pytest.raises(ModelError, match=r"shape \(2,\)"):
        methods.build("fedcp").check(task)


@pytest.mark.parametrize("wrapped", ["fedlag(fedcp, warmup=0)", "flayer(fedcp)", "finetune(fedcp)"])
def test_wrappers_ride_on_it(wrapped):
    found = views(tiny_plan(wrapped))
    assert all(torch.isfinite(leaf).all() for view in found.values() for leaf in view.values())


def test_it_exports_a_predictor():
    result = run("finetune(fedcp)", clients=6, rounds=1, seed=0, unseen=0.2, engine="loop")
    assert result.model(0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_it_keeps_the_contract():
    check_method("fedcp", ["messages", "pure", "through_bytes"])
