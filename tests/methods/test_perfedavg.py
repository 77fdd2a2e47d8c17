"""Per-FedAvg: the gradient of the loss after one step of adaptation, on independent batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task, run
from idiolect.contract import Grad, methods
from idiolect.core import tree
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.phases import batches
from idiolect.engines.slots import aggregate
from idiolect.engines.stacking import Functional
from idiolect.kernels import speed_up
from idiolect.methods.perfedavg import along
from idiolect.task.optimizers import Adam
from idiolect.testing import check_bad_options, check_wrappers, play, play_params, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    make_upload,
    numeric_gradient,
    personal_model,
    scalar_federation,
    scalar_module,
    start_training,
)


def squared(outputs, y):
    return outputs.pow(2).sum(1)


def scalar_run(method: str, **changes):
    """Every sample has the loss w^2, and w starts at 1."""
    data, options = scalar_federation(0.0, samples=2), {"rounds": 1, "lr": 0.5} | changes
    return run(method, data, model=scalar_module(1.0), loss=squared, **options)


@pytest.mark.parametrize(("form", "after"), [("fo", 0.2), ("hf", 0.36), ("exact", 0.36)])
def test_the_hand_worked_example(form, after):
    """f = w^2 at w = 1, alpha = 0.1, beta = 0.5: the adapted model is 1 - 0.1 * 2 = 0.8 and g = 1.6.

    First order: 1 - 0.5 * 1.6 = 0.2. With the product: the Hessian is 2, so the step is along
    1.6 - 0.1 * 2 * 1.6 = 1.28, and w becomes 0.36. It predicts with w - 0.1 * 2 w = 0.8 w.
    """
    result = scalar_run(f"perfedavg(form={form}, alpha=0.1)")
    assert result.store.server()["params"]["weight"].item() == pytest.approx(after, abs=1e-4)
    assert result.model(0).weight.item() == pytest.approx(0.8 * after, abs=1e-4)


def test_the_learning_rate_of_adaptation_is_the_papers_or_the_runs():
    """As above with alpha = beta = 0.5: the adapted model is 0, so g = 0 and w stays at 1."""
    assert scalar_run("perfedavg(alpha=null)").store.server()["params"]["weight"].item() == pytest.approx(1.0)
    assert methods.build("perfedavg").alpha == 0.01
    assert methods.build("perfedavg(preset=paper)") == methods.build("perfedavg(uniform=true)")


@pytest.mark.parametrize("vector", [False, True])
def test_the_hessian_product_is_exact_across_corners(vector):
    """Two ReLU units, f = mean of (relu(w1 x) + relu(w2 x))^2 / 2 at x = 1, w = (1, 1e-4): the Hessian is all ones, so
    its product with (1, -1) is 0. Differences of length 1e-3 cross the corner of the second unit and are far off."""
    units = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), SumUp())
    units[0].weight.data = torch.tensor([[1.0], [1e-4]])
    task = Task(units, (torch.ones(2, 1), torch.zeros(2, 1)), loss=lambda outputs, y: outputs.pow(2).sum(1) / 2)
    ctx = replace(tiny_plan("perfedavg").context(0, 0), task=task)
    ctx = replace(ctx, gradients=Functional()) if vector else ctx
    batch = Batch(torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2))
    g = torch.tensor([[1.0], [-1.0]])
    product = ctx.hessian_product({"params": task.net.params, "buffers": {}}, "params", batch, {"0.weight": g})
    assert product["0.weight"].flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-6)

    def slope(way):
        at = {"0.weight": task.net.params["0.weight"] + way * 1e-3 * g}
        return ctx.grad({"params": at, "buffers": {}}, "params", batch).tree["0.weight"]

    assert (slope(1) - slope(-1)).div(2e-3).abs().max() > 100


class SumUp(nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


def test_the_product_of_a_linear_loss_is_zero():
    task = Task(nn.Linear(1, 1), (torch.ones(2, 1), torch.zeros(2, 1)), loss=lambda outputs, y: outputs.sum(1))
    ctx = replace(tiny_plan("perfedavg").context(0, 0), task=task)
    batch = Batch(torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2))
    product = ctx.hessian_product({"params": task.net.params, "buffers": {}}, "params", batch, task.net.params)
    assert not any(leaf.any() for leaf in product.values())


def test_the_product_passes_compiled_convolutions():
    """A network that an engine has rearranged gives what the plain one gives."""
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    plain, fast = (Task(module, (x, y), classes=3) for _ in range(2))
    speed_up(fast)
    products = []
    for task in (plain, fast):
        ctx = replace(tiny_plan("perfedavg").context(0, 0), task=task)
        work = {"params": task.net.params, "buffers": {}}
        products.append(ctx.hessian_product(work, "params", Batch(x, y, torch.ones(4)), task.net.params))
    assert all(torch.allclose(products[1][n], leaf, atol=1e-5) for n, leaf in products[0].items())
    assert any(leaf.abs().max() > 1e-3 for leaf in products[0].values())


def smooth_plan(method: str) -> Plan:
    """A network without corners, in double precision, on which differences are exact."""
    plan = tiny_plan(method, lr=1.0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = plan.split(0, "train")
    return replace(plan, tasks=(Task(module, (x[:2].double(), y[:2]), classes=3),))


@pytest.mark.parametrize("form", ["hf", "exact"])
def test_the_step_follows_the_finite_difference_of_the_adapted_loss(form):
    plan = smooth_plan(f"perfedavg(form={form}, alpha=0.3, delta=1e-4)")
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


@pytest.mark.parametrize("form", ["hf", "exact"])
def test_adaptation_gradient_and_hessian_each_have_their_own_batch(form):
    """g = grad f(w - alpha grad f(w; D); D'), and the Hessian times g is of D''."""
    plan = smooth_plan(f"perfedavg(form={form}, alpha=0.3, delta=1e-4)")
    ctx, work = start_training(plan)
    x, y = plan.split(0, "train")
    meta, inner, third = (Batch(x[s].double(), y[s], torch.ones(4).double()) for s in torch.arange(12).split(4))

    def grad(params, batch):
        return ctx.grad({"params": params, "buffers": {}}, "params", batch).tree

    w = work["params"]
    g = grad(tree.add(w, grad(w, inner), -0.3), meta)
    ahead, behind = (grad(tree.add(w, g, way * 1e-4), third) for way in (1, -1))
    wanted = tree.add(g, tree.sub(ahead, behind), -0.3 / 2e-4)
    moved = ctx.phase.step(ctx, work, (meta, inner, third))["params"]
    assert all(torch.allclose(w[n] - leaf, wanted[n], rtol=1e-4, atol=1e-7) for n, leaf in moved.items())


@pytest.mark.parametrize(("form", "count"), [("fo", 2), ("hf", 3), ("exact", 3)])
def test_a_step_gets_independent_batches(form, count):
    plan = tiny_plan(f"perfedavg(form={form})")
    _, drawn = next(batches(plan, context_of(plan, 0), 0))
    assert len(drawn) == count
    assert all(not torch.equal(drawn[0].x, other.x) for other in drawn[1:])
    assert count == 2 or not torch.equal(drawn[1].x, drawn[2].x)


def test_without_adaptation_the_papers_first_order_form_is_fedavg_with_equal_weights_to_the_bit():
    meta, plain = (
        play_params(tiny_plan("perfedavg(preset=paper, alpha=0, form=fo)")),
        play_params(tiny_plan("fedavg", weighting="uniform")),
    )
    assert all(torch.equal(leaf, plain[i][n]) for i, model in meta.items() for n, leaf in model.items())


def test_the_default_acts_and_the_forms_differ():
    ends = [play(tiny_plan(m)).server["params"] for m in ("perfedavg(alpha=0.1)", "perfedavg(alpha=0.1, form=fo)")]
    plain = play(tiny_plan("fedavg")).server["params"]
    assert all(any(not torch.allclose(leaf, plain[n]) for n, leaf in end.items()) for end in ends)
    assert any(not torch.allclose(leaf, ends[1][n]) for n, leaf in ends[0].items())


@pytest.mark.parametrize(("method", "mean"), [("perfedavg", 0.04), ("perfedavg(preset=paper)", 2.0)])
def test_participants_weigh_as_the_run_says_or_alike_as_in_the_paper(method, mean):
    """0 of 99 samples and 4 of one: 0.04, or alike 2."""
    plan = tiny_plan(method)
    sent = enumerate([(0.0, 99.0), (4.0, 1.0)])
    uploads = {i: make_upload({"params": {"w": torch.tensor(value)}}, samples) for i, (value, samples) in sent}
    before = {"params": {"w": torch.tensor(1.0)}, "buffers": {}}
    assert aggregate(plan.server(0), before, uploads)["params"]["w"].item() == pytest.approx(mean)


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


def test_wrappers_wrap_it():
    check_wrappers("perfedavg")


def test_bad_options_are_named():
    check_bad_options("perfedavg", "form=maml", "alpha=-1", "delta=0")


def test_a_move_along_a_gradient_of_some_layers_leaves_the_others():
    params, part = ({name: torch.ones(2) for name in names} for names in ("ab", "b"))
    moved = along(params, Grad({"params": part}, None), -0.5)
    assert {name: leaf.tolist() for name, leaf in moved.items()} == {"a": [1.0, 1.0], "b": [0.5, 0.5]}
