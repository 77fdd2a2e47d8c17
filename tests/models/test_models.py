"""The papers' networks have the papers' parameter counts, fit the data, and start reproducibly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.core.errors import ModelError, OptionError, UnknownNameError
from idiolect.data import Federation, Pool, load
from idiolect.models import Mlp, Network, build, default_model, models


def parameters(name: str, shape: tuple[int, ...], classes: int) -> int:
    return sum(each.numel() for each in models.build(name).build(shape, classes).parameters())


def pool(*shape: int, classes: int = 10) -> Pool:
    return Pool(torch.zeros(4, *shape), torch.arange(4), None, classes, "zeros")


COUNTS = [
    ("lenet5w", (3, 32, 32), 10, 256_830),
    ("lenet5w(preset=wide)", (3, 32, 32), 100, 4_146_300),
    ("lenet5w(channels=[6, 16])", (3, 32, 32), 10, 62_006),
    ("lenet5w(channels=[6, 16], norm=batch)", (3, 32, 32), 10, 62_050),
    ("cnn4", (1, 28, 28), 10, 582_026),
    ("cnn4", (3, 32, 32), 10, 878_538),
    ("cnn4", (3, 32, 32), 100, 924_708),
    ("cnn4", (3, 64, 64), 200, 5_694_600),
    ("leaf-cnn", (1, 28, 28), 62, 2_278_334),
    ("leaf-cnn", (1, 28, 28), 10, 2_171_786),
    ("leaf-cnn", (3, 32, 32), 100, 3_537_444),
    ("cnn6", (3, 32, 32), 10, 1_341_226),
    ("cnn6", (3, 32, 32), 100, 1_387_396),
    ("digitmodel", (3, 28, 28), 10, 14_219_210),
    ("femnist-cnn", (1, 28, 28), 62, 608_702),
    ("resnet9", (1, 28, 28), 10, 1_695_210),
    ("resnet20", (3, 32, 32), 10, 4_425_162),
    ("resnet20(blocks=[2, 3, 4])", (3, 32, 32), 100, 5_543_460),
    ("resnet18", (3, 32, 32), 10, 11_181_642),
    ("resnet18", (3, 32, 32), 100, 11_227_812),
    ("resnet18", (3, 64, 64), 200, 11_279_112),
    ("resnet18(norm=group)", (3, 224, 224), 10, 11_181_642),
    ("resnet18(norm=group, stem=small)", (3, 32, 32), 10, 11_173_962),
    ("vgg16(dense=[])", (3, 32, 32), 10, 14_728_266),
    ("vgg16", (3, 32, 32), 100, 15_299_748),
    ("densenet121", (3, 96, 96), 2, 6_955_906),
    ("unet", (3, 256, 256), 1, 7_763_041),
    ("unet", (3, 256, 256), 2, 7_763_074),
    ("lstm(vocabulary=80)", (80,), 80, 819_920),
    ("fasttext(vocabulary=98635)", (200,), 4, 3_157_508),
    ("mlp", (1, 28, 28), 10, 159_010),
    ("linear", (2,), 2, 6),
    ("simulation", (100,), 2, 20_400),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_counts(name, shape, classes, count):
    with torch.device("meta"):  # shapes without memory
        assert parameters(name, shape, classes) == count


@pytest.mark.parametrize(
    ("name", "count"), [("vgg16(preset=imagenet)", 138_357_544), ("densenet121", 7_978_856), ("resnet18", 11_689_512)]
)
def test_published_networks_have_their_published_size(name, count):
    with torch.device("meta"):
        assert parameters(name, (3, 224, 224), 1000) == count


def test_every_network_has_an_asserted_size():
    assert {name.partition("(")[0] for name, *_ in COUNTS} == set(models)


def sample(name: str) -> Pool:
    """Four samples of a kind that the network takes."""
    if models.get(name).takes_tokens:
        return Pool(torch.arange(4 * 12).reshape(4, 12), torch.arange(4), None, 7, "tokens")
    side = 32 if name in ("vgg16", "densenet121") else 16
    return pool(3, side, side + 16, classes=7)


@pytest.mark.parametrize("name", list(models))
def test_every_network_learns_from_a_batch_and_describes_itself(name):
    data = sample(name)
    dense = data.input_shape[1:] if name == "unet" else ()
    y = torch.zeros(4, *dense, dtype=torch.long)
    task = Task(build(name, data), (data.x, y), classes=7)
    params = {key: leaf.requires_grad_() for key, leaf in task.net.params.items()}
    scored = task.loss(params, task.net.buffers, Batch(data.x, y, torch.ones(4)))
    assert scored.outputs.shape == (4, 7, *dense)
    gradients = torch.autograd.grad(scored.loss, list(params.values()))
    assert all(bool(torch.isfinite(each).all()) for each in gradients)
    assert task.head_unit.name == list(task.units)[-1].name
    assert models.get(name).title


def test_layers_run_in_the_order_of_the_paper():
    names = [name for name, _ in build("lenet5w", pool(3, 32, 32)).named_children()]
    convolutions = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2"]
    assert names == [*convolutions, "flatten", "fc1", "relu_fc1", "fc2", "relu_fc2", "fc3"]


def test_the_mlp_takes_any_number_of_hidden_layers():
    assert parameters("mlp(hidden=[30, 20])", (4,), 3) == 4 * 30 + 30 + 30 * 20 + 20 + 20 * 3 + 3
    assert parameters("mlp(hidden=[])", (4,), 3) == parameters("linear", (4,), 3)
    with pytest.raises(OptionError, match="hidden must be a list of whole numbers"):
        Mlp(hidden=(1.5,))
    with pytest.raises(OptionError):
        Mlp(hidden=(0,))


@pytest.mark.parametrize("name", ["cnn4", "lenet5w"])
def test_convolutions_refuse_what_is_too_small_or_no_image(name):
    with pytest.raises(ModelError, match=f"{name} needs images of at least 16 x 16 pixels.*these have 8 x 8; use mlp"):
        build(name, load("digits", clients=5))
    with pytest.raises(ModelError, match=r"needs images \[channels, height, width\], but a sample has the shape \[5\]"):
        build(name, pool(5))


def test_tokens_need_a_network_that_embeds_them():
    federation = Federation.from_clients([(torch.ones(3, 5).long(), [0, 1, 0])])
    with pytest.raises(ModelError, match="mlp takes numbers, but the inputs are tokens; use one of fasttext, lstm"):
        build("mlp", federation)
    with pytest.raises(ModelError, match="lstm takes tokens, but the inputs are numbers"):
        build("lstm", pool(5))
    with pytest.raises(ModelError, match="give vocabulary"):
        models.build("lstm").build((5,), 2)
    with pytest.raises(ModelError, match=r"needs sequences of tokens, but a sample has the shape \[2, 5\]"):
        models.build("fasttext(vocabulary=9)").build((2, 5), 2)


def test_text_networks_embed_as_many_tokens_as_the_data_have():
    tokens = torch.tensor([[0, 1, 4], [2, 0, 0]])
    assert build("fasttext", Pool(tokens, torch.arange(2), None, 2, "t")).embed.num_embeddings == 5
    assert build("fasttext", Pool(tokens, torch.arange(2), None, 2, "t", words=50)).embed.num_embeddings == 50
    federation = Pool(tokens, torch.arange(2), None, 2, "t", words=50).federation("iid", clients=2)
    assert build("lstm(width=4)", federation).embed.num_embeddings == 50
    assert build("lstm(width=4, vocabulary=60)", federation).embed.num_embeddings == 60


def test_padding_does_not_train_in_fasttext():
    network = build("fasttext", Pool(torch.tensor([[1, 0, 0]]), torch.zeros(1), None, 2, "t"))
    network(torch.tensor([[1, 0, 0]])).sum().backward()
    assert network.embed.weight.grad[0].abs().sum() == 0
    assert network.embed.weight.grad[1].abs().sum() > 0


def test_the_lstm_predicts_at_every_position_where_the_targets_are_there():
    tokens = torch.randint(0, 9, (4, 6))
    whole = Pool(tokens, tokens, None, 9, "t")
    assert build("lstm(width=4)", whole)(tokens).shape == (4, 9, 6)
    assert build("lstm(width=4)", Pool(tokens, tokens[:, 0], None, 9, "t"))(tokens).shape == (4, 9)


def test_as_many_positions_as_classes_are_not_mixed_up():
    tokens = torch.randint(0, 9, (5, 9), generator=torch.Generator().manual_seed(0))
    y = tokens.roll(-1, 1)
    task = Task(build("lstm(width=4)", Pool(tokens, y, None, 9, "t")), (tokens, y), classes=9)
    outputs = task.forward(task.net.params, {}, tokens).outputs
    for at in range(9):  # the first characters alone give the first outputs
        early = task.forward(task.net.params, {}, tokens[:, : at + 1]).outputs
        assert torch.allclose(early[:, :, at], outputs[:, :, at], atol=1e-6)
    expected = torch.stack([nn.functional.cross_entropy(outputs[:, :, at], y[:, at]) for at in range(9)]).mean()
    assert torch.allclose(task.losses(outputs, y).mean(), expected)


def test_group_norm_takes_the_place_of_batch_norm():
    kinds = {type(each) for each in models.build("resnet18(norm=group)").build((3, 32, 32), 10).modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    assert build("unet(norm=group)", pool(3, 16, 16))(torch.zeros(1, 3, 16, 16)).shape == (1, 10, 16, 16)
    with pytest.raises(ModelError, match="32 groups, so width=8 must be a multiple of 32"):
        build("unet(norm=group, width=8)", pool(3, 16, 16))


def test_stems_keep_or_shrink_the_image():
    for stem, side in (("small", 32), ("large", 8)):
        network = models.build(f"resnet18(stem={stem})").build((3, 32, 32), 10)
        before = network[: list(dict(network.named_children())).index("block1_1")]
        assert before(torch.zeros(2, 3, 32, 32)).shape == (2, 64, side, side)


def test_the_unet_needs_sides_that_can_be_halved_four_times():
    with pytest.raises(ModelError, match="multiples of 16, but these have 24 x 32"):
        build("unet", pool(3, 24, 32))


def test_the_number_of_blocks_must_fit_the_groups():
    with pytest.raises(OptionError, match="give 3 whole numbers"):
        models.build("resnet20(blocks=[3, 3])")
    with pytest.raises(OptionError, match="blocks must be a list of whole numbers"):
        models.build("resnet9(blocks=[1, 2, 2, 1.5])")


def test_dropout_works_in_training_only():
    network = build("femnist-cnn", pool(1, 28, 28))
    x = torch.rand(2, 1, 28, 28)
    assert not torch.equal(network.train()(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_regression_gets_an_output_per_target():
    federation = Federation.from_clients([(torch.rand(6, 3), torch.rand(6, 2))])
    assert build("linear", federation)(torch.rand(4, 3)).shape == (4, 2)


def test_the_seed_determines_initial_values_and_leaves_pytorch_alone():
    before = torch.random.get_rng_state()
    first, again, other = (build("mlp", pool(1, 8, 8), seed).fc1.weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_default_is_a_network_that_fits():
    assert default_model(load("digits", clients=5)) == "mlp"
    assert default_model(pool(1, 28, 28)) == "cnn4"
    assert default_model(pool(100)) == "mlp"
    tokens = torch.randint(0, 9, (4, 6)).clamp(max=8)
    assert default_model(Pool(tokens, torch.arange(4), None, 9, "next", words=9)) == "lstm"
    assert default_model(Pool(tokens, torch.arange(4), None, 4, "topics")) == "fasttext"
    assert default_model(Pool(torch.zeros(2, 3, 32, 32), torch.zeros(2, 32, 32).long(), None, 2, "masks")) == "unet"


def test_unknown_networks_are_met_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean cnn6 or cnn4"):
        build("cnn5", pool(3, 32, 32))
    with pytest.raises(NotImplementedError):
        Network().build((1,), 2)
