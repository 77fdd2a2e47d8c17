"""FedDBE: a private shift of the features, and shared features whose mean is pulled to the global one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.method import methods
from idiolect.contract.phase import Phase
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client import train, tuned_view
from idiolect.methods.feddbe import mean
from idiolect.testing import play, tiny_model, tiny_plan, views

SHIFT, MEAN, RUNNING = "feddbe.shift", "feddbe.mean", "feddbe.running"


def working(model: dict, m: torch.Tensor, z: torch.Tensor, running: torch.Tensor) -> dict:
    zero = torch.zeros((), dtype=torch.float64)
    held = {"z": running, "samples": zero}
    log = {"loss": zero, "samples": zero}
    return {**model, SHIFT: {"m": m}, MEAN: {"z": z}, RUNNING: held, "log": log}


def test_the_hand_worked_example():
    """Features 1 and 3, global mean 0.5, mu = 1, kappa = 4: the term is 4 (2 - 0.5)^2 / 2 = 4.5, and its slope in each
    feature is 4 (2 - 0.5) / 2 = 3.

    The body is one weight 1 and the head zero, so that the loss is log 2 and has no slope in the body. The weight's
    slope is then 3 * 1 + 3 * 3 = 12, at rate 0.01 a move to 0.88.
    """
    plan = tiny_plan("feddbe(kappa=4)", lr=0.01)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    nn.init.ones_(module[0].weight)
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1])
    ctx = plan.context(0, 0)
    ctx.task, ctx.phase = Task(module, (x, y), classes=2), Phase(slots=("params", SHIFT))
    work = working(ctx.task.initial, torch.zeros(1), torch.tensor([0.5]), torch.zeros(1))
    after = plan.method.step(ctx, work, Batch(x, y, torch.ones(2)))
    assert after["params"]["0.weight"].item() == pytest.approx(0.88)
    assert after["log"]["loss"].item() / 2 == pytest.approx(torch.tensor(2.0).log().item() + 4.5)
    assert after[RUNNING]["z"].item() == 2.0


def test_the_gradients_are_those_of_loss_and_pull():
    """Finite differences of model and shift, with a running mean so far and a sample of padding."""
    plan = tiny_plan("feddbe(kappa=3, mu=0.4)", lr=1.0)
    x, y = plan.split(0, "train")[0][:5].double(), torch.tensor([0, 1, 2, 0, 1])
    ctx = plan.context(0, 0)
    ctx.task, ctx.phase = Task(tiny_model().double(), (x, y), classes=3), Phase(slots=("params", SHIFT))
    draw = torch.Generator().manual_seed(0)
    m, z, running = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    batch = Batch(x, y, torch.tensor([1.0, 1, 1, 1, 0]))
    after = plan.method.step(ctx, working(ctx.task.initial, m, z, running), batch)

    def objective(p):
        phi = F.linear(F.linear(x[:4], p["0.weight"], p["0.bias"]).relu(), p["2.weight"], p["2.bias"]).relu()
        plain = F.cross_entropy(F.linear(phi + p["m"], p["4.weight"], p["4.bias"]), y[:4])
        return plain + 3 * (0.5 * (0.6 * running + 0.4 * phi.mean(0) - z) ** 2).mean()

    start = {**ctx.task.net.params, "m": m}
    moved = {**after["params"], **after[SHIFT]}
    for name, leaf in start.items():
        nudges = 1e-6 * torch.eye(leaf.numel(), dtype=torch.float64).reshape(-1, *leaf.shape)
        both = [[objective({**start, name: leaf + s * nudge}) for s in (1, -1)] for nudge in nudges]
        slope = torch.stack([(up - down) / 2e-6 for up, down in both]).reshape(leaf.shape)
        assert torch.allclose(leaf - moved[name], slope, atol=1e-6), name


def test_padding_is_no_part_of_the_mean():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    batch = Batch(features, torch.zeros(3), torch.tensor([1.0, 1.0, 0.0]))
    assert mean(features, batch).tolist() == [2.0, 3.0]


# -- before the first round ----------------------------------------------------------------------------


def test_the_global_mean_is_that_of_all_clients_features_weighed_by_samples():
    """With batches larger than any client, one epoch is one step, and its features are those of the initial model."""
    plan = tiny_plan("feddbe", batch_size=100)
    server = plan.method.server_init(plan.server(-1))
    download = plan.method.download(plan.server(-1), server, plan.data.seen)
    uploads = {i: train(plan, i, -1, None, download.of(i)).upload for i in plan.data.seen}
    found = plan.method.aggregate(plan.server(-1), server, uploads)[MEAN]["z"]
    x = torch.cat([plan.split(i, "train")[0] for i in plan.data.seen])
    features = plan.tasks[0].forward(server["params"], {}, x).features
    assert torch.allclose(found, features.mean(0), atol=1e-6)


def test_a_clients_mean_weighs_all_samples_of_the_pass_alike():
    """Batches of 4 and 1 samples with rate 0: the mean of 5, not the mean of two means."""
    plan = tiny_plan("feddbe", lr=1e-12)
    server = plan.method.server_init(plan.server(-1))
    outcome = train(plan, 1, -1, None, plan.method.download(plan.server(-1), server, (1,)).of(1))
    x, _ = plan.split(1, "train")
    features = plan.tasks[0].forward(server["params"], {}, x).features
    assert len(x) % 4 == 1
    assert torch.allclose(outcome.upload.slots[MEAN]["z"], features.mean(0), atol=1e-5)


def test_setting_up_trains_one_epoch_and_leaves_nothing_but_the_mean():
    plan = tiny_plan("feddbe")
    server = plan.method.server_init(plan.server(-1))
    outcome = train(plan, 0, -1, None, plan.method.download(plan.server(-1), server, (0,)).of(0))
    assert outcome.steps == 4
    assert set(outcome.upload.slots) == {MEAN, "weight"}
    assert not outcome.state[SHIFT]["m"].any()
    after = plan.method.aggregate(plan.server(-1), server, {0: outcome.upload})
    assert all(leaf is server["params"][n] for n, leaf in after["params"].items())
    assert after[MEAN]["z"].any()


# -- rounds --------------------------------------------------------------------------------------------


def test_the_running_mean_starts_each_round_at_zero():
    plan = tiny_plan("feddbe(mu=0.5)")
    played = play(plan)
    ctx = plan.context(0, 2, newcomer=False)
    download = plan.method.download(plan.server(2), played.server, (0,)).of(0)
    assert not plan.method.begin(ctx, played.clients[0], download)[RUNNING]["z"].any()


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
    played, ctx = play(plan), plan.context(0, 2, newcomer=False)
    download = plan.method.download(plan.server(2), played.server, (0,)).of(0)
    outcome = train(plan, 0, 2, played.clients[0], download)
    assert SHIFT not in outcome.upload.slots
    view, (x, _) = plan.method.view(ctx, played.clients[0], download), plan.split(0, "test")
    p = view["params"]
    phi = ctx.task.forward(p, {}, x).features + view[SHIFT]["m"]
    assert torch.allclose(plan.method.predict(ctx, view, x), F.linear(phi, p["4.weight"], p["4.bias"]))


def test_the_length_of_the_shift_is_recorded():
    assert {row[5] for row in play(tiny_plan("feddbe")).rows} >= {"shift_norm"}


def test_an_unseen_client_trains_model_and_shift():
    plan = tiny_plan("feddbe", unseen=1)
    server, ctx = play(plan).server, plan.context(5, 2)
    view = plan.method.view(ctx, plan.method.client_init(ctx), plan.method.welcome(plan.server(2), server, 5))
    tuned = tuned_view(plan, ctx, view, unseen=True)
    assert not torch.equal(tuned["params"]["0.weight"], view["params"]["0.weight"])
    assert tuned[SHIFT]["m"].any()


@pytest.mark.parametrize("wrapped", ["fedlag(feddbe, warmup=0)", "flayer(feddbe)", "finetune(feddbe)"])
def test_wrappers_ride_on_it(wrapped):
    assert all(torch.isfinite(leaf).all() for view in views(tiny_plan(wrapped)).values() for leaf in view.values())


def test_a_model_that_changes_what_its_last_layer_gives_is_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    with pytest.raises(ModelError, match="feddbe feeds the output layer 0 by itself"):
        methods.build("feddbe").check(Task(module, (torch.randn(2, 4), torch.tensor([0, 1])), classes=3))


@pytest.mark.parametrize("bad", ["kappa=-1", "mu=0", "mu=1.1", "shift=2"])
def test_bad_options_are_named(bad):
    with pytest.raises(OptionError, match=f"feddbe: {bad.split('=')[0]}="):
        methods.build(f"feddbe({bad})")
