"""Frozen parameters are constants of the network; what is tied counts once and stays tied."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.parts.heads import check_head
from idiolect.core.errors import ModelError
from idiolect.task.network import Net

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
WHOLE = Batch(X, Y, torch.ones(4))


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def with_frozen(*layers: int) -> nn.Sequential:
    module = classifier()
    for layer in layers:
        module[layer].requires_grad_(False)
    return module


class Autoencoder(nn.Module):
    """Decodes with the encoder's weight, and counts calls in a buffer that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6), nn.Linear(6, 6)
        self.decode.weight = self.encode.weight
        self.encode.register_buffer("shift", torch.ones(6))
        self.decode.register_buffer("shift", self.encode.shift)

    def forward(self, x):
        return self.decode(self.encode(x).relu() + self.encode.shift) - self.decode.shift


def test_frozen_parameters_are_no_parameters_of_the_net():
    net = Net(with_frozen(0))
    assert list(net.params) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert set(net.constants) == {"0.weight", "0.bias"}


def test_the_net_computes_with_frozen_values():
    module = with_frozen(0)
    task = Task(module, (X, Y), classes=3)
    assert torch.allclose(task.forward(task.net.params, task.net.buffers, X).outputs, module.eval()(X))


def test_the_users_module_stays_as_it_was():
    module = with_frozen(0)
    Task(module, (X, Y), classes=3)
    assert [leaf.requires_grad for leaf in module.parameters()] == [False] * 2 + [True] * 4


def test_statistics_of_a_frozen_normalisation_layer_stay_put_and_are_constants():
    task = Task(with_frozen(1), (X, Y), classes=3)
    before = {name: leaf.clone() for name, leaf in task.net.constants.items()}
    scored = task.loss(task.net.params, task.net.buffers, WHOLE, train=True)
    assert scored.buffers == {}
    assert set(before) == {f"1.{key}" for key in ("weight", "bias", "running_mean", "running_var")} | {
        "1.num_batches_tracked"
    }
    assert all(torch.equal(leaf, before[name]) for name, leaf in task.net.constants.items())
    assert not task.has_batchnorm
    assert task.stat_momentum == {}


def test_statistics_of_a_trained_normalisation_layer_still_move():
    task = Task(with_frozen(0), (X, Y), classes=3)
    scored = task.loss(task.net.params, task.net.buffers, WHOLE, train=True)
    assert not torch.equal(scored.buffers["1.running_mean"], task.net.buffers["1.running_mean"])


def test_frozen_layers_are_no_units_and_the_head_is_the_last_trained_layer():
    assert [unit.name for unit in Task(with_frozen(0), (X, Y), classes=3).units] == ["1", "3"]
    task = Task(with_frozen(3), (X, Y), classes=3)
    assert task.head() == {"0.weight", "0.bias"} | {f"1.{key}" for key in ("weight", "bias")} | {
        f"1.{key}" for key in ("running_mean", "running_var", "num_batches_tracked")
    }
    with pytest.raises(ModelError, match="ends with its output layer and trains it"):
        check_head("gpfl", task)


def test_a_frozen_layer_cannot_be_named_as_head():
    with pytest.raises(ModelError, match=r"no trained parameters in '3' to serve as head; its layers: 0$"):
        Task(with_frozen(3), (X, Y), classes=3, head="3")


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    with pytest.raises(ModelError, match=r"no parameters to train: all 6 are frozen; call requires_grad_\(True\)"):
        Task(with_frozen(0, 1, 3), (X, Y), classes=3)


def test_parameters_are_counted():
    task = Task(with_frozen(0), (X, Y), classes=3)
    assert (task.parameters_trained, task.parameters_total) == (10 + 18, 35 + 10 + 18)
    tied = Task(Autoencoder(), (X, X))
    assert (tied.parameters_trained, tied.parameters_total) == (36 + 12, 36 + 12)


def test_what_is_tied_counts_once_and_stays_tied():
    task = Task(Autoencoder(), (X, X))
    net = task.net
    assert list(net.params) == ["encode.weight", "encode.bias", "decode.bias"]
    assert list(net.buffers) == ["encode.shift"]
    assert task.names_of(task.units) == {*net.params, *net.buffers}
    module = Autoencoder()
    module.load_state_dict({**net.params, **net.buffers}, strict=False)
    changed = {name: 2 * leaf for name, leaf in net.params.items()}, {"encode.shift": torch.full((6,), 3.0)}
    with torch.no_grad():
        for leaf in module.parameters():
            leaf.mul_(2)
        module.encode.shift.fill_(3.0)
    assert torch.allclose(net.apply(*changed, X).outputs, module(X))


def test_constants_move_with_the_device_and_ties_survive():
    module = Autoencoder()
    module.encode.bias.requires_grad_(False)
    net = Net(module)
    net.to("meta")
    assert {leaf.device.type for leaves in (net.params, net.buffers, net.constants) for leaf in leaves.values()} == {
        "meta"
    }
    assert net.apply(net.params, net.buffers, X.to("meta")).outputs.device.type == "meta"
