"""FedDBE: a private shift of the features, and shared features whose mean is pulled to the global one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import methods
from idiolect.core.errors import ModelError
from idiolect.engines.client_evaluation import adapt_model
from idiolect.engines.slots import aggregate, first_server
from idiolect.methods.feddbe import MEAN, RUNNING, SHIFT, mean
from idiolect.testing import check_bad_options, check_wrappers, play, tiny_model, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    numeric_gradient,
    personal_model,
    start_training,
    train_client,
    with_log,
)


def make_work(model: dict, m: torch.Tensor, z: torch.Tensor, running: torch.Tensor) -> dict:
    """Working slots of a model, a shift, a global mean and a running mean."""
    return with_log({**model, SHIFT: {"m": m}, MEAN: {"z": z}, RUNNING: {"z": running, "samples": torch.zeros(())}})


def test_the_hand_worked_example():
    """Features 1 and 3, global mean 0.5, mu = 1, kappa = 4: the term is 4 (2 - 0.5)^2 / 2 = 4.5, and its gradient in
    each feature is 4 (2 - 0.5) / 2 = 3.

    The body is one weight 1 and the head zero, so that the loss is log 2 and has no gradient in the body. The weight's
    gradient is then 3 * 1 + 3 * 3 = 12, at rate 0.01 a move to 0.88.
    """
    plan = tiny_plan("feddbe(kappa=4)", lr=0.01)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    nn.init.ones_(module[0].weight)
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])
    ctx = context_of(plan, 0, task=Task(module, (x, y), classes=2))
    work = make_work(ctx.task.initial, torch.zeros(1), torch.tensor([0.5]), torch.zeros(1))
    after = ctx.phase.step(ctx, work, Batch(x, y, torch.ones(2)))
    assert after["params"]["0.weight"].item() == pytest.approx(0.88)
    assert after["log"]["loss"].item() / 2 == pytest.approx(torch.tensor(2.0).log().item() + 4.5)
    assert after[RUNNING]["z"].item() == 2.0


def test_the_gradients_are_those_of_loss_and_pull():
    """Finite differences of model and shift, with a running mean so far and a sample of padding."""
    plan = tiny_plan("feddbe(kappa=3, mu=0.4)", lr=1.0)
    x, y = plan.split(0, "train")[0][:5].double(), torch.tensor([0, 1, 2, 0, 1])
    ctx = context_of(plan, 0, task=Task(tiny_model().double(), (x, y), classes=3))
    draw = torch.Generator().manual_seed(0)
    m, z, running = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    batch = Batch(x, y, torch.tensor([1.0, 1, 1, 1, 0]))
    after = ctx.phase.step(ctx, make_work(ctx.task.initial, m, z, running), batch)

    def objective(p):
        phi = F.linear(F.linear(x[:4], p["0.weight"], p["0.bias"]).relu(), p["2.weight"], p["2.bias"]).relu()
        plain = F.cross_entropy(F.linear(phi + p["m"], p["4.weight"], p["4.bias"]), y[:4])
        return plain + 3 * (0.5 * (0.6 * running + 0.4 * phi.mean(0) - z) ** 2).mean()

    start = {**ctx.task.net.params, "m": m}
    moved = {**after["params"], **after[SHIFT]}
    for name, gradient in numeric_gradient(objective, start).items():
        assert torch.allclose(start[name] - moved[name], gradient, atol=1e-6), name


def test_padding_is_no_part_of_the_mean():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    batch = Batch(features, torch.zeros(3), torch.tensor([1.0, 1.0, 0.0]))
    assert mean(features, batch).tolist() == [2.0, 3.0]


# -- before the first round ----------------------------------------------------------------------------


def test_the_global_mean_is_that_of_all_clients_features_weighed_by_samples():
    """With batches larger than any client, one epoch is one step, and its features are those of the initial model."""
    plan = tiny_plan("feddbe", batch_size=100)
    server = first_server(plan.server(-1))
    uploads = {i: train_client(plan, i, -1).upload for i in plan.data.seen}
    found = aggregate(plan.server(-1), server, uploads)[MEAN]["z"]
    x = torch.cat([plan.split(i, "train")[0] for i in plan.data.seen])
    features = plan.tasks[0].forward(server["params"], {}, x).features
    assert torch.allclose(found, features.mean(0), atol=1e-6)


def test_a_clients_mean_weighs_all_samples_of_the_pass_alike():
    """Batches of 4 and 1 samples with rate 0: the mean of 5, not the mean of two means."""
    plan = tiny_plan("feddbe", lr=1e-12)
    server, outcome = first_server(plan.server(-1)), train_client(plan, 1, -1)
    x, _ = plan.split(1, "train")
    features = plan.tasks[0].forward(server["params"], {}, x).features
    assert len(x) % 4 == 1
    assert torch.allclose(outcome.upload.slots[MEAN]["z"], features.mean(0), atol=1e-5)


def test_setting_up_trains_one_epoch_and_leaves_nothing_but_the_mean():
    plan = tiny_plan("feddbe")
    server, outcome = first_server(plan.server(-1)), train_client(plan, 0, -1)
    assert outcome.steps == 4
    assert set(outcome.upload.slots) == {MEAN, "weight"}
    assert not outcome.state[SHIFT]["m"].any()
    after = aggregate(plan.server(-1), server, {0: outcome.upload})
    assert all(leaf is server["params"][n] for n, leaf in after["params"].items())
    assert after[MEAN]["z"].any()


# -- rounds --------------------------------------------------------------------------------------------


def test_the_running_mean_starts_each_round_at_zero():
    plan = tiny_plan("feddbe(mu=0.5)")
    played = play(plan)
    _, work = start_training(plan, played.server, played.clients[0], round=2)
    assert not work[RUNNING]["z"].any()


def test_the_global_mean_stays_what_it_was_before_the_first_round():
    early, late = (play(tiny_plan("feddbe", rounds=rounds)).server[MEAN]["z"] for rounds in (1, 3))
    assert torch.equal(early, late)


def test_the_default_acts():
    shifted, pulled, plain = (
        play(tiny_plan(m)) for m in ("feddbe", "feddbe(shift=false)", "feddbe(kappa=0, shift=false)")
    )
    assert all(state[SHIFT]["m"].any() for state in shifted.clients.values())
    for a, b in ((shifted, pulled), (pulled, plain)):
        assert not torch.equal(a.server["params"]["0.weight"], b.server["params"]["0.weight"])


def test_a_stronger_pull_brings_the_clients_mean_features_nearer_to_the_global_mean():
    def apart(kappa: float) -> float:
        plan = tiny_plan(f"feddbe(kappa={kappa})", rounds=4)
        server = play(plan).server
        phi = [plan.tasks[0].forward(server["params"], {}, plan.split(i, "train")[0]).features for i in range(3)]
        return sum(float((each.mean(0) - server[MEAN]["z"]).square().sum()) for each in phi)

    assert apart(5) < 0.5 * apart(0)


def test_the_shift_never_leaves_the_client_and_predicts():
    plan = tiny_plan("feddbe")
    played = play(plan)
    outcome = train_client(plan, 0, 2, played.server, played.clients[0])
    assert set(outcome.upload.slots) == {"params", "buffers", "weight"}
    ctx, model = personal_model(plan, played.server, played.clients[0], round=2)
    p, (x, _) = model["params"], plan.split(0, "test")
    phi = ctx.task.forward(p, {}, x).features + model[SHIFT]["m"]
    assert torch.allclose(plan.method.predict(ctx, model, x), F.linear(phi, p["4.weight"], p["4.bias"]))


def test_the_length_of_the_shift_is_recorded():
    assert {row[5] for row in play(tiny_plan("feddbe")).rows} >= {"shift_norm"}


def test_an_unseen_client_trains_model_and_shift():
    plan = tiny_plan("feddbe", unseen=1)
    ctx, model = personal_model(plan, play(plan).server, index=5, round=2)
    tuned = adapt_model(plan, ctx, model, unseen=True)
    assert not torch.equal(tuned["params"]["0.weight"], model["params"]["0.weight"])
    assert tuned[SHIFT]["m"].any()


def test_wrappers_wrap_it():
    check_wrappers("feddbe")


def test_a_model_that_changes_what_its_last_layer_gives_is_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    with pytest.raises(ModelError, match="feddbe feeds the output layer 0 by itself"):
        methods.build("feddbe").check(Task(module, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3))


def test_bad_options_are_named():
    check_bad_options("feddbe", "kappa=-1", "mu=0", "mu=1.1", "shift=2")


def test_a_step_is_one_in_training_mode_which_moves_running_statistics():
    plan = tiny_plan("feddbe", norm=True)
    ctx, work = start_training(plan)
    ctx = context_of(plan, 0)
    x, y = plan.split(0, "train")
    after = ctx.phase.step(ctx, work, Batch(x[:4], y[:4], torch.ones(4)))
    assert int(after["buffers"]["1.num_batches_tracked"]) == 1
    assert not torch.equal(after["buffers"]["1.running_mean"], work["buffers"]["1.running_mean"])
