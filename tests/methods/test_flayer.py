"""FLAYER: a head mixed by accuracy, a learning rate per layer, and an upload of what moved most."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from idiolect.contract import Batch, Grad, Phase, Scored, Task, Upload, mask_of, methods
from idiolect.core import codec, tree
from idiolect.core.errors import ComposeError, ModelError
from idiolect.engines import Loop
from idiolect.engines.client_evaluation import adapt_model, adapt_phases
from idiolect.engines.client_round import train
from idiolect.engines.phases import batches
from idiolect.engines.slots import aggregate, first_client, first_server, gather
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.flayer import FLAYER, layer_numbers
from idiolect.runs.round_loop import RoundLoop
from idiolect.runs.store import Store
from idiolect.task.optimizers import SGD, Adam
from idiolect.testing import check_bad_options, check_method, play, play_params, tiny_plan

LN2 = math.log(2)
OFF = "head_mixing=false, layer_rates=false, masking=false"


def first_download(plan):
    return plan.method.download(plan.server(0), first_server(plan.server(0)), plan.data.seen)


def model_of(ctx, client, download):
    """A client's personal model."""
    return ctx.method.personal_model(ctx, gather(ctx, client, download, training=False))


def first_round(method, index=0, **changes):
    """One client's first round: the plan, its download and the outcome."""
    plan = tiny_plan(method, **changes)
    download = first_download(plan).of(index)
    return plan, download, train(plan, index, 0, None, download)


def two_layers():
    x, y = torch.zeros(2, 2), torch.tensor([0, 1])
    return Task(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (x, y), classes=2)


def rated_step(method, grads, task=None, optimizer=None, rates=None, step=0, lr=1.0):
    """The rates after, and the moves of, one optimiser step from zero with given gradients."""
    plan = tiny_plan(method)
    ctx = plan.context(0, 0)
    training = replace(plan.training, optimizer=optimizer or SGD())
    ctx = replace(ctx, task=task or ctx.task, step=step, training=training)
    zero = torch.zeros(())
    params = tree.zeros_like(grads)
    client = first_client(ctx)
    if rates is not None:
        client = {**client, "flayer.rates": rates}
    state = {f"params:{key}": each for key, each in training.optimizer.init(params).items()}
    work = {"params": params, "buffers": {}, "log": {"loss": zero, "samples": zero}, **state}
    work |= {**plan.method.rate_state(client), "flayer.tally": {"right": zero, "samples": zero}}
    scored = Scored(zero, torch.zeros(2, 3), torch.zeros(2, 1), {})
    batch = Batch(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), torch.ones(2))
    after = ctx.optimize(work, "params", Grad({"params": grads}, scored), batch, lr)
    return after.get("params:flayer.rates", {}), tree.scale(after["params"], -1.0)


def unit_gradients(task, norms):
    """Gradients whose norm over each unit is given: all of it in the first coordinate of the weight."""
    grads = tree.zeros_like(task.net.params)
    for unit, norm in norms.items():
        grads[f"{unit}.weight"].view(-1)[0] = norm
    return grads


# -- neutral cases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("neutral", [OFF, "layers=0, low=1, layer_rates=false"])
def test_without_its_parts_it_is_fedavg_to_the_bit(neutral):
    own, plain = play(tiny_plan(f"flayer(fedavg, {neutral})")), play(tiny_plan("fedavg"))
    assert all(torch.equal(leaf, plain.server["params"][n]) for n, leaf in own.server["params"].items())


def test_the_three_parts_each_change_something():
    plain = play_params(tiny_plan("fedavg"))[0]["4.weight"]
    for part in ("head_mixing", "layer_rates", "masking"):
        alone = play_params(tiny_plan(f"flayer({OFF})".replace(f"{part}=false", f"{part}=true")))[0]["4.weight"]
        assert not torch.equal(alone, plain), part


def test_a_method_that_keeps_everything_private_is_left_as_it_is():
    own = play_params(tiny_plan("flayer(fedper(layers=3), private_rates=false)"))
    plain = play_params(tiny_plan("fedper(layers=3)"))
    assert all(torch.equal(leaf, plain[i][n]) for i, model in own.items() for n, leaf in model.items())


# -- head (eq. 2) --------------------------------------------------------------------------------------


def head_after_mixing(accuracy, own, glob):
    plan = tiny_plan("flayer")
    ctx = plan.context(0, 1, newcomer=False)
    received = tree.map(lambda leaf: torch.full_like(leaf, glob), plan.tasks[0].net.params)
    client = first_client(ctx)
    client["flayer.own"] = tree.map(lambda leaf: torch.full_like(leaf, own), client["flayer.own"])
    client["flayer.accuracy"] = {"share": torch.tensor(accuracy)}
    download = {"params": received, "buffers": {}}
    return plan.method.prepare(ctx, gather(ctx, client, download)), model_of(ctx, client, download)


def test_the_hand_worked_head():
    """A = 0.75, own head 4, global head 8: 0.75 * 4 + 0.25 * 8 = 5; the other layers are the global ones."""
    for model in head_after_mixing(0.75, own=4.0, glob=8.0):
        assert torch.equal(model["params"]["4.weight"], torch.full((3, 5), 5.0))
        assert torch.equal(model["params"]["2.weight"], torch.full((5, 6), 8.0))


