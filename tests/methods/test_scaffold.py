"""SCAFFOLD: steps corrected by control variates, which are the mean gradients along each client's path."""

from dataclasses import replace

import pytest
import torch

from idiolect import Federation
from idiolect.contract import Training, methods
from idiolect.core import tree
from idiolect.engines import Plan
from idiolect.engines.slots import aggregate
from idiolect.task.optimizers import SGD
from idiolect.task.schedules import Exponential
from idiolect.testing import check_bad_options, check_wrappers, play, tiny_plan
from idiolect.testing.differences import require_equal_leaves
from idiolect.testing.scalar import (
    download_of,
    half_squared_error,
    make_upload,
    scalar,
    scalar_federation,
    scalar_task,
    start_training,
    take_batch,
    train_client,
)

TARGETS, SIZES = (4.0, -2.0, 1.0), (1, 3, 2)


def scalar_plan(method: str, rounds=4, participation=1.0, **training) -> Plan:
    """Three clients of 1, 3 and 2 samples, each sample with the loss (w - target)^2 / 2, in batches of one."""
    parts = [(torch.ones(n, 1), torch.full((n, 1), t)) for t, n in zip(TARGETS, SIZES, strict=True)]
    data = Federation.from_clients([{"train": part, "val": part, "test": part} for part in parts])
    task = scalar_task(1.0, *parts[1], loss=half_squared_error)
    options = Training(**({"batch_size": 1, "epochs": 2, "lr": 0.1} | training))
    return Plan(methods.build(method), (task,), data, rounds, options, participation)


def by_the_formulas(plan: Plan, server_lr: float) -> tuple[float, float, list[float]]:
    """Algorithm 1 with option II as it is printed, on numbers; the means have the run's weights."""
    weights = SIZES if plan.training.weighting == "samples" else (1, 1, 1)
    x, c, own, seen = 1.0, 0.0, [0.0] * 3, []
    for round in range(plan.rounds):
        lr, moves, changes = plan.context(0, round).lr, [], []
        for i in plan.participants(round):
            y, steps = x, SIZES[i] * plan.training.epochs
            for _ in range(steps):
                y = y - lr * ((y - TARGETS[i]) - own[i] + c)
            plus = own[i] - c + (x - y) / (steps * lr)
            moves.append(weights[i] * (y - x))
            changes.append(weights[i] * (plus - own[i]))
            own[i] = plus
        here = [weights[i] for i in plan.participants(round)]
        seen += here
        x += server_lr * sum(moves) / sum(here)
        c += sum(changes) / (3 * sum(seen) / len(seen))
    return x, c, own


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("participation", [1.0, 0.67, 0.34])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_it_follows_the_papers_formulas_with_a_decaying_rate_and_clients_of_all_sizes(
    participation, server_lr, weighting
):
    method = f"scaffold(server_lr={server_lr})"
    plan = scalar_plan(method, participation=participation, weighting=weighting, schedule=Exponential(gamma=0.5))
    x, c, own = by_the_formulas(plan, server_lr)
    played = play(plan)
    assert played.server["params"]["weight"].item() == pytest.approx(x, rel=1e-5, abs=1e-6)
    assert played.server["scaffold.control"]["weight"].item() == pytest.approx(c, rel=1e-5, abs=1e-6)
    for i, state in played.clients.items():
        found = 0.0 if state is None else state["scaffold.own"]["weight"].item()
        assert found == pytest.approx(own[i], rel=1e-5, abs=1e-6)


def test_the_hand_worked_example():
    """x = 1, c = 0.5, c_i = 0.2, gradient 2, rate 0.1, one step.

    y = 1 - 0.1 (2 - 0.2 + 0.5) = 0.77; c_i+ = 0.2 - 0.5 + (1 - 0.77) / 0.1 = 2. The gradient 1 - target is 2 for
    the target -1. With N = 4 clients c becomes 0.5 + (2 - 0.2) / 4 = 0.95.
    """
    plan = replace(scalar_plan("scaffold", rounds=1, epochs=1), data=scalar_federation(-1.0, clients=4))
    weight = {"sum": torch.tensor(0.0), "count": torch.tensor(0.0)}
    server = {"params": scalar(1.0), "buffers": {}, "scaffold.control": scalar(0.5), "scaffold.weight": weight}
    outcome = train_client(plan, server=server, state={"scaffold.own": scalar(0.2)})
    assert outcome.upload.slots["params"]["weight"].item() == pytest.approx(0.77)
    assert outcome.state["scaffold.own"]["weight"].item() == pytest.approx(2.0)
    after = aggregate(plan.server(0), server, {0: outcome.upload})
    assert after["scaffold.control"]["weight"].item() == pytest.approx(0.95)
    assert after["params"]["weight"].item() == pytest.approx(0.77)


def test_the_servers_rate_moves_the_model_and_leaves_running_statistics_the_mean():
    plan = scalar_plan("scaffold(server_lr=0.5, control=false)")
    server = {"params": scalar(1.0), "buffers": {"mean": torch.tensor(1.0)}}
    upload = make_upload({"params": scalar(3.0), "buffers": {"mean": torch.tensor(3.0)}})
    after = aggregate(plan.server(0), server, {0: upload})
    assert after["params"]["weight"].item() == 2.0
    assert after["buffers"]["mean"].item() == 3.0


