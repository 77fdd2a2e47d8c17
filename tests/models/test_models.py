"""The papers' networks have the papers' parameter counts, fit the data, and start reproducibly."""

from __future__ import annotations

import pytest
import torch

from idiolect.data import Federation, Pool, load
from idiolect.errors import ModelError, OptionError, UnknownNameError
from idiolect.models import Mlp, Network, build, default_model, models


def parameters(name: str, shape: tuple[int, ...], classes: int) -> int:
    return sum(each.numel() for each in models.build(name).build(shape, classes).parameters())


def pool(*shape: int, classes: int = 10) -> Pool:
    return Pool(torch.zeros(4, *shape), torch.arange(4), None, classes, "zeros")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet5w", (3, 32, 32), 10, 256_830),
        ("cnn4", (1, 28, 28), 10, 582_026),
        ("cnn4", (3, 32, 32), 10, 878_538),
        ("cnn4", (3, 32, 32), 100, 924_708),
        ("cnn4", (3, 64, 64), 200, 5_694_600),
        ("mlp", (1, 28, 28), 10, 159_010),
        ("linear", (2,), 2, 6),
        ("simulation", (100,), 2, 20_400),
    ],
)
def test_parameter_counts(name, shape, classes, count):
    assert parameters(name, shape, classes) == count


@pytest.mark.parametrize("name", list(models))
def test_every_network_maps_a_batch_to_logits_and_describes_itself(name):
    network = build(name, pool(3, 16, 20, classes=7))
    assert network(torch.zeros(2, 3, 16, 20)).shape == (2, 7)
    assert models.get(name).title


def test_layers_run_in_the_order_of_the_paper():
    names = [name for name, _ in build("lenet5w", pool(3, 32, 32)).named_children()]
    convolutions = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2"]
    assert names == [*convolutions, "flatten", "fc1", "relu_fc1", "fc2", "relu_fc2", "fc3"]


def test_the_mlp_takes_any_number_of_hidden_layers():
    assert parameters("mlp(hidden=[30, 20])", (4,), 3) == 4 * 30 + 30 + 30 * 20 + 20 + 20 * 3 + 3
    assert parameters("mlp(hidden=[])", (4,), 3) == parameters("linear", (4,), 3)
    with pytest.raises(OptionError, match="the widths must be whole numbers"):
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
    with pytest.raises(ModelError, match="mlp takes numbers, but the inputs are tokens"):
        build("mlp", federation)


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


def test_unknown_networks_are_met_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean cnn4"):
        build("cnn5", pool(3, 32, 32))
    with pytest.raises(NotImplementedError):
        Network().build((1,), 2)