def test_full_accuracy_starts_like_fedper_and_none_like_fedavg():
    for accuracy, head in ((1.0, 4.0), (0.0, 8.0)):
        work, _ = head_after_mixing(accuracy, own=4.0, glob=8.0)
        assert torch.equal(work["params"]["4.bias"], torch.full((3,), head))


def test_before_it_first_trains_a_client_uses_the_global_model():
    plan = tiny_plan("flayer")
    received = tree.map(lambda leaf: leaf + 5.0, plan.tasks[0].net.params)
    ctx = plan.context(0, 3)
    model = model_of(ctx, first_client(ctx), {"params": received, "buffers": {}})
    assert all(torch.equal(model["params"][n], leaf) for n, leaf in received.items())


def test_an_absent_client_sees_the_newest_global_model_in_its_own_mixture():
    store = Store(None)
    plan = tiny_plan("flayer", participation=0.4, seed=3)
    RoundLoop(plan, Loop(plan), store).run()
    newest = store.server()["params"]
    for index, client in store.clients(plan.data.seen).items():
        if client is not None:
            share = client["flayer.accuracy"]["share"]
            ctx = plan.context(index, 2, newcomer=False)
            model = model_of(ctx, client, {"params": newest, "buffers": {}})["params"]
            expected = share * client["flayer.own"]["4.weight"] + (1 - share) * newest["4.weight"]
            assert torch.allclose(model["4.weight"], expected)
            assert torch.equal(model["0.weight"], newest["0.weight"])


def test_more_head_layers_count_layers_only_and_take_normalisation_along():
    plan = tiny_plan("flayer(layers=3)", norm=True)
    own = first_client(plan.context(0, 0))["flayer.own"]
    assert set(own) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"}
    plan = tiny_plan("flayer(layers=2)", norm=True)
    assert set(first_client(plan.context(0, 0))["flayer.own"]) == {
        "3.weight",
        "3.bias",
        "5.weight",
        "5.bias",
    }


# -- accuracy ------------------------------------------------------------------------------------------


def accuracy_of(plan, params, index, split):
    x, y = plan.split(index, split)
    outputs = plan.tasks[0].forward(params, {}, x).outputs
    return float((outputs.argmax(1) == y).float().mean())


def test_measured_on_train_it_is_the_trained_models_accuracy():
    plan, download, outcome = first_round("flayer(acc_source=train)", epochs=6)
    before, expected = (
        accuracy_of(plan, params, 0, "train") for params in (download["params"], outcome.upload.slots["params"])
    )
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(expected)
    assert 0 < before < expected < 1


def test_it_is_measured_as_the_model_predicts_with_running_statistics():
    plan, _, outcome = first_round("flayer(acc_source=train)", norm=True, epochs=1)
    task, (x, y) = plan.tasks[0], plan.split(0, "train")
    params = outcome.upload.slots["params"]
    right = {
        train: float((task.forward(params, outcome.state["private"], x, train).outputs.argmax(1) == y).float().mean())
        for train in (False, True)
    }
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(right[False])
    assert right[False] != right[True]


def test_held_out_samples_are_measured_on_and_not_trained_on():
    plan, _, outcome = first_round("flayer(acc_source=holdout, holdout_share=0.4)")
    sizes = [len(plan.split(0, split)[0]) for split in ("train", "holdout")]
    assert sizes == [8, 6]
    assert outcome.upload.weight.item() == 8
    expected = accuracy_of(plan, outcome.upload.slots["params"], 0, "holdout")
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(expected)
    assert methods.build("flayer").needs.holdout == 0.0


def test_without_a_held_out_sample_the_accuracy_stays_what_it_was():
    plan = tiny_plan("flayer(acc_source=holdout)")
    download = first_download(plan).of(4)
    client = first_client(plan.context(4, 0))
    client["flayer.accuracy"] = {"share": torch.tensor(0.3)}
    assert len(plan.split(4, "holdout")[0]) == 0
    after = train(plan, 4, 1, client, download).state
    assert after["flayer.accuracy"]["share"].item() == pytest.approx(0.3)
    assert train(plan, 4, 0, None, download).state["flayer.accuracy"]["share"].item() == 0.0


def test_a_single_held_out_sample_is_measured_on_under_batch_normalisation_too():
    plan = tiny_plan("flayer(acc_source=holdout, holdout_share=0.1)", norm=True)
    assert len(plan.split(0, "holdout")[0]) == 1
    client = {**first_client(plan.context(0, 0)), "flayer.accuracy": {"share": torch.tensor(0.3)}}
    after = train(plan, 0, 1, client, first_download(plan).of(0)).state
    assert after["flayer.accuracy"]["share"].item() in (0.0, 1.0)


