"""APFL: the mixture of personal and global model is what is trained, by the chain rule."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.core import tree
from idiolect.engines.client_evaluation import evaluate
from idiolect.engines.slots import first_client
from idiolect.testing import check_bad_options, check_wrappers, play, play_params, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    half_squared_error,
    numeric_gradient,
    personal_model,
    scalar,
    scalar_task,
    start_training,
    train_client,
    with_log,
)


def step_on(task: Task, method: str, work: dict, batch: Batch, lr: float) -> dict:
    """One step of APFL on given models."""
    ctx = context_of(tiny_plan(method, lr=lr), 0, task=task)
    return ctx.phase.step(ctx, with_log({"buffers": {}, "apfl.own.buffers": {}, **work}), batch)


def scalar_step(method: str, w: float, v: float, alpha: float, lr: float = 0.1) -> tuple[float, float, float]:
    """One step where the loss is x^2 / 2."""
    x, y = torch.ones(1, 1), torch.zeros(1, 1)
    task = scalar_task(w, x, y, loss=half_squared_error)
    work = {"params": scalar(w), "apfl.own": scalar(v), "apfl.share": {"alpha": torch.tensor(alpha)}}
    after = step_on(task, method, work, Batch(x, y, torch.ones(1)), lr)
    return after["params"]["weight"].item(), after["apfl.own"]["weight"].item(), after["apfl.share"]["alpha"].item()


def test_the_hand_worked_example():
    """f(x) = x^2 / 2 at w = 2, v = 4, alpha = 0.5, learning rate 0.1: the mixture is 3, its gradient 3.

    w = 2 - 0.1 * 2 = 1.8; v = 4 - 0.1 * 0.5 * 3 = 3.85; alpha = 0.5 - 0.1 (4 - 2) 3 = -0.1, cut to 0.
    """
    assert scalar_step("apfl", 2.0, 4.0, 0.5) == pytest.approx((1.8, 3.85, 0.0))
    assert scalar_step("apfl(alpha_lr=0.01)", 2.0, 4.0, 0.5) == pytest.approx((1.8, 3.85, 0.44))
    assert scalar_step("apfl(adaptive=false)", 2.0, 4.0, 0.5) == pytest.approx((1.8, 3.85, 0.5))


def test_alpha_is_cut_to_one_as_well():
    """w = 4, v = -2, alpha = 0.5: the mixture is 1, so alpha moves by -0.1 (-6) 1 to 1.1."""
    assert scalar_step("apfl", 4.0, -2.0, 0.5)[2] == 1.0


def test_the_personal_model_is_never_trained_on_its_own_loss():
    """v = 2 and w = -2 mix to 0, the minimum: v stays, although its own loss has the gradient 2."""
    assert scalar_step("apfl", -2.0, 2.0, 0.5)[1:] == (2.0, 0.5)


def test_the_steps_of_v_and_alpha_follow_finite_differences_of_the_mixtures_loss():
    x, y = tiny_plan("apfl").split(0, "train")
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), (x[:2].double(), y[:2]), classes=3)
    batch = Batch(x.double(), y, torch.ones(len(x)).double())
    w = task.net.params
    v = tree.map(lambda leaf: 0.5 * leaf - 0.1, w)
    alpha = torch.tensor(0.4).double()
    after = step_on(task, "apfl", {"params": w, "apfl.own": v, "apfl.share": {"alpha": alpha}}, batch, lr=1e-2)

    def objective(v, alpha):
        return task.loss(tree.mix(v, w, alpha), {}, batch).loss

    wanted = numeric_gradient(lambda share: objective(v, share["alpha"]), {"alpha": alpha})["alpha"]
    assert torch.isclose((alpha - after["apfl.share"]["alpha"]) / 1e-2, wanted, rtol=1e-5)
    for name, wanted in numeric_gradient(lambda own: objective(own, alpha), v).items():
        assert torch.allclose((v[name] - after["apfl.own"][name]) / 1e-2, wanted, rtol=1e-5, atol=1e-8)


def test_the_shared_model_is_fedavgs_whatever_alpha_is():
    mixed, plain = play(tiny_plan("apfl")), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in mixed.server["params"].items())


@pytest.mark.parametrize(("alpha", "same", "policy"), [(0, "fedavg", "local"), (1, "local", "average")])
def test_fixed_at_its_ends_it_is_fedavg_and_local_to_the_bit_statistics_included(alpha, same, policy):
    """The mixture's statistics are of the client's own passes, so at alpha = 0 those of FedAvg that keeps them local,
    although the shared model's are averaged."""
    # Client 4 has one sample, too few to train normalisation: it stays a newcomer, who gets the shared model.
    rows = [
        [row for row in play(plan).rows if row[3] == "personal" and row[1] != 4]
        for plan in (
            tiny_plan(f"apfl(alpha={alpha}, adaptive=false)", norm=True),
            tiny_plan(same, norm=True, norm_stats=policy),
        )
    ]
    assert rows[0] == rows[1]


