"""HeteroFL: clients hold the leading channels of one model, as many as their width allows."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect import Batch, Task, run
from idiolect.contract import Upload, methods
from idiolect.contract.parts.slices import cut, slice_shapes
from idiolect.core import codec, tree
from idiolect.core.errors import ModelError, OptionError
from idiolect.engines.client_evaluation import adapt_phases
from idiolect.engines.slots import aggregate
from idiolect.models import build
from idiolect.testing import check_method, check_wrappers_refused, play, play_params, tiny_plan
from idiolect.testing.scalar import (
    context_of,
    download_of,
    numeric_gradient,
    start_training,
    take_batch,
    to_double,
    train_client,
)


def image_task(module: nn.Module, side: int = 12) -> Task:
    return Task(module, (torch.rand(2, 1, side, side), torch.tensor([0, 1])), classes=3)


def conv_net(norm: nn.Module | None = None) -> nn.Module:
    middle = [] if norm is None else [norm]
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 25, 8), nn.Linear(8, 3)
    )


# -- slices ----------------------------------------------------------------------------------------------


def test_hidden_layers_keep_the_leading_ceil_r_c_rows_and_the_output_layer_all():
    """Widths 6 and 5 at r = 1/2: ceil(3) = 3 and ceil(2.5) = 3 rows; the 3 outputs stay."""
    shapes = slice_shapes(tiny_plan("fedavg").tasks[0], 0.5)
    assert [shapes[n] for n in ("0.weight", "0.bias", "2.weight", "4.weight", "4.bias")] == [
        *((3, 4), (3,), (3, 3), (3, 3), (3,))
    ]


def test_a_flattened_channel_stays_together():
    """6 channels of 5 x 5 at r = 1/3 are 2 channels: the dense layer takes 2 x 25 inputs."""
    assert slice_shapes(image_task(conv_net()), 1 / 3)["4.weight"] == (math.ceil(8 / 3), 50)


def test_a_client_gets_the_leading_block_and_nothing_else():
    plan = tiny_plan("heterofl")
    whole, half = download_of(plan)["params"], download_of(plan, 1)["params"]
    assert torch.equal(half["2.weight"], whole["2.weight"][:3, :3])
    assert codec.size({"params": half}) == 4 * (3 * 4 + 3 + 3 * 3 + 3 + 3 * 3 + 3)
    sent = train_client(plan, 1).upload
    assert codec.size(sent.slots) == codec.size({"params": half}) + 1  # and one bit for each of three classes


@pytest.mark.parametrize("model", ["resnet9", "resnet20", "cnn4", "mlp(hidden=[30, 20])"])
def test_networks_of_the_library_can_be_sliced(model):
    methods.build("heterofl(rates=[0.5, 0.3])").check(image_task(build(model, Data()), 16))


class Data:
    """What networks ask of data: 16 x 16 images of three classes."""

    input_shape, target_shape, outputs, tokens, vocabulary = (1, 16, 16), (), 3, False, 0


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (conv_net(nn.LayerNorm([6, 10, 10])), "1 is a LayerNorm"),
        (conv_net(nn.Conv2d(6, 6, 3, padding=1, groups=2)), "1 is a Conv2d with groups"),
        (conv_net(nn.GroupNorm(3, 6)), "1 fails"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(144, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 3)),
            "fail",
        ),
    ],
)
def test_a_model_that_cannot_be_sliced_is_refused_by_name_before_anything_runs(module, named):
    method = methods.build("heterofl(rates=[1, 0.3])")
    with pytest.raises(ModelError, match=named):
        method.check(image_task(module))
    methods.build("heterofl(rates=1)").check(image_task(module))


def test_channels_that_are_joined_cannot_be_sliced():
    """The halves of joined channels are not the leading ones of the join, though the shapes fit."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 3)

        def forward(self, x):
            a = self.a(x)
            return self.out(torch.stack([a, self.b(a)], 2).flatten(1))

    task = Task(Joined(), (torch.rand(2, 4), torch.tensor([0, 1])), classes=3)
    methods.build("heterofl").check(task)
    Joined.forward = lambda self, x: self.out(torch.cat([self.a(x), self.b(self.a(x))], 1)).roll(1, 1)
    with pytest.raises(ModelError, match="joins or mixes"):
        methods.build("heterofl").check(task)