def test_the_running_accuracy_is_that_of_the_last_epoch():
    """With learning rate 0 the model stays the initial one, so every epoch counts the same right answers once."""
    plan, download, outcome = first_round("flayer(acc_source=running)", lr=0.0, epochs=3)
    expected = accuracy_of(plan, download["params"], 0, "train")
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(expected)
    plan, download, outcome = first_round(
        "flayer(layer_rates=false, acc_source=running)", lr=0.1, epochs=4, batch_size=14
    )
    before_last = train(replace(plan, training=replace(plan.training, epochs=3)), 0, 0, None, download).upload.slots[
        "params"
    ]
    expected = accuracy_of(plan, before_last, 0, "train")
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(expected)


def test_padding_counts_neither_as_right_nor_as_wrong():
    plan = tiny_plan("flayer")
    ctx = plan.context(0, 0)
    outputs, y = torch.eye(3)[torch.tensor([0, 1, 1, 2])], torch.tensor([0, 1, 2, 2])
    work = {"flayer.tally": {"right": torch.zeros(()), "samples": torch.zeros(())}}
    batch = Batch(torch.zeros(4, 4), y, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    tally = plan.method.count_right(ctx, work, outputs, batch)["flayer.tally"]
    assert (tally["right"].item(), tally["samples"].item()) == (2.0, 3.0)


@pytest.mark.parametrize("source", ["running", "train", "holdout"])
def test_accuracy_never_comes_from_test_data(source):
    check_method(f"flayer(acc_source={source}, head_epochs=1)", ["no_test_data"])


# -- rates (eq. 4) -------------------------------------------------------------------------------------


def test_a_gradient_of_norm_one_at_half_depth_gives_1_34657():
    task = two_layers()
    rates, moves = rated_step("flayer", unit_gradients(task, {"0": 1.0, "1": 1.0}), task)
    assert rates["0"].item() == pytest.approx(1.34657, abs=5e-6)
    assert rates["1"].item() == pytest.approx(1 + LN2)
    assert moves["0.weight"][0, 0].item() == pytest.approx(1.34657, abs=5e-6)
    assert moves["1.weight"][0, 0].item() == pytest.approx(1 + LN2)


def test_the_norm_is_over_weight_and_bias_together():
    task = two_layers()
    grads = tree.zeros_like(task.net.params)
    grads["1.weight"][0, 0], grads["1.bias"][1] = 3.0, 4.0
    rates, _ = rated_step("flayer", grads, task)
    assert rates["1"].item() == pytest.approx(1 + math.log(1 + 1 / 5))


def test_a_layer_without_gradient_has_a_large_but_finite_rate():
    task = two_layers()
    rates, moves = rated_step("flayer(preset=paper)", unit_gradients(task, {}), task)
    assert rates["1"].item() == pytest.approx(1 + math.log(1 + 1e8), rel=1e-5)
    assert rates["0"].item() == pytest.approx(1 + math.log(1 + 1e8) / 2, rel=1e-5)
    assert all(torch.isfinite(leaf).all() for leaf in moves.values())
    rates, _ = rated_step("flayer(lr_floor=0.5, lr_max_mult=1.8)", unit_gradients(task, {}), task)
    assert rates["0"].item() == pytest.approx(1 + math.log(3) / 2)
    assert rates["1"].item() == pytest.approx(1.8)


def test_by_default_no_layer_moves_at_more_than_five_times_the_runs_rate():
    task = two_layers()
    rates, moves = rated_step("flayer", unit_gradients(task, {"0": 1e-6, "1": 1.0}), task)
    assert rates["0"].item() == 5.0 < 1 + math.log(1 + 1e6) / 2
    assert moves["0.weight"][0, 0].item() == pytest.approx(5e-6)
    assert rates["1"].item() == pytest.approx(1 + LN2)


def test_the_authors_rates():
    """Depth (i - 1) / (L - 1): the first layer keeps the run's rate; the last is fixed at a fifth of it."""
    plan = tiny_plan("flayer")
    grads = unit_gradients(plan.tasks[0], {"0": 1.0, "2": 1.0, "4": 1.0})
    rates, _ = rated_step("flayer(preset=ref)", grads)
    assert [rates[unit].item() for unit in ("0", "2", "4")] == pytest.approx([1.0, 1 + LN2 / 2, 0.2])
    rates, _ = rated_step("flayer(preset=ref_cnn)", grads)  # their CNN: 20 times, but for the first and the last layer
    assert [rates[unit].item() for unit in ("0", "2", "4")] == pytest.approx([1.0, 20 + 10 * LN2, 0.2])


def test_rates_last_for_an_epoch_unless_they_are_set_per_batch():
    held = {"0": torch.tensor(2.0), "2": torch.tensor(3.0), "4": torch.tensor(4.0)}
    grads = unit_gradients(tiny_plan("flayer").tasks[0], {"0": 1.0, "2": 1.0, "4": 1.0})
    first = [1 + LN2 / 3, 1 + 2 * LN2 / 3, 1 + LN2]
    for method, step, expected in (
        ("flayer", 0, first),
        ("flayer", 1, [2.0, 3.0, 4.0]),
        ("flayer(per_batch=true)", 1, first),
    ):
        rates, moves = rated_step(method, grads, rates=held, step=step)
        assert [rates[unit].item() for unit in held] == pytest.approx(expected)
        assert [moves[f"{unit}.weight"].view(-1)[0].item() for unit in held] == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9, weight_decay=0.1, clip=0.5), Adam()])
