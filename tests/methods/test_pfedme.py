"""pFedMe: personal models solve a proximal problem, and the global model descends its envelope."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task, run
from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines import Plan
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_client
from idiolect.testing import check_bad_options, check_wrappers, close, play, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    half_squared_error,
    make_upload,
    numeric_gradient,
    personal_model,
    scalar_federation,
    scalar_module,
    scalar_task,
    start_training,
    train_client,
    with_log,
)


def scalar_run(method: str, **changes):
    """One client with the loss w^2 / 2; w starts at 1."""
    options = {"model": scalar_module(1.0), "loss": half_squared_error, "rounds": 1, "lr": 0.1}
    return run(method, scalar_federation(0.0), **(options | changes))


def test_the_hand_worked_example():
    """f = theta^2 / 2, w = 1, lambda = 2, K = 2, inner learning rate 0.25, eta = 0.1, beta = 0.5.

    theta: 1 - 0.25 (1 + 2 * 0) = 0.75, then 0.75 - 0.25 (0.75 + 2 (0.75 - 1)) = 0.6875. w_i = 1 - 0.1 * 2 (1 - 0.6875)
    = 0.9375. w = 0.5 * 1 + 0.5 * 0.9375 = 0.96875.
    """
    result = scalar_run("pfedme(lam=2, inner_steps=2, inner_lr=0.25, beta=0.5)")
    assert result.model(0).weight.item() == pytest.approx(0.6875)
    assert result.store.server()["params"]["weight"].item() == pytest.approx(0.96875)


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_its_steps_are_gradient_descent_whatever_the_optimiser(optimizer):
    """Several batches of the hand-worked kind: what a momentum would carry over is not there."""
    plain, other = (
        scalar_run(
            "pfedme(lam=2, inner_steps=2, inner_lr=0.25)", rounds=3, local_epochs=4, optimizer_state="keep", **changes
        )
        for changes in ({}, optimizer)
    )
    assert other.model(0).weight.item() == plain.model(0).weight.item() != 1.0
    assert torch.equal(other.store.server()["params"]["weight"], plain.store.server()["params"]["weight"])


def test_weight_decay_and_clipping_are_the_runs():
    """As above, with 1 * theta added to the gradient: 1 - 0.25 (1 + 1) = 0.5; clipped at 0.4: 1 - 0.1."""
    method = "pfedme(lam=2, inner_steps=1, inner_lr=0.25)"
    assert scalar_run(method, weight_decay=1.0, momentum=0.9).model(0).weight.item() == pytest.approx(0.5)
    assert scalar_run(method, clip=0.4, momentum=0.9).model(0).weight.item() == pytest.approx(0.9)


def test_many_inner_steps_reach_the_proximal_point():
    """For f = theta^2 / 2 and w = 1 the minimiser of f + lambda / 2 (theta - w)^2 is lambda / (1 + lambda)."""
    for lam in (1.0, 4.0, 15.0):
        found = scalar_run(f"pfedme(lam={lam}, inner_steps=60)").model(0).weight.item()
        assert found == pytest.approx(lam / (1 + lam), abs=1e-4)


def test_the_personal_step_follows_the_finite_difference_of_the_inner_problem():
    plan = tiny_plan("pfedme(lam=0.7, inner_steps=1, inner_lr=1)")
    x, y = plan.split(0, "train")
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    task = Task(module, (x[:2].double(), y[:2]), classes=3)
    ctx, batch = context_of(plan, 0, task=task), Batch(x.double(), y, torch.ones(len(x)).double())
    w, theta = task.net.params, tree.map(lambda leaf: leaf + 0.3, task.net.params)
    work = with_log({"params": w, "buffers": {}, "pfedme.own": theta, "pfedme.own.buffers": {}})
    after = ctx.phase.step(ctx, work, batch)

    def objective(theta):
        away = tree.sub(theta, w)
        return task.loss(theta, {}, batch).loss + 0.35 * tree.dot(away, away)

    for name, wanted in numeric_gradient(objective, theta).items():
        assert torch.allclose(theta[name] - after["pfedme.own"][name], wanted, rtol=1e-5, atol=1e-8)
        towards = ctx.lr * 0.7 * (w[name] - after["pfedme.own"][name])
        assert torch.allclose(w[name] - after["params"][name], towards)


def test_one_inner_step_taken_over_whole_is_fedavg():
    """With eta * lambda = 1 the copy becomes theta, so theta's step has no pull: plain SGD with `inner_lr`."""
    method = "pfedme(lam=10, inner_steps=1, inner_lr=0.1, uniform=false)"
    proximal, plain = play(tiny_plan(method, lr=0.1)), play(tiny_plan("fedavg", lr=0.1))
    assert all(close(leaf, plain.server["params"][n], 3e-6) for n, leaf in proximal.server["params"].items())


