"""FedAMP and HeurFedAMP: every client is pulled, with a real gradient, towards its own mixture of all models."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract import Upload, methods
from idiolect.contract.parts.collection import gram
from idiolect.core import tree
from idiolect.core.errors import OptionError
from idiolect.engines.client_round import train
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.testing import check_bad_options, check_method, play, play_params, require_equal, tiny_plan

BOTH = ["fedamp", "heurfedamp"]


def products(*models: list[float]) -> torch.Tensor:
    return gram([{"w": torch.tensor(each)} for each in models], ["w"])


# -- weights --------------------------------------------------------------------------------------


def test_the_hand_worked_weights_of_fedamp():
    """Models 0, 1, 3: squared distances 1, 4, 9, mean 14/3; sigma = 3/14 of it is 1, so the first client gives
    model 1 exp(-1) / 2, model 3 exp(-9) / 2 and keeps the rest: u = 1 * 0.18394 + 3 * 0.00006 = 0.18412."""
    xi = methods.build(f"fedamp(sigma={3 / 14})").attention(products([0.0], [1.0], [3.0]))
    near, far = math.exp(-1) / 2, math.exp(-9) / 2
    assert xi[0].tolist() == pytest.approx([1 - near - far, near, far])
    assert float(xi[0] @ torch.tensor([0.0, 1.0, 3.0]).double()) == pytest.approx(0.18412, abs=1e-5)


def test_the_papers_own_numbers_can_be_given():
    """With relative=false, alpha = 0.2, sigma = 2 and squared distance 1: 0.2 exp(-1/2) / 2 = 0.06065."""
    xi = methods.build("fedamp(relative=false, alpha=0.2, sigma=2)").attention(products([0.0], [1.0]))
    assert xi[0].tolist() == pytest.approx([1 - 0.06065, 0.06065], abs=1e-5)


def test_the_hand_worked_weights_of_heurfedamp():
    """Models (1, 0), (0, 1), (2, 0), self weight 1/2, sigma = ln 3: exponentials 3^0 and 3^1, weights 1/2, 1/8, 3/8."""
    chosen = methods.build(f"heurfedamp(sigma={math.log(3)}, self_weight=0.5)")
    xi = chosen.attention(products([1.0, 0.0], [0.0, 1.0], [2.0, 0.0]))
    assert xi[0].tolist() == pytest.approx([1 / 2, 1 / 8, 3 / 8])


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dimension", [2, 20_000])
def test_weights_are_shares_and_neither_size_nor_scale_switches_them_off(name, scale, dimension):
    draw = torch.Generator().manual_seed(0)
    models = [{"w": scale * torch.randn(dimension, generator=draw)} for _ in range(8)]
    xi = methods.build(name).attention(gram(models, ["w"]))
    assert torch.allclose(xi.sum(1), torch.ones(8).double())
    assert (xi >= 0).all()
    others = 1 - xi.diag()
    assert (others > 0.1).all()
    assert (others < 0.9).all()


def test_the_nearer_of_two_models_has_the_larger_weight():
    for name in BOTH:
        xi = methods.build(name).attention(products([1.0, 0.0], [1.0, 0.1], [0.0, 1.0]))
        assert xi[0, 1] > xi[0, 2]


def test_equal_models_and_a_single_model_are_no_division_by_zero():
    for name in BOTH:
        assert torch.allclose(methods.build(name).attention(products([1.0], [1.0])).sum(1), torch.ones(2).double())
        assert methods.build(name).attention(products([1.0])).tolist() == [[1.0]]


def test_weights_beyond_one_are_an_error_that_says_what_to_do():
    with pytest.raises(OptionError, match="may not exceed 1; use a smaller alpha"):
        methods.build("fedamp(relative=false, alpha=1.5, sigma=1)").attention(products([0.0], [0.01]))


def test_bad_options_of_fedamp():
    check_bad_options("fedamp", "alpha=1.5", "alpha=0", "sigma=0", "lam=-1")


def test_bad_options_of_heurfedamp():
    check_bad_options("heurfedamp", "self_weight=1.1", "sigma=-1", "start=nowhere")


# -- the pull -------------------------------------------------------------------------------------


def test_the_hand_worked_step():
    """At w = 1 with u = 0.5, loss gradient 2, lam = 1 and alpha = 0.5 the step is along 2 + 2 (1 - 0.5) = 3.

    The model is w x with squared error: gradient 2 (w x - y) x = 2 at x = 1, y = 0.
    """
    plan = tiny_plan("fedamp(alpha=0.5)", lr=0.1)
    x, y = torch.ones(2, 1), torch.zeros(2, 1)
    ctx = replace(plan.context(0, 0), task=Task(nn.Linear(1, 1, bias=False), (x, y)))
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    work = {"params": {"weight": torch.ones(1, 1)}, "fedamp.anchor": {"weight": torch.full((1, 1), 0.5)}}
    after = plan.method.step(ctx, {**work, "buffers": {}, "log": log}, Batch(x, y, torch.ones(2)))
    assert after["params"]["weight"].item() == pytest.approx(1 - 0.1 * 3)


@pytest.mark.parametrize("method", ["fedamp(lam=0.6, alpha=0.5)", "heurfedamp(lam=1.2)"])
def test_the_step_follows_the_finite_difference_of_loss_plus_squared_term(method):
    """lambda / (2 alpha) |w - u|^2 = 0.6 |w - u|^2: squared, and with a gradient."""
    plan = tiny_plan(method, lr=1.0)
    task, ctx = plan.tasks[0], plan.context(0, 0)
    x, y = plan.split(0, "train")
    batch = Batch(x[:4].double(), y[:4], torch.ones(4).double())
    start = tree.map(lambda leaf: leaf.double(), task.net.params)
    anchor = tree.map(lambda leaf: leaf + 0.3, start)
    task.net.module.double()
    log = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    work = {"params": start, "buffers": {}, "fedamp.anchor": anchor, "log": log}
    moved = plan.method.step(ctx, work, batch)["params"]

    def objective(params):
        away = tree.sub(params, anchor)
        return task.loss(params, {}, batch).loss + 0.6 * tree.dot(away, away)

    for name in start:
        nudge = torch.zeros_like(start[name]).reshape(-1)
        nudge[0] = 1e-6
        up, down = ({**start, name: start[name] + s * nudge.reshape(start[name].shape)} for s in (1, -1))
        slope = (objective(up) - objective(down)) / 2e-6
        assert torch.isclose((start[name] - moved[name]).reshape(-1)[0], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", BOTH)
def test_the_default_acts_and_is_not_local_training(name):
    own, alone = play_params(tiny_plan(name)), play_params(tiny_plan("local"))
    assert any(not torch.allclose(leaf, alone[0][n], atol=1e-3) for n, leaf in own[0].items())


@pytest.mark.parametrize("name", BOTH)
def test_a_stronger_pull_brings_the_clients_together(name):
    def spread(lam: float) -> float:
        own = play_params(tiny_plan(f"{name}(lam={lam})", lr=0.02, rounds=6))
        return sum(float(tree.norm(tree.sub(own[i], own[j]))) for i in range(3) for j in range(i))

    assert spread(20.0) < spread(1.0) < spread(0.0)


# -- who has which model ----------------------------------------------------------------------------


def uploads_of(plan, values):
    model, weight = plan.tasks[0].net.params, {"samples": torch.tensor(4.0)}
    filled = {i: {name: torch.full_like(leaf, value) for name, leaf in model.items()} for i, value in values.items()}
    return {i: Upload({"params": each, "buffers": {}, "weight": weight}) for i, each in filled.items()}


def test_the_download_is_the_mixture_and_absent_clients_keep_their_latest_model_in_it():
    plan = tiny_plan("heurfedamp(sigma=0, self_weight=0.5)")
    ctx, method = plan.server(0), plan.method
    server = aggregate(ctx, first_server(ctx), uploads_of(plan, {0: 1.0, 1: 3.0}))
    server = aggregate(ctx, server, uploads_of(plan, {1: 5.0}))
    sent = method.download(ctx, server, (0, 1, 4))
    value = lambda i: float(sent.of(i)["params"]["0.bias"][0])  # noqa: E731
    assert (value(0), value(1)) == (0.5 * 1 + 0.5 * 5, 0.5 * 5 + 0.5 * 1)
    assert value(4) == 5.0
    assert server["latest@0"]["0.bias"][0] == 1.0


def test_a_masked_upload_changes_only_what_was_sent():
    plan = tiny_plan("fedamp")
    ctx = plan.server(0)
    server = aggregate(ctx, first_server(ctx), uploads_of(plan, {0: 1.0}))
    upload = uploads_of(plan, {0: 2.0})[0]
    mask = tree.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.bool), upload.slots["params"])
    mask["0.bias"] = ~mask["0.bias"]
    server = aggregate(ctx, server, {0: Upload(upload.slots, {"params": mask})})
    assert server["latest@0"]["0.bias"][0] == 2.0
    assert server["latest@0"]["2.bias"][0] == 1.0


def test_training_starts_from_the_own_model_or_from_the_mixture():
    starts = {}
    for start in ("own", "mixture"):
        plan = tiny_plan(f"fedamp(start={start})")
        ctx = plan.context(0, 1, newcomer=False)
        client = first_client(ctx)
        mixture = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
        work = plan.method.prepare(ctx, gather(ctx, client, {"params": mixture, "buffers": {}}))
        assert torch.equal(work["fedamp.anchor"]["0.bias"], mixture["0.bias"])
        starts[start] = float((work["params"]["0.bias"] - client["own"]["0.bias"])[0])
    assert starts == pytest.approx({"own": 0.0, "mixture": 5.0})


def test_it_predicts_with_the_own_model_and_before_it_trained_with_the_mean():
    plan = tiny_plan("fedamp")
    received = {"params": tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params), "buffers": {}}
    for newcomer, expected in ((True, 5.0), (False, 0.0)):
        ctx = plan.context(0, 0, newcomer=newcomer)
        client = first_client(ctx)
        model = plan.method.personal_model(ctx, gather(ctx, client, received, training=False))
        assert float((model["params"]["0.bias"] - client["own"]["0.bias"])[0]) == pytest.approx(expected)


def test_an_unseen_client_gets_the_mean_of_the_newest_models():
    plan = tiny_plan("fedamp", unseen=1)
    ctx, method = plan.server(0), plan.method
    server = aggregate(ctx, first_server(ctx), uploads_of(plan, {0: 1.0, 1: 3.0}))
    assert float(method.download(ctx, server, (5,)).of(5)["params"]["0.bias"][0]) == 2.0


# -- composition and contract -----------------------------------------------------------------------


def test_the_server_records_how_much_weight_clients_keep():
    played = play(tiny_plan("heurfedamp(self_weight=0.25)"))
    assert {row[6] for row in played.rows if row[5] == "self_weight"} == {0.25}


def test_flayer_masks_what_fedamp_sends():
    plan = tiny_plan("flayer(fedamp)")
    download = plan.method.download(plan.server(0), first_server(plan.server(0)), (0,)).of(0)
    upload = train(plan, 0, 0, None, download).upload
    assert not upload.masks["params"]["0.weight"].all()
    assert torch.isfinite(play(plan).server["latest@0"]["0.weight"]).all()


def test_without_masks_and_rates_a_wrapper_changes_nothing_that_is_trained():
    quiet = "flayer(fedamp, head_mixing=false, layer_rates=false, masking=false)"
    require_equal(play(tiny_plan(quiet)), play(tiny_plan("fedamp")), "flayer that does nothing")


@pytest.mark.parametrize("method", ["fedamp(start=mixture)", "fedlag(fedamp, warmup=0)"])
def test_it_runs_with_normalisation(method):
    check_method(method, ["messages", "batchnorm"])


def test_fine_tuning_serves_participants_absent_and_unseen_clients():
    check_method("finetune(heurfedamp)", ["round_trip", "messages", "pure", "stacking", "unseen_clients", "batchnorm"])
