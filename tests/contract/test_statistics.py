"""Running statistics that are computed anew: the means over a client's batches, of every network of its model."""

from dataclasses import replace

import torch
from torch import nn

from idiolect.engines.client_evaluation import adapt_model, adapt_phases
from idiolect.testing import tiny_plan
from idiolect.testing.scalar import context_of, personal_model, take_batch


def test_all_batches_count_alike_and_what_was_there_before_does_not_count():
    plan = tiny_plan("fedavg", norm=True)
    ctx, model = personal_model(plan)
    x, y = plan.split(0, "train")
    first = nn.functional.linear(x[:8], model["params"]["0.weight"], model["params"]["0.bias"]).reshape(2, 4, -1)
    for step in range(2):
        batch = take_batch(plan)._replace(x=x[4 * step : 4 * step + 4], y=y[4 * step : 4 * step + 4])
        model = plan.method.recompute_statistics(replace(ctx, step=step), model, batch)
    assert torch.allclose(model["buffers"]["1.running_mean"], first.mean((0, 1)), atol=1e-6)
    assert torch.allclose(model["buffers"]["1.running_var"], first.var(1).mean(0), atol=1e-6)


def test_a_batch_of_one_has_no_variance_and_does_not_count():
    plan = tiny_plan("fedavg", norm=True, norm_stats="recompute", batch_size=13)  # of 14 samples
    ctx, model = personal_model(plan)
    x, _ = plan.split(0, "train")
    short = take_batch(plan)._replace(x=x[:1])
    assert plan.method.recompute_statistics(ctx, model, short)["buffers"] == model["buffers"]
    assert torch.isfinite(adapt_model(plan, ctx, model, unseen=False)["buffers"]["1.running_var"]).all()


def test_they_are_computed_before_predicting_only_where_the_run_asks_for_it():
    phases = {
        policy: [phase.name for phase in adapt_phases(context_of(tiny_plan("fedavg", norm=True, norm_stats=policy)))]
        for policy in ("average", "local", "recompute")
    }
    assert phases == {"average": [], "local": [], "recompute": ["stats"]}
    assert not adapt_phases(context_of(tiny_plan("fedavg", norm_stats="recompute")))


def test_every_network_of_a_model_has_its_statistics_computed():
    plan = tiny_plan("apfl", norm=True, norm_stats="recompute")
    ctx, model = personal_model(plan)
    adapted = adapt_model(plan, ctx, model, unseen=False)
    for slot, leaves in model.items():
        if "1.running_mean" in leaves:
            assert not torch.equal(leaves["1.running_mean"], adapted[slot]["1.running_mean"]), slot


def test_a_network_of_the_methods_own_keeps_its_statistics():
    """Such as one that gates: the task's forward pass cannot say what they are."""
    plan = tiny_plan("fedavg", norm=True, norm_stats="recompute")
    ctx, model = personal_model(plan)
    gate = {"gate": {"0.weight": torch.ones(2)}, "gate.buffers": {"1.running_mean": torch.ones(2)}}
    after = plan.method.recompute_statistics(ctx, {**model, **gate}, take_batch(plan))
    assert after["gate.buffers"] is gate["gate.buffers"]
    assert after["buffers"] is not model["buffers"]