def test_the_mixture_predicts_with_the_statistics_of_its_own_passes():
    """One step on one batch: momentum 0.1 takes a tenth of what the first layer's outputs are at the mixture, and
    w's statistics, which are sent, a tenth of what they are at w."""
    plan = tiny_plan("apfl(adaptive=false)", norm=True)
    ctx = context_of(plan, 0)
    w, buffers = plan.tasks[0].net.params, plan.tasks[0].net.buffers
    v = tree.map(lambda leaf: -2.0 * leaf + 0.1, w)
    x, y = plan.split(0, "train")
    work = {"params": w, "buffers": buffers, "apfl.own": v, "apfl.own.buffers": buffers}
    work |= {"apfl.share": {"alpha": torch.tensor(0.25)}}
    after = ctx.phase.step(ctx, with_log(work), Batch(x, y, torch.ones(len(x))))
    mixture = tree.mix(v, w, torch.tensor(0.25))
    model = plan.method.personal_model(plan.context(0, 1, newcomer=False), after)
    for slot, params in (("buffers", w), ("apfl.own.buffers", mixture)):
        outputs = x @ params["0.weight"].T + params["0.bias"]
        assert torch.allclose(after[slot]["1.running_mean"], 0.1 * outputs.mean(0), atol=1e-6)
        assert torch.allclose(after[slot]["1.running_var"], 0.9 + 0.1 * outputs.var(0), atol=1e-6)
    assert all(torch.equal(leaf, after["apfl.own.buffers"][n]) for n, leaf in model["buffers"].items())


def test_the_default_acts_and_learns_alpha():
    mixed, shared, own = (play_params(tiny_plan(m)) for m in ("apfl", "fedavg", "local"))
    for other in (shared, own):
        assert any(not torch.allclose(leaf, other[0][n]) for n, leaf in mixed[0].items())
    recorded = {row[6] for row in play(tiny_plan("apfl")).rows if row[5] == "alpha"}
    assert len(recorded) > 1
    assert all(0 <= value <= 1 for value in recorded)


def test_neither_the_personal_model_nor_alpha_leaves_the_client_and_neither_is_overwritten_by_the_mixture():
    plan = tiny_plan("apfl", rounds=1)
    outcome = train_client(plan)
    assert set(outcome.upload.slots) == {"params", "buffers", "weight"}
    ctx = plan.context(0, 0, newcomer=False)
    mixed = plan.method.personal_model(ctx, {**outcome.upload.slots, **outcome.state})
    assert any(not torch.equal(leaf, outcome.state["apfl.own"][n]) for n, leaf in mixed["params"].items())


def test_an_absent_client_mixes_with_the_newest_global_model():
    plan = tiny_plan("apfl(alpha=0.25)")
    state = first_client(plan.context(0, 0))
    received = tree.map(lambda leaf: leaf + 4.0, plan.tasks[0].net.params)
    _, model = personal_model(plan, {"params": received, "buffers": {}}, state, round=1)
    for name, leaf in plan.tasks[0].net.params.items():
        assert torch.allclose(model["params"][name], leaf + 3.0, atol=1e-6)


def test_a_client_that_joins_late_starts_its_personal_model_from_the_global_one():
    plan = tiny_plan("apfl")
    received = tree.map(lambda leaf: leaf + 4.0, plan.tasks[0].net.params)
    server = {"params": received, "buffers": {}}
    (_, work), (_, model) = start_training(plan, server, round=2), personal_model(plan, server, round=2)
    for name, leaf in received.items():
        assert torch.equal(work["apfl.own"][name], leaf)
        assert torch.equal(model["params"][name], leaf)


def test_an_unseen_client_fine_tunes_the_global_model():
    plan = tiny_plan("apfl", unseen=1)
    points = {score.point for score in evaluate(plan, 5, 0, None, plan.tasks[0].initial, unseen=True)}
    assert points == {"personal", "adapted"}


def test_counters_of_normalisation_stay_whole_numbers():
    plan = tiny_plan("apfl", norm=True)
    state = next(iter(play(plan).clients.values()))
    _, model = personal_model(plan, state=state, round=2)
    assert model["buffers"]["1.num_batches_tracked"].dtype == torch.int64
    assert model["buffers"]["1.running_var"].dtype == torch.float32


def test_wrappers_wrap_it():
    check_wrappers("apfl")


def test_bad_options_are_named():
    check_bad_options("apfl", "alpha=1.5", "alpha=-1.0", "alpha_lr=0.0", "adaptive=2")