# -- the average -----------------------------------------------------------------------------------------


def upload(plan, rate, values, held=(True, True, True), samples=1.0):
    shapes = slice_shapes(plan.tasks[0], rate)
    leaves = {n: torch.full(shapes[n], values) for n in plan.tasks[0].names}
    classes = {"heterofl.classes": {"held": torch.tensor(held)}} if held else {}
    return Upload({"heterofl.slice": leaves, **classes, "weight": {"samples": torch.tensor(samples)}})


def test_the_hand_worked_example():
    """A unit's weights: the wide client's (2, 2, 2, 2) and the narrow one's (4, 6) average to (3, 4, 2, 2)."""
    module = nn.Sequential(nn.Linear(1, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False))
    task = Task(module, (torch.zeros(2, 1), torch.tensor([0, 1])), classes=3)
    plan = replace(tiny_plan("heterofl"), tasks=(task,))
    wide, narrow = ({n: torch.zeros(s) for n, s in slice_shapes(task, r).items()} for r in (1.0, 0.5))
    wide["1.weight"][0], narrow["1.weight"][0] = torch.full((4,), 2.0), torch.tensor([4.0, 6.0])
    uploads = {i: Upload({"heterofl.slice": each}) for i, each in enumerate((wide, narrow))}
    before = {"params": {n: torch.zeros_like(leaf) for n, leaf in task.net.params.items()}, "buffers": {}}
    after = aggregate(plan.server(0), before, uploads)
    assert after["params"]["1.weight"][0].tolist() == [3.0, 4.0, 2.0, 2.0]


def test_what_nobody_holds_keeps_its_value():
    plan = tiny_plan("heterofl(rates=0.5)")
    server, start = play(plan).server["params"], plan.tasks[0].net.params
    assert torch.equal(server["0.weight"][3:], start["0.weight"][3:])
    assert not torch.equal(server["0.weight"][:3], start["0.weight"][:3])
    assert torch.equal(server["4.weight"][:, 3:], start["4.weight"][:, 3:])


def test_clients_count_alike_whatever_their_samples_unless_weighted():
    for expression, mean in (("heterofl", 2.0), ("heterofl(weighted=true)", 2.5)):
        plan = tiny_plan(expression)
        uploads = {0: upload(plan, 1.0, 1.0, samples=1.0), 2: upload(plan, 1.0, 3.0, samples=3.0)}
        after = aggregate(plan.server(0), plan.tasks[0].initial, uploads)
        assert after["params"]["0.bias"].tolist() == [mean] * 6


def test_equal_widths_without_scaler_and_mask_are_uniform_fedavg():
    a = play_params(tiny_plan("heterofl(rates=1, scaler=false, mask=false)"))
    b = play_params(tiny_plan("fedavg", weighting="uniform"))
    assert all(torch.equal(leaf, b[i][n]) for i, model in a.items() for n, leaf in model.items())


def test_a_class_is_averaged_over_those_who_have_it():
    plan = tiny_plan("heterofl")
    uploads = {0: upload(plan, 1.0, 1.0, (True, True, False)), 1: upload(plan, 0.5, 3.0, (False, True, False))}
    after = aggregate(plan.server(0), plan.tasks[0].initial, uploads)["params"]
    assert after["4.bias"][:2].tolist() == [1.0, 2.0]
    assert after["4.bias"][2] == plan.tasks[0].net.params["4.bias"][2]
    assert after["4.weight"][1].tolist() == [2.0, 2.0, 2.0, 1.0, 1.0]
    assert after["2.bias"].tolist() == [2.0, 2.0, 2.0, 1.0, 1.0]