def test_rates_multiply_the_move_whatever_the_optimiser(optimizer):
    task = tiny_plan("flayer").tasks[0]
    grads = tree.map(lambda leaf: leaf + 0.1, task.net.params)
    rates, moves = rated_step("flayer", grads, optimizer=optimizer)
    _, plain = rated_step("flayer(layer_rates=false)", grads, optimizer=optimizer)
    for name, leaf in moves.items():
        assert torch.allclose(leaf, rates[name.partition(".")[0]] * plain[name], atol=1e-7)


def test_normalisation_has_the_depth_of_the_layer_before_it_and_its_own_norm():
    task = tiny_plan("flayer", norm=True).tasks[0]
    assert layer_numbers(task) == {"0": 1, "1": 1, "3": 2, "5": 3}
    grads = unit_gradients(task, {"0": 1.0, "3": 1.0, "5": 1.0})
    grads["1.weight"][0] = 2.0
    rates, _ = rated_step("flayer", grads, task)
    assert rates["0"].item() == pytest.approx(1 + LN2 / 3)
    assert rates["1"].item() == pytest.approx(1 + math.log(1.5) / 3)
    before = Task(
        nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), (torch.zeros(2, 2), torch.tensor([0, 1])), classes=2
    )
    assert layer_numbers(before) == {"0": 1, "1": 1}


# -- masks (eq. 5 to 9) ---------------------------------------------------------------------------------


def masks_after(method, start, trained, task):
    plan = tiny_plan(method)
    ctx = replace(plan.context(0, 0), task=task)
    return plan.method.find_masks(ctx, {"params": trained, "flayer.start": start}, trained)


def test_of_four_layers_a_quarter_half_three_quarters_and_all_is_sent():
    width = [nn.Linear(7, 7) for _ in range(4)]
    task = Task(nn.Sequential(*width), (torch.zeros(2, 7), torch.tensor([0, 1])), classes=7)
    start = task.net.params
    noise = torch.Generator().manual_seed(0)
    trained = tree.map(lambda leaf: leaf + torch.randn(leaf.shape, generator=noise), start)
    masks = masks_after("flayer", start, trained, task)
    sent = [sum(int(masks[f"{i}.{n}"].sum()) for n in ("weight", "bias")) for i in range(4)]
    assert sent == [14, 28, 42, 56]
    for i in range(4):
        change = tree.flatten(tree.sub(trained, start), [f"{i}.weight", f"{i}.bias"]).abs()
        mask = tree.flatten(masks, [f"{i}.weight", f"{i}.bias"])
        assert i == 3 or change[mask].min() >= change[~mask].max()
    masks = masks_after("flayer(low=0.4, high=0.6)", start, trained, task)
    sent = [sum(int(masks[f"{i}.{n}"].sum()) for n in ("weight", "bias")) for i in range(4)]
    assert sent == [22, 28, 34, 56]


def test_the_hand_worked_mask():
    """Layer 1 of 2 sends half of its coordinates: of moves by 0.1 and -0.3 only the second."""
    body, head = nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)
    task = Task(nn.Sequential(body, head), (torch.zeros(2, 1), torch.tensor([0, 1])), classes=2)
    start = task.net.params
    trained = {"0.weight": start["0.weight"] + torch.tensor([[0.1], [-0.3]]), "1.weight": start["1.weight"] + 1.0}
    masks = masks_after("flayer", start, trained, task)
    assert masks["0.weight"].tolist() == [[False], [True]]
    assert masks["1.weight"].all()


def test_what_moved_is_what_moved_from_the_mixed_start():
    """Without a step nothing moved, so all is sent; mixing alone took the last two layers from 8 to 5."""
    plan = tiny_plan("flayer(layers=2)", lr=0.0)
    client = first_client(plan.context(0, 0))
    client["flayer.own"] = tree.map(lambda leaf: torch.full_like(leaf, 4.0), client["flayer.own"])
    client["flayer.accuracy"] = {"share": torch.tensor(0.75)}
    received = tree.map(lambda leaf: torch.full_like(leaf, 8.0), plan.tasks[0].net.params)
    upload = train(plan, 0, 1, client, {"params": received, "buffers": {}}).upload
    assert upload.slots["params"]["2.weight"].unique().tolist() == [5.0]
    assert all(mask.all() for mask in upload.masks["params"].values())


def test_of_equal_moves_the_first_coordinates_are_sent():
    task = two_layers()
    start = tree.zeros_like(task.net.params)
    trained = tree.map(lambda leaf: leaf + 0.5, start)
    masks = masks_after("flayer", start, trained, task)
    assert masks["0.weight"].tolist() == [[True, True], [True, False]]
    assert masks["0.bias"].tolist() == [False, False]


def test_what_did_not_move_is_not_sent_in_place_of_nothing():
    """Layer 1 of 2 may send 3 of 6 coordinates, but two moved; the last layer is sent whole."""
    task = two_layers()
    start = tree.zeros_like(task.net.params)
    trained = tree.map(torch.clone, start)
    trained["0.weight"][1, 0], trained["0.bias"][1], trained["1.bias"][0] = 0.1, -0.1, 1.0
    masks = masks_after("flayer", start, trained, task)
    assert masks["0.weight"].tolist() == [[False, False], [True, False]]
    assert masks["0.bias"].tolist() == [False, True]
    assert masks["1.weight"].all()
    assert masks["1.bias"].all()


