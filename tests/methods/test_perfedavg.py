"""Per-FedAvg: the gradient of the loss after one step of adaptation, on independent batches."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Federation, Task, run
from idiolect.contract.method import Upload, methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines import Plan
from idiolect.engines.client import batches, tuned_view
from idiolect.task.optimizers import Adam
from idiolect.testing import play, tiny_plan, views


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


def test_the_adaptation_rate_is_the_runs_unless_given():
    """As above with alpha = beta = 0.5: the adapted model is 0, so g = 0 and w stays at 1."""
    assert scalar_run("perfedavg").store.server()["params"]["weight"].item() == pytest.approx(1.0)
    assert methods.build("perfedavg(preset=paper)").alpha == 0.01


def smooth_plan(method: str) -> Plan:
    """A network without corners, in double precision, on which differences are exact."""
    plan = tiny_plan(method, lr=1.0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = plan.split(0, "train")
    return Plan(method=plan.method, tasks=(Task(module, (x[:2].double(), y[:2]), classes=3),), data=plan.data, rounds=1)


def test_the_hessian_free_step_follows_the_finite_difference_of_the_adapted_loss():
    plan = smooth_plan("perfedavg(alpha=0.3, delta=1e-4)")
    task, ctx = plan.tasks[0], plan.context(0, 0)
    ctx.lr = 1.0
    x, y = plan.split(0, "train")
    batch = Batch(x.double(), y, torch.ones(len(x)).double())
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    work = {"params": task.net.params, "buffers": {}, "log": log}
    moved = plan.method.step(ctx, work, (batch,) * 3)["params"]

    def objective(params):
        grad = ctx.grad({"params": params, "buffers": {}}, "params", batch).tree
        return task.loss(tree.add(params, grad, -0.3), {}, batch).loss

    for name, leaf in task.net.params.items():
        for at in range(min(3, leaf.numel())):
            nudge = torch.zeros_like(leaf).reshape(-1)
            nudge[at] = 1e-5
            up, down = ({**task.net.params, name: leaf + s * nudge.reshape(leaf.shape)} for s in (1, -1))
            slope = (objective(up) - objective(down)) / 2e-5
            assert torch.isclose((leaf - moved[name]).reshape(-1)[at], slope, rtol=1e-4, atol=1e-7)


def test_the_first_order_step_is_the_gradient_at_the_adapted_model():
    plan = smooth_plan("perfedavg(form=fo, alpha=0.3)")
    ctx = plan.context(0, 0)
    ctx.lr = 1.0
    x, y = plan.split(0, "train")
    meta, inner = (Batch(x[s].double(), y[s], torch.ones(4).double()) for s in (slice(4), slice(4, 8)))
    work = {"params": ctx.initial["params"], "buffers": {}}
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    adapted = tree.add(work["params"], ctx.grad(work, "params", inner).tree, -0.3)
    slope = ctx.grad({"params": adapted, "buffers": {}}, "params", meta).tree
    moved = plan.method.step(ctx, {**work, "log": log}, (meta, inner))["params"]
    assert all(torch.allclose(work["params"][n] - leaf, slope[n]) for n, leaf in moved.items())


@pytest.mark.parametrize(("form", "count"), [("fo", 2), ("hf", 3)])
def test_a_step_gets_independent_batches(form, count):
    plan = tiny_plan(f"perfedavg(form={form})")
    ctx = plan.context(0, 0)
    (ctx.phase,) = plan.method.phases(ctx)
    drawn = next(batches(plan, ctx, 0))
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
    uploads = {
        i: Upload({"params": {"w": torch.tensor(v)}, "buffers": {}, "weight": {"samples": torch.tensor(s)}})
        for i, (v, s) in enumerate([(0.0, 99.0), (4.0, 1.0)])
    }
    before = {"params": {"w": torch.tensor(1.0)}, "buffers": {}}
    assert plan.method.aggregate(plan.server(0), before, uploads)["params"]["w"].item() == 2.0


def test_it_predicts_after_one_plain_step_on_one_batch_and_writes_nothing_back():
    plan = tiny_plan("perfedavg(alpha=0.3)", optimizer=Adam())
    ctx = plan.context(0, 0, newcomer=False)
    view = plan.method.view(ctx, {}, ctx.initial)
    tuned = tuned_view(plan, ctx, view, unseen=False)
    ctx.phase = plan.method.adapt(ctx)[0]
    (batch,) = batches(plan, ctx, 0)
    assert len(batch.x) == 4
    slope = ctx.grad(view, "params", batch).tree
    assert all(torch.allclose(tuned["params"][n], view["params"][n] - 0.3 * leaf) for n, leaf in slope.items())
    assert all(torch.equal(leaf, ctx.initial["params"][n]) for n, leaf in view["params"].items())
    assert not any(play(tiny_plan("perfedavg")).clients.values())


def test_a_new_client_adapts_by_the_same_one_step():
    plan = tiny_plan("perfedavg", unseen=1)
    ctx = plan.context(5, 0)
    assert plan.method.onboard(ctx) == ()
    view = plan.method.view(ctx, {}, plan.tasks[0].initial)
    first, second = (tuned_view(plan, ctx, view, unseen) for unseen in (True, False))
    assert all(torch.equal(leaf, second["params"][n]) for n, leaf in first["params"].items())


def test_fine_tuning_follows_the_adaptation():
    plan = tiny_plan("finetune(perfedavg)")
    assert [phase.name for phase in plan.method.adapt(plan.context(0, 0))] == ["perfedavg.adapt", "finetune"]


@pytest.mark.parametrize("wrapped", ["fedlag(perfedavg, warmup=0)", "flayer(perfedavg)", "finetune(perfedavg)"])
def test_wrappers_ride_on_it(wrapped):
    played = play(tiny_plan(wrapped))
    assert all(torch.isfinite(leaf).all() for _, leaf in played.leaves() if leaf.is_floating_point())


@pytest.mark.parametrize("bad", ["perfedavg(form=maml)", "perfedavg(alpha=-1)", "perfedavg(delta=0)"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=r"perfedavg: (form|alpha|delta)="):
        methods.build(bad)