# -- the loss --------------------------------------------------------------------------------------------


def test_the_scaler_divides_the_outputs_of_hidden_layers_by_the_width():
    """The gradient equals that of a network that divides by r = 1/2 after each hidden layer, not after the last."""

    class Halved(nn.Module):
        def forward(self, x):
            return x / 0.5

    plan = tiny_plan("heterofl(rates=0.5, mask=false)")
    ctx, start = plan.context(0, 0), download_of(plan)["params"]
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    batch = Batch(x, y, torch.ones(5))
    found = ctx.grad({"params": start}, "params", batch, plan.method.loss(ctx, {}, batch, 0.5)).tree
    net = nn.Sequential(
        *(nn.Linear(4, 3), Halved(), nn.ReLU(), nn.Linear(3, 3), Halved(), nn.ReLU(), nn.Linear(3, 3)),
    )
    net.load_state_dict({{"2": "3", "4": "6"}.get(n[0], "0") + n[1:]: leaf for n, leaf in start.items()})
    nn.functional.cross_entropy(net(x), y).backward()
    wanted = [leaf.grad for leaf in net.parameters()]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found.values(), wanted, strict=True))


@pytest.mark.parametrize("scaler", ["true", "false"])
def test_a_step_scales_by_the_clients_width_only_if_asked_for(scaler):
    plan = tiny_plan(f"heterofl(rates=0.5, mask=false, scaler={scaler})", lr=1.0)
    ctx, work = start_training(plan)
    batch = take_batch(plan)
    loss = plan.method.loss(ctx, {}, batch, 0.5 if scaler == "true" else 1.0)
    grad = ctx.grad(work, "params", batch, loss).tree
    after = ctx.phase.step(ctx, work, batch)["params"]
    assert all(torch.allclose(leaf, work["params"][n] - grad[n]) for n, leaf in after.items())


def test_the_gradient_of_the_masked_and_scaled_loss_by_finite_differences():
    plan = tiny_plan("heterofl(rates=0.5)")
    ctx = context_of(plan, 0, class_counts=torch.tensor([3.0, 0.0, 2.0], dtype=torch.float64))
    torch.manual_seed(0)
    start = to_double(download_of(plan))["params"]
    batch = Batch(torch.randn(6, 4).double(), torch.tensor([0, 2, 2, 0, 0, 2]), torch.ones(6).double())
    loss = plan.method.loss(ctx, {}, batch, 0.5)
    found = ctx.grad({"params": start}, "params", batch, loss).tree
    wanted = numeric_gradient(lambda params: loss({"params": params}).loss, start, nudge=1e-5)
    for name, leaf in wanted.items():
        assert torch.allclose(found[name], leaf, rtol=0, atol=1e-8), name


def test_logits_of_absent_classes_are_zero_and_their_rows_do_not_learn():
    """Client 2 has class 1 only. A zero logit still counts in the soft-max, as in the paper."""
    plan = tiny_plan("heterofl")
    ctx, start = plan.context(2, 0), download_of(plan, 2)
    out = plan.method.predict(ctx, plan.method.personal_model(ctx, start), torch.randn(4, 4))
    assert (out[:, [0, 2]] == 0).all()
    assert (out[:, 1] != 0).all()
    sent = train_client(plan, 2).upload.slots
    assert sent["heterofl.classes"]["held"].tolist() == [False, True, False]
    assert torch.equal(sent["heterofl.slice"]["4.weight"][[0, 2]], start["params"]["4.weight"][[0, 2]])
    assert not torch.equal(sent["heterofl.slice"]["4.weight"][1], start["params"]["4.weight"][1])


# -- prediction ------------------------------------------------------------------------------------------


