"""Per-FedAvg: the gradient of the loss after one step of adaptation, on independent batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Federation, Task, run
from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.phases import batches
from idiolect.engines.slots import aggregate
from idiolect.task.optimizers import Adam
from idiolect.testing import play, tiny_plan, views
from idiolect.testing.scalar import context_of, make_upload, numeric_gradient, personal_model, start_training


def squared(outputs, y):
    return outputs.pow(2).sum(1)


def scalar_run(method: str, **changes):
    """Every sample has the loss w^2, and w starts at 1."""
    one = (torch.ones(2, 1), torch.zeros(2, 1))
    data = Federation.from_clients([{"train": one, "val": one, "test": one}])
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    return run(method, data, model=module, loss=squared, **({"rounds": 1, "lr": 0.5} | changes))


@pytest.mark.parametrize(("form", "after"), [("fo", 0.2), ("hf", 0.36)])
def test_the_hand_worked_example(form, after):
    """f = w^2 at w = 1, alpha = 0.1, beta = 0.5: the adapted model is 1 - 0.1 * 2 = 0.8 and g = 1.6.

    First order: 1 - 0.5 * 1.6 = 0.2. Hessian-free: the Hessian is 2, so the step is along 1.6 - 0.1 * 2 * 1.6 = 1.28
    and w becomes 0.36. It predicts with w - 0.1 * 2 w = 0.8 w.
    """
    result = scalar_run(f"perfedavg(form={form}, alpha=0.1)")
    assert result.store.server()["params"]["weight"].item() == pytest.approx(after, abs=1e-4)
    assert result.model(0).weight.item() == pytest.approx(0.8 * after, abs=1e-4)


def test_the_learning_rate_of_adaptation_is_the_runs_unless_given():
    """As above with alpha = beta = 0.5: the adapted model is 0, so g = 0 and w stays at 1."""
    assert scalar_run("perfedavg").store.server()["params"]["weight"].item() == pytest.approx(1.0)
    assert methods.build("perfedavg(preset=paper)").alpha == 0.01


def smooth_plan(method: str) -> Plan:
    """A network without corners, in double precision, on which differences are exact."""
    plan = tiny_plan(method, lr=1.0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = plan.split(0, "train")
    return replace(plan, tasks=(Task(module, (x[:2].double(), y[:2]), classes=3),))


def test_the_hessian_free_step_follows_the_finite_difference_of_the_adapted_loss():
    plan = smooth_plan("perfedavg(alpha=0.3, delta=1e-4)")
    (ctx, work), task = start_training(plan), plan.tasks[0]
    x, y = plan.split(0, "train")
    batch = Batch(x.double(), y, torch.ones(len(x)).double())
    moved = ctx.phase.step(ctx, work, (batch,) * 3)["params"]

    def objective(params):
        grad = ctx.grad({"params": params, "buffers": {}}, "params", batch).tree
        return task.loss(tree.add(params, grad, -0.3), {}, batch).loss

    for name, wanted in numeric_gradient(objective, task.net.params, 1e-5).items():
        assert torch.allclose(task.net.params[name] - moved[name], wanted, rtol=1e-4, atol=1e-7)


def test_the_first_order_step_is_the_gradient_at_the_adapted_model():
    plan = smooth_plan("perfedavg(form=fo, alpha=0.3)")
    ctx, work = start_training(plan)
    x, y = plan.split(0, "train")
    meta, inner = (Batch(x[s].double(), y[s], torch.ones(4).double()) for s in (slice(4), slice(4, 8)))
    adapted = tree.add(work["params"], ctx.grad(work, "params", inner).tree, -0.3)
    wanted = ctx.grad({"params": adapted, "buffers": {}}, "params", meta).tree
    moved = ctx.phase.step(ctx, work, (meta, inner))["params"]
    assert all(torch.allclose(work["params"][n] - leaf, wanted[n]) for n, leaf in moved.items())


@pytest.mark.parametrize(("form", "count"), [("fo", 2), ("hf", 3)])
def test_a_step_gets_independent_batches(form, count):
    plan = tiny_plan(f"perfedavg(form={form})")
    _, drawn = next(batches(plan, context_of(plan, 0), 0))
    assert len(drawn) == count
    assert all(not torch.equal(drawn[0].x, other.x) for other in drawn[1:])
    assert count == 2 or not torch.equal(drawn[1].x, drawn[2].x)


def test_without_adaptation_the_first_order_form_is_fedavg_with_equal_weights_to_the_bit():
    meta, plain = views(tiny_plan("perfedavg(alpha=0, form=fo)")), views(tiny_plan("fedavg", weighting="uniform"))
    assert all(torch.equal(leaf, plain[i][n]) for i, view in meta.items() for n, leaf in view.items())


def test_the_default_acts_and_the_forms_differ():
    ends = [play(tiny_plan(m)).server["params"] for m in ("perfedavg", "perfedavg(form=fo)")]
    plain = play(tiny_plan("fedavg", weighting="uniform")).server["params"]
    assert all(any(not torch.allclose(leaf, plain[n]) for n, leaf in end.items()) for end in ends)
    assert any(not torch.allclose(leaf, ends[1][n]) for n, leaf in ends[0].items())


def test_participants_count_alike_whatever_their_size():
    plan = tiny_plan("perfedavg")
    sent = enumerate([(0.0, 99.0), (4.0, 1.0)])
    uploads = {i: make_upload({"params": {"w": torch.tensor(value)}}, samples) for i, (value, samples) in sent}
    before = {"params": {"w": torch.tensor(1.0)}, "buffers": {}}
    assert aggregate(plan.server(0), before, uploads)["params"]["w"].item() == 2.0


def test_it_predicts_after_one_plain_step_on_one_batch_and_writes_nothing_back():
    plan = tiny_plan("perfedavg(alpha=0.3)", optimizer=Adam())
    ctx, model = personal_model(plan, state={})
    adapted = adapt_model(plan, ctx, model, unseen=False)
    ((ctx, batch),) = batches(plan, replace(ctx, phase=plan.method.adapt(ctx)[0]), 0)
    assert len(batch.x) == 4
    grad = ctx.grad(model, "params", batch).tree
    assert all(torch.allclose(adapted["params"][n], model["params"][n] - 0.3 * leaf) for n, leaf in grad.items())
    assert all(torch.equal(leaf, ctx.initial["params"][n]) for n, leaf in model["params"].items())
    assert not any(play(tiny_plan("perfedavg")).clients.values())


def test_a_new_client_adapts_by_the_same_one_step():
    plan = tiny_plan("perfedavg", unseen=1)
    ctx, model = personal_model(plan, index=5)
    assert plan.method.onboard(ctx) == ()
    first, second = (adapt_model(plan, ctx, model, unseen) for unseen in (True, False))
    assert all(torch.equal(leaf, second["params"][n]) for n, leaf in first["params"].items())


def test_fine_tuning_follows_the_adaptation():
    plan = tiny_plan("finetune(perfedavg)")
    assert [phase.name for phase in plan.method.adapt(plan.context(0, 0))] == ["perfedavg.adapt", "finetune"]


@pytest.mark.parametrize("wrapped", ["fedlag(perfedavg, warmup=0)", "flayer(perfedavg)", "finetune(perfedavg)"])
def test_wrappers_wrap_it(wrapped):
    played = play(tiny_plan(wrapped))
    assert all(torch.isfinite(leaf).all() for _, leaf in played.leaves() if leaf.is_floating_point())


@pytest.mark.parametrize("bad", ["perfedavg(form=maml)", "perfedavg(alpha=-1)", "perfedavg(delta=0)"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=r"perfedavg: (form|alpha|delta)="):
        methods.build(bad)