def test_the_authors_masks_rank_moves_inside_of_every_kernel():
    """Tensors q = 0 ... 5 of Q = 6 keep the shares 0.1, 1/6, 1/3, 1/2 and the last two 1. Of 4 elements of a kernel
    4 - round(0.9 * 4 = 3.6) = 0 are kept, but at least one; of 3 biases round(3/6) = 0, but at least one; dense weights
    and kernels of one element are sent whole."""
    layers = [nn.Conv2d(1, 3, 2), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(2 * 3 * 3, 2)]
    task = Task(nn.Sequential(*layers), (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])), classes=2)
    noise = torch.Generator().manual_seed(0)
    start = tree.zeros_like(task.net.params)
    trained = tree.map(lambda leaf: torch.randn(leaf.shape, generator=noise), start)
    plan = tiny_plan("flayer(preset=ref)")
    ctx = replace(plan.context(0, 0), task=task)
    masks = plan.method.find_masks(ctx, {"params": trained, "flayer.start": start}, trained)
    assert masks["0.weight"].flatten(2).sum(-1).unique().tolist() == [1]
    kernels = trained["0.weight"].flatten(2)
    assert torch.equal(masks["0.weight"].flatten(2).int().argmax(-1), kernels.abs().argmax(-1))
    assert masks["0.bias"].tolist() == (trained["0.bias"].abs() == trained["0.bias"].abs().max()).tolist()
    assert masks["1.weight"].all()
    assert masks["1.bias"].sum() == 1
    assert masks["3.weight"].all()
    assert masks["3.bias"].all()