def test_clients_predict_with_their_own_slice_or_with_the_whole_model():
    own, whole = play_params(tiny_plan("heterofl")), play_params(tiny_plan("heterofl(evaluate=global)"))
    assert own[1]["0.weight"].shape == (3, 4)
    assert whole[1]["0.weight"].shape == (6, 4)
    scale = {n: 1.0 if n.startswith("4.") else 2.0 for n in own[1]}
    assert all(torch.equal(leaf, scale[n] * cut(whole[1][n], tuple(leaf.shape))) for n, leaf in own[1].items())


def test_a_slice_predicts_with_the_scaler_that_it_was_trained_with():
    """At width 1/2 hidden weights and biases count twice, in training and in prediction; running statistics match."""
    plan = tiny_plan("heterofl(rates=0.5, mask=false)", norm=True, norm_stats="average")
    outcome, ctx = train_client(plan), plan.context(0, 0, newcomer=False)
    sent = outcome.upload.slots["heterofl.slice"]
    work = {slot: tree.pick(sent, ctx.initial[slot]) for slot in ("params", "buffers")}
    model = plan.method.personal_model(ctx, work)
    assert torch.equal(model["params"]["0.weight"], 2 * work["params"]["0.weight"])
    assert torch.equal(model["params"]["0.bias"], 2 * work["params"]["0.bias"])
    assert torch.allclose(model["buffers"]["1.running_mean"], 2 * work["buffers"]["1.running_mean"])
    assert torch.allclose(model["buffers"]["1.running_var"], 4 * work["buffers"]["1.running_var"])


def test_statistics_are_those_of_unscaled_outputs():
    """With `norm_stats=average` the running mean of a scaled layer is scaled back: r = 1/2 equals no scaler, after one
    step from the same parameters."""
    seen = []
    for expression in ("heterofl(rates=0.5)", "heterofl(rates=0.5, scaler=false)"):
        plan = tiny_plan(expression, norm=True, norm_stats="average", lr=0.0, epochs=1)
        seen.append(train_client(plan).upload.slots["heterofl.slice"])
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(seen[0][name], seen[1][name], atol=1e-5)
    assert not torch.equal(seen[0]["1.running_mean"], torch.zeros(3))


def test_statistics_are_computed_before_predicting_where_there_are_any():
    for norm, names in ((True, ["stats"]), (False, [])):
        plan = tiny_plan("heterofl", norm=norm)
        assert [phase.name for phase in adapt_phases(plan.context(0, 0))] == names


def test_private_normalisation_has_the_clients_width():
    played = play(tiny_plan("heterofl(evaluate=global)", norm=True, norm_stats="local", norm_affine="local"))
    assert [played.clients[i]["private"]["1.weight"].shape[0] for i in (0, 1)] == [6, 3]


def test_models_can_be_taken_out_and_fine_tuned_and_unseen_clients_are_served():
    result = run("finetune(heterofl)", clients=4, rounds=2, seed=0, unseen=0.25, engine="loop")
    assert result.model(1)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    check_method("finetune(heterofl)", ["unseen_clients", "momentum"])


# -- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", ["0", "[1, 1.5]", "[]", "[half]"])
def test_widths_lie_between_zero_and_one(rates):
    with pytest.raises(OptionError, match="rates"):
        methods.build(f"heterofl(rates={rates})")


def test_clients_take_the_widths_in_turn():
    method = methods.build("heterofl(rates=[1, 0.5, 0.25])")
    assert [method.variant(i) for i in range(4)] == [1.0, 0.5, 0.25, 1.0]


def test_the_default_differs_from_fedavg():
    a, b = play(tiny_plan("heterofl")).server["params"], play(tiny_plan("fedavg")).server["params"]
    assert not torch.allclose(a["0.weight"], b["0.weight"])


def test_wrappers_that_need_one_model_are_refused():
    check_wrappers_refused("heterofl", "different widths")


@pytest.mark.parametrize("expression", ["heterofl(evaluate=global)", "heterofl(rates=[1, 0.5, 0.25], weighted=true)"])
def test_it_keeps_the_contract(expression):
    check_method(expression, ["messages", "pure", "through_bytes", "batchnorm"])