def test_without_control_variates_the_papers_is_fedavg_with_equal_weights_to_the_bit():
    frozen, plain = tiny_plan("scaffold(preset=paper, control=false)"), tiny_plan("fedavg", weighting="uniform")
    found, wanted = play(frozen), play(plain)
    require_equal_leaves(found.server["params"], wanted.server["params"], "control=false")
    assert all(not leaf.any() for leaf in found.server["scaffold.control"].values())


def test_in_the_first_round_all_variates_are_zero_so_the_model_is_fedavgs():
    first, plain = play(tiny_plan("scaffold", rounds=1)), play(tiny_plan("fedavg", rounds=1))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in first.server["params"].items())


def test_the_default_acts():
    changed, plain = play(tiny_plan("scaffold")), play(tiny_plan("fedavg"))
    assert any(not torch.equal(leaf, plain.server["params"][n]) for n, leaf in changed.server["params"].items())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_full_participation_the_servers_variate_is_the_clients_mean_with_the_weights_of_models(weighting):
    """So the corrections of all clients, c - c_i, cancel in the mean of their models."""
    plan = tiny_plan("scaffold", weighting=weighting)
    weights = [len(plan.split(i, "train")[0]) if weighting == "samples" else 1.0 for i in range(5)]
    played = play(plan)
    mean = tree.mean([state["scaffold.own"] for state in played.clients.values()], weights)
    for name, leaf in played.server["scaffold.control"].items():
        assert torch.allclose(leaf, mean[name], atol=1e-6)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), SGD(clip=0.01)])
def test_the_variate_stays_a_gradient_where_moves_are_not(optimizer):
    """Client 0 takes two tiny steps with the gradient 1 - 4 = -3. By (x - y) / (K eta) its variate would be -4.35
    with momentum (the moves are 1 and 1.9 gradients long) and -0.01 with clipping."""
    plan = scalar_plan("scaffold", lr=1e-4, rounds=1, optimizer=optimizer)
    variate = play(plan).clients[0]["scaffold.own"]["weight"].item()
    assert variate == pytest.approx(1.0 - TARGETS[0], rel=1e-3)


def test_the_correction_removes_the_drift_that_fedavg_ends_with():
    """Quadratic clients with different numbers of steps: the fixed point of FedAvg favours those with more steps;
    that of SCAFFOLD is the plain mean of the targets, 1."""
    ends = {
        method: play(scalar_plan(method, rounds=25, lr=0.2, weighting="uniform")).server["params"]["weight"].item()
        for method in ("scaffold", "fedavg")
    }
    assert ends["scaffold"] == pytest.approx(1.0, abs=1e-2)
    assert abs(ends["fedavg"] - 1.0) > 0.1


def test_what_is_private_is_neither_corrected_nor_sent():
    plan = tiny_plan("scaffold", norm=True, norm_affine="local")
    download, outcome = download_of(plan), train_client(plan)
    private = {"1.weight", "1.bias"}
    for tree_ in (download["scaffold.control"], outcome.upload.slots["scaffold.change"], outcome.state["scaffold.own"]):
        assert not private & set(tree_)
    _, work = start_training(plan, state=outcome.state)
    assert all(not work["scaffold.correction"][n].any() for n in private)


def test_the_step_uses_the_gradient_minus_own_plus_servers_variate():
    plan = tiny_plan("scaffold", lr=1.0)
    initial, batch = plan.tasks[0].initial, take_batch(plan)
    own, control = (tree.map(lambda leaf, s=s: torch.full_like(leaf, s), initial["params"]) for s in (0.25, 1.0))
    ctx, work = start_training(plan, {**initial, "scaffold.control": control}, {"scaffold.own": own})
    plain = ctx.grad(work, "params", batch).tree
    moved = ctx.phase.step(ctx, work, batch)["params"]
    for name, leaf in moved.items():
        assert torch.allclose(ctx.initial["params"][name] - leaf, plain[name] - 0.25 + 1.0, atol=1e-6)


def test_wrappers_wrap_it():
    check_wrappers("scaffold")


def test_bad_options_are_named():
    check_bad_options("scaffold", "server_lr=0", "server_lr=-1", "control=3")


def test_the_server_records_the_length_of_its_variate():
    rows = [row for row in play(tiny_plan("scaffold")).rows if row[5] == "control_norm"]
    assert len(rows) == 3
    assert all(row[6] > 0 for row in rows)


def test_layers_that_stay_on_clients_have_no_control_variate_of_their_own():
    """The server's c of them stays zero, that of the others moves."""
    control = play(tiny_plan("scaffold", norm=True, norm_affine="local")).server["scaffold.control"]
    assert all(bool(leaf.any()) == (not name.startswith("1.")) for name, leaf in control.items())


def test_weight_decay_needs_no_variate():
    """The fixed point minimises the mean of (w - target)^2 / 2 plus 0.5 w^2 / 2: the mean target 1, over 1.5."""
    plan = scalar_plan("scaffold", rounds=60, lr=0.2, weighting="uniform", optimizer=SGD(weight_decay=0.5))
    assert play(plan).server["params"]["weight"].item() == pytest.approx(1 / 1.5, abs=1e-3)