def test_a_layer_that_did_not_move_is_sent_whole():
    _, download, outcome = first_round("flayer(fedrep(head_epochs=1, body_epochs=0))")
    assert all(torch.equal(leaf, download["params"][n]) for n, leaf in outcome.upload.slots["params"].items())
    assert all(mask.all() for mask in outcome.upload.masks["params"].values())
    assert set(outcome.upload.masks["params"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_normalisation_is_masked_by_itself_with_the_share_of_the_layer_before_it():
    _, _, outcome = first_round("flayer", norm=True)
    masks = outcome.upload.masks["params"]
    sent = {u: sum(int(masks[f"{u}.{n}"].sum()) for n in ("weight", "bias")) for u in ("0", "1", "3", "5")}
    assert sent == {"0": 10, "1": 4, "3": 23, "5": 18}  # of 30, 12, 35 and 18; thirds of the layers, not quarters


def test_masking_never_alters_the_clients_own_model():
    _, _, masked = first_round("flayer")
    _, _, whole = first_round("flayer(masking=false)")
    assert masked.upload.masks
    assert not whole.upload.masks
    assert all(torch.equal(masked.state["flayer.own"][n], leaf) for n, leaf in whole.state["flayer.own"].items())
    assert all(torch.equal(masked.upload.slots["params"][n], leaf) for n, leaf in whole.upload.slots["params"].items())
    _, _, local = first_round("flayer", after_local=True)
    _, _, plain = first_round("flayer(masking=false)", after_local=True)
    assert local.scores == plain.scores


def test_the_upload_shrinks_by_what_is_not_sent():
    """Of 30, 35 and 18 parameters 10, 23 and 18 are sent, four bytes each, and which ones, at one bit per place."""
    _, _, outcome = first_round("flayer")
    upload = outcome.upload
    sent = {n: int(mask.sum()) for n, mask in upload.masks["params"].items()}
    assert sum(sent.values()) == 10 + 23 + 18
    sizes = {n: leaf.numel() for n, leaf in upload.slots["params"].items()}
    places = {n: 0 if sent[n] == size else min((size + 7) // 8, 4 * sent[n]) for n, size in sizes.items()}
    assert codec.size(upload.slots, upload.masks) == 4 * (10 + 23 + 18) + sum(places.values()) + 4
    assert codec.size(upload.slots, upload.masks) < codec.size(upload.slots) == 4 * 83 + 4


# -- server --------------------------------------------------------------------------------------------


def aggregated(method, before, values, masks, samples=(1.0, 3.0)):
    plan = tiny_plan(method)
    uploads = {
        i: Upload(
            {"params": {"0.bias": torch.tensor(value)}, "buffers": {}, "weight": {"samples": torch.tensor(samples[i])}},
            {"params": {"0.bias": torch.tensor(mask)}},
        )
        for i, (value, mask) in enumerate(zip(values, masks, strict=True))
    }
    server = {"params": {"0.bias": torch.tensor(before)}, "buffers": {}}
    return aggregate(plan.server(0), server, uploads)["params"]["0.bias"].tolist(), uploads


def test_each_coordinate_is_averaged_over_its_uploaders():
    """Disjoint masks: each coordinate is its only uploader's value, one that nobody sent keeps the old one."""
    after, _ = aggregated(
        "flayer", [9.0, 9.0, 9.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[True, False, False], [False, True, False]]
    )
    assert after == [1.0, 5.0, 9.0]


def test_a_value_of_zero_is_a_legal_upload():
    after, _ = aggregated("flayer", [9.0, 9.0], [[0.0, 1.0], [0.0, 1.0]], [[True, False], [True, False]])
    assert after == [0.0, 9.0]


@pytest.mark.parametrize(("denominator", "expected"), [("uploaders", 4.0), ("all", 4.5), ("zeros", 3.0)])
def test_what_was_not_sent_counts_as_the_option_says(denominator, expected):
    """Of weights 1 and 3 only the second sends 4; the old value is 6: 4, or (6 + 3 * 4) / 4, or 3 * 4 / 4."""
    method = f"flayer(denominator={denominator})"
    after, uploads = aggregated(method, [6.0], [[0.5], [4.0]], [[False], [True]])
    assert after == [expected]
    trees = [each.slots["params"] for each in uploads.values()]
    masks = [each.masks["params"] for each in uploads.values()]
    mean = tree.mean(trees, [1.0, 3.0], masks, {"0.bias": torch.tensor([6.0])}, denominator)
    assert mean["0.bias"].tolist() == [expected]


# -- around other methods --------------------------------------------------------------------------------


def test_a_private_head_is_neither_mixed_nor_masked_but_rated():
    plan, download, outcome = first_round("flayer(fedper)")
    assert outcome.state["flayer.own"] == {}
    assert "4.weight" not in outcome.upload.masks["params"]
    assert outcome.state["flayer.sent"]["4"].item() == 0.0
    model = model_of(plan.context(0, 1, newcomer=False), outcome.state, download)
    assert torch.equal(model["params"]["4.weight"], outcome.state["private"]["4.weight"])
    _, _, plain = first_round("flayer(fedavg, masking=false)")
    assert torch.equal(outcome.state["flayer.rates"]["4"], plain.state["flayer.rates"]["4"])
    assert torch.equal(outcome.state["private"]["4.weight"], plain.state["flayer.own"]["4.weight"])


def test_a_private_head_keeps_the_runs_rate_if_asked():
    _, _, outcome = first_round("flayer(fedper, private_rates=false)")
    assert outcome.state["flayer.rates"]["4"].item() == 1.0 < outcome.state["flayer.rates"]["2"].item()


def test_dittos_personal_model_is_trained_with_the_layers_rates():
    """With lam = 0 the personal model takes the shared one's steps, which are the global model's under FLAYER."""
    _, _, outcome = first_round("flayer(ditto(lam=0))")
    _, _, shared = first_round("flayer(masking=false)")
    _, _, plain = first_round("ditto(lam=0)")
    trained = shared.upload.slots["params"]
    assert all(torch.allclose(leaf, trained[n]) for n, leaf in outcome.state["ditto.own"].items())
    assert not torch.allclose(outcome.state["ditto.own"]["2.weight"], plain.state["ditto.own"]["2.weight"])


@pytest.mark.parametrize(("inner", "slot", "anchor"), [("ditto", "ditto.own", "ditto"), ("fedamp", "own", "fedamp")])
def test_beside_a_model_of_the_clients_own_the_shared_ones_head_is_mixed(inner, slot, anchor):
    """A = 0.75, the last shared head 4, the received one 8: the own model is pulled to a head of 5, and predicts as it
    is."""
    plan = tiny_plan(f"flayer({inner})")
    ctx = plan.context(0, 1, newcomer=False)
    params = ctx.initial["params"]
    received, own = (tree.map(lambda leaf, v=v: torch.full_like(leaf, v), params) for v in (8.0, 3.0))
    head = {n: torch.full_like(params[n], 4.0) for n in ("4.weight", "4.bias")}
    client = {**first_client(ctx), slot: own, "flayer.own": head, "flayer.accuracy": {"share": torch.tensor(0.75)}}
    download = {"params": received, "buffers": {}}
    work = plan.method.prepare(ctx, gather(ctx, client, download))
    pulled = work[f"{anchor}.anchor"]
    assert (pulled["4.weight"].unique().tolist(), pulled["2.weight"].unique().tolist()) == ([5.0], [8.0])
    assert all(leaf.unique().tolist() == [3.0] for leaf in model_of(ctx, client, download)["params"].values())
    if inner == "ditto":
        assert work["params"]["4.weight"].unique().tolist() == [5.0]


@pytest.mark.parametrize(("inner", "slot"), [("ditto", "ditto.own"), ("fedamp", "own")])
def test_the_head_of_the_model_that_predicts_may_be_mixed_instead(inner, slot):
    """A = 0.75, own head 4, received head 8: training and prediction start from 5; the rest stays the own model's."""
    plan = tiny_plan(f"flayer({inner}, mixed=own)")
    ctx = plan.context(0, 1, newcomer=False)
    received, own = (tree.map(lambda leaf, v=v: torch.full_like(leaf, v), ctx.initial["params"]) for v in (8.0, 4.0))
    client = {**first_client(ctx), slot: own, "flayer.accuracy": {"share": torch.tensor(0.75)}}
    download = {"params": received, "buffers": {}}
    model = model_of(ctx, client, download)["params"]
    work = plan.method.prepare(ctx, gather(ctx, client, download))
    start = work["params"] if inner == "fedamp" else work[slot]
    for values in (model, start):
        assert values["4.weight"].unique().tolist() == [5.0]
        assert values["2.weight"].unique().tolist() == [4.0]
    if inner == "ditto":
        assert work["params"]["4.weight"].unique().tolist() == [8.0]


def test_the_accuracy_is_that_of_the_model_that_predicts():
    plan, download, outcome = first_round("flayer(ditto(lam=0, epochs=30))")
    personal = accuracy_of(plan, outcome.state["ditto.own"], 0, "train")
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(personal)
    assert personal > accuracy_of(plan, outcome.upload.slots["params"], 0, "train")
    # Without a step of the personal model, answers that are counted while training are those of its start.
    plan, download, outcome = first_round("flayer(ditto, acc_source=running, layer_rates=false)", lr=0.0)
    expected = accuracy_of(plan, download["params"], 0, "train")
    assert outcome.state["flayer.accuracy"]["share"].item() == pytest.approx(expected)


def test_rates_are_measured_on_the_part_that_a_phase_trains():
    """FedRep with the head frozen: the body's rates come from the first body gradient, the head keeps none."""
    plan, download, outcome = first_round("flayer(fedrep(head_epochs=0, body_epochs=1), lr_max_mult=100)")
    ctx = plan.context(0, 0)
    body, _ = plan.method.phases(ctx)[-2:]
    assert body.part == {"0.weight", "0.bias", "2.weight", "2.bias"}
    ctx = replace(ctx, phase=body)
    work = plan.method.prepare(ctx, gather(ctx, first_client(ctx), download))
    _, batch = next(batches(plan, ctx, 1))
    grad = ctx.grad(work, "params", batch).tree
    for number, unit in ((1, "0"), (2, "2")):
        norm = float(tree.norm(tree.pick(grad, (f"{unit}.weight", f"{unit}.bias"))))
        assert outcome.state["flayer.rates"][unit].item() == pytest.approx(1 + number / 3 * math.log(1 + 1 / norm))
    assert outcome.state["flayer.rates"]["4"].item() == 1.0


@pytest.mark.parametrize("method", ["fedlag(flayer)", "flayer(fedprox)", "finetune(flayer)"])
def test_it_composes(method):
    check_method(method, ["messages", "pure", "through_bytes"])


@dataclass(frozen=True)
class Halving(FedAvg):
    """Moves at half the learning rate, and sends only the first row of each weight."""

    @property
    def optimizer_step(self):
        return self.halve

    def halve(self, ctx, work, slot, grad, batch, lr):
        return ctx.log(ctx.apply(work, slot, grad, lr / 2), grad, batch)

    def finish(self, ctx, work):
        first = {n: torch.arange(len(leaf)) == 0 for n, leaf in work["params"].items() if n.endswith("weight")}
        masks = {n: mask[:, None].expand_as(work["params"][n]) for n, mask in first.items()}
        return {**work, mask_of("params"): masks}


def test_the_inner_methods_own_masks_hold_too():
    _, _, outcome = first_round(FLAYER(Halving()))
    masks = outcome.upload.masks["params"]
    assert masks["4.weight"].sum() == 5
    assert masks["4.weight"][0].all()
    assert 0 < masks["2.weight"].sum() <= 6
    assert not masks["2.weight"][1:].any()
    assert masks["4.bias"].all()


def test_the_inner_methods_own_learning_rate_holds_too():
    task = two_layers()
    _, moves = rated_step(FLAYER(Halving()), unit_gradients(task, {"0": 1.0, "1": 1.0}), task)
    assert moves["1.weight"][0, 0].item() == pytest.approx((1 + LN2) / 2)


@pytest.mark.parametrize("method", ["flayer(local)", "flayer(flayer)", "flayer(fedlag(flayer))"])
def test_what_it_cannot_wrap_is_refused_with_the_reason(method):
    with pytest.raises(ComposeError, match=r"flayer cannot wrap (local|flayer): "):
        methods.build(method)


def test_running_statistics_stay_on_the_clients_by_default():
    assert methods.build("flayer").needs.norm_stats == methods.build("fedlag(flayer)").needs.norm_stats == "local"
    played = play(tiny_plan("flayer", norm=True))
    assert "1.running_mean" in played.clients[0]["private"]
    assert not torch.equal(
        played.clients[0]["private"]["1.running_mean"], played.clients[1]["private"]["1.running_mean"]
    )


# -- unseen clients, and the head's own epochs ------------------------------------------------------------


def test_an_unseen_client_trains_the_global_model_with_the_same_rates():
    plan = tiny_plan("flayer(masking=false)", unseen=1)
    download = first_download(plan).shared
    ctx = plan.context(5, 0)
    tuned = adapt_model(plan, ctx, model_of(ctx, first_client(ctx), download), unseen=True)
    trained = train(plan, 5, 0, None, download).upload.slots["params"]
    assert all(torch.equal(tuned["params"][n], leaf) for n, leaf in trained.items())
    plain = tiny_plan("flayer(masking=false, layer_rates=false)", unseen=1)
    assert not torch.equal(train(plain, 5, 0, None, download).upload.slots["params"]["2.weight"], trained["2.weight"])


def test_fine_tuning_a_personal_model_keeps_the_runs_learning_rate():
    plan = tiny_plan("finetune(flayer)")
    ctx = plan.context(0, 0)
    model = model_of(ctx, first_client(ctx), first_download(plan).shared)
    plain = tiny_plan("finetune(fedavg)")
    expected = adapt_model(plain, plain.context(0, 0), {slot: model[slot] for slot in ("params", "buffers")}, False)
    tuned = adapt_model(plan, ctx, model, unseen=False)
    assert all(torch.equal(tuned["params"][n], leaf) for n, leaf in expected["params"].items())


def test_extra_head_epochs_train_the_head_alone_before_training_and_before_predicting():
    plan = tiny_plan("flayer(head_epochs=2)")
    ctx = plan.context(0, 0)
    first, *rest = plan.method.phases(ctx)
    assert (first.part, first.epochs) == ({"4.weight", "4.bias"}, 2)
    assert rest[0] == Phase(plan.method.inner.step)
    assert [phase.name for phase in rest[1:]] == ["flayer.score"]
    for unmixed in ("head_mixing=false", OFF):  # the authors' ablation has the head's epoch, too
        alone = tiny_plan(f"flayer(head_epochs=2, {unmixed})")
        assert alone.method.phases(ctx)[0].part == alone.method.adapt(ctx)[0].part == {"4.weight", "4.bias"}
    assert plan.method.adapt(ctx) == (replace(first, step=plan.method.adapt_head),)
    model = model_of(ctx, first_client(ctx), first_download(plan).shared)
    tuned = adapt_model(plan, ctx, model, unseen=False)
    moved = {n for n, leaf in model["params"].items() if not torch.equal(leaf, tuned["params"][n])}
    assert moved == {"4.weight", "4.bias"}
    assert tuned["params:flayer.rates"]["2"].item() == 1.0 < tuned["params:flayer.rates"]["4"].item()
    private = tiny_plan("flayer(fedper, head_epochs=2)")
    assert private.method.phases(private.context(0, 0))[:-1] == private.method.inner.phases(private.context(0, 0))
    assert not private.method.adapt(private.context(0, 0))
    outcome = train(replace(plan, training=replace(plan.training, epochs=0)), 0, 0, None, first_download(plan).shared)
    sent = outcome.upload.slots["params"]
    assert {n for n, leaf in model["params"].items() if not torch.equal(leaf, sent[n])} == {"4.weight", "4.bias"}


def test_statistics_are_recomputed_before_the_heads_epochs():
    ctx = tiny_plan("flayer(head_epochs=1)", norm=True, norm_stats="recompute").context(0, 0)
    assert [phase.name for phase in adapt_phases(ctx)] == ["stats", "flayer.head"]


# -- records, options and errors --------------------------------------------------------------------------


def test_accuracy_rates_and_shares_are_recorded():
    rows = play(tiny_plan("flayer")).rows
    found = {row[5]: row[6] for row in rows if row[:2] == (2, 0) and row[3] == "state"}
    assert set(found) == {"own_accuracy", *(f"{what}/{unit}" for what in ("rate", "sent") for unit in "024")}
    assert [found[f"sent/{unit}"] for unit in "024"] == pytest.approx([10 / 30, 23 / 35, 1.0])
    assert 1 < found["rate/0"] < found["rate/4"]


def test_presets():
    paper, ref = methods.build("flayer(preset=paper)"), methods.build("flayer(preset=ref, high=0.8)")
    assert (paper.acc_source, paper.high, paper.head_epochs) == ("train", 1.0, 0)
    assert (ref.acc_source, ref.high, ref.head_epochs, ref.last_rate) == ("train", 0.8, 1, 0.2)
    assert paper.lr_max_mult is ref.lr_max_mult is None
    assert methods.build("flayer(preset=resnet)") == methods.build("flayer(layers=2)")


def test_bad_options_are_refused_before_anything_runs():
    check_bad_options(
        "flayer",
        "layers=-1",
        "low=0",
        "low=1.5",
        "high=0",
        "high=1.1",
        "low=0.5, high=0.4",
        "acc_source=test",
        "holdout_share=0",
        "holdout_share=0.9",
        "head_epochs=-1",
        "lr_floor=0",
        "lr_max_mult=0.5",
        "last_rate=0",
        "denominator=none",
        "masking=2",
    )


def test_a_head_larger_than_the_model_is_refused():
    with pytest.raises(ModelError, match="3 layers"):
        methods.build("flayer(layers=4)").check(tiny_plan("fedavg").tasks[0])


def test_a_task_without_accuracy_has_no_head_to_mix_but_rates_and_masks():
    x, y = torch.zeros(2, 4), torch.zeros(2, 1)
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), (x, y))
    with pytest.raises(ModelError, match="head_mixing=false"):
        methods.build("flayer").check(task)
    methods.build("flayer(head_mixing=false)").check(task)
    methods.build("flayer(layers=0)").check(task)