def test_the_default_moves_the_global_model_and_the_personal_ones_differ():
    plan = tiny_plan("pfedme")
    played, start = play(plan), plan.tasks[0].net.params
    assert any(not torch.allclose(leaf, start[n]) for n, leaf in played.server["params"].items())
    own = [state["pfedme.own"] for state in played.clients.values()]
    assert any(not torch.allclose(leaf, own[1][n]) for n, leaf in own[0].items())
    plain = play(tiny_plan("fedavg", weighting="uniform")).server["params"]
    assert any(not torch.allclose(leaf, plain[n]) for n, leaf in played.server["params"].items())


def test_a_stronger_pull_brings_the_personal_models_nearer():
    def spread(lam: float) -> float:
        played = play(tiny_plan(f"pfedme(lam={lam}, inner_steps=10)", lr=0.01, rounds=1))
        away = [tree.sub(state["pfedme.own"], played.server["params"]) for state in played.clients.values()]
        return sum(float(tree.norm(each)) for each in away)

    assert spread(50.0) < spread(15.0) < spread(5.0)


@pytest.mark.parametrize(("beta", "after"), [(1.0, 3.0), (0.5, 2.0), (2.0, 5.0)])
def test_beta_is_the_share_of_the_clients_mean_in_the_paper_a_plain_one(beta, after):
    """Clients of 99 and 1 samples send 2 and 4, the server has 1: mean 3, and 1 + beta (3 - 1)."""
    plan = tiny_plan(f"pfedme(beta={beta}, uniform=true)")
    sent = enumerate([(2.0, 99.0), (4.0, 1.0)])
    uploads = {i: make_upload({"params": {"w": torch.tensor(value)}}, samples) for i, (value, samples) in sent}
    before = {"params": {"w": torch.tensor(1.0)}, "buffers": {}}
    assert aggregate(plan.server(0), before, uploads)["params"]["w"].item() == after


def test_the_client_sends_its_copy_of_the_global_model_not_the_personal_one():
    outcome = train_client(tiny_plan("pfedme"))
    assert set(outcome.upload.slots) == {"params", "buffers", "weight"}
    assert any(not torch.equal(outcome.state["pfedme.own"][n], v) for n, v in outcome.upload.slots["params"].items())


def test_both_models_start_each_round_from_the_received_one():
    plan = tiny_plan("pfedme")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    state = first_client(plan.context(0, 0))
    _, work = start_training(plan, {"params": received, "buffers": {}}, state, round=1)
    for slot in ("params", "pfedme.own"):
        assert all(torch.equal(work[slot][n], leaf) for n, leaf in received.items())


def test_an_absent_client_keeps_its_last_personal_model_and_a_new_one_has_the_global_model():
    plan = tiny_plan("pfedme")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    first = first_client(plan.context(0, 0))
    for state, expected in ((first, first["pfedme.own"]), (None, received)):
        _, model = personal_model(plan, {"params": received, "buffers": {}}, state, round=1)
        assert all(torch.equal(model["params"][n], leaf) for n, leaf in expected.items())


def test_a_new_client_solves_the_inner_problem_around_the_global_model():
    """One batch, f = theta^2 / 2, w = 1, lambda = 4: after many steps 4 / 5, with w where it was."""
    data = scalar_federation(0.0, clients=2)
    method = methods.build("pfedme(lam=4, inner_steps=60)")
    plan = Plan(method, (scalar_task(1.0, *data.clients[0].split("train"), loss=half_squared_error),), data, rounds=1)
    ctx, model = personal_model(plan, index=1)
    adapted = adapt_model(plan, ctx, model, unseen=True)
    assert adapted["params"]["weight"].item() == pytest.approx(0.8, abs=1e-4)
    assert model["params"]["weight"].item() == 1.0


def test_wrappers_wrap_it():
    check_wrappers("pfedme")


def test_bad_options_are_named():
    check_bad_options("pfedme", "lam=0.0", "inner_steps=0", "inner_lr=0.0", "beta=0.0")


def test_inner_steps_that_cannot_converge_are_refused_with_the_way_out():
    with pytest.raises(OptionError, match=r"choose inner_lr below 0\.133"):
        methods.build("pfedme(lam=15, inner_lr=0.2)")
    with pytest.raises(OptionError, match="must lie below 2"):
        methods.build("pfedme(lam=10, inner_lr=0.2)")
    assert methods.build("pfedme(lam=1000)").solver_lr == 0.0005
    assert methods.build("pfedme(preset=paper)").solver_lr == 0.09
