"""Any module becomes pure functions; its layers, head and features are found."""

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.contract.parts.heads import check_head
from idiolect.core.errors import ModelError
from idiolect.task.network import Net

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def classifier(*middle: nn.Module) -> Task:
    return Task(nn.Sequential(nn.Linear(6, 5), *middle, nn.ReLU(), nn.Linear(5, 3)), (X, Y), classes=3)


class LastFirst(nn.Module):
    """Defines its layers in the opposite order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.hidden = nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


class Tied(nn.Module):
    """Uses one matrix twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


class CharModel(nn.Module):
    """Embedding, LSTM and a layer per position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.out = nn.Linear(5, 11)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


def test_calling_a_net_changes_neither_module_nor_values():
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    net = Net(module)
    buffers = {name: leaf.clone() for name, leaf in net.buffers.items()}
    out = net.apply(net.params, net.buffers, X, train=True)
    assert not torch.equal(out.buffers["1.running_mean"], buffers["1.running_mean"])
    assert all(torch.equal(leaf, buffers[name]) for name, leaf in net.buffers.items())
    assert all(torch.equal(leaf, before[name]) for name, leaf in module.state_dict().items())


def test_a_net_gives_what_the_module_gives():
    for module, x in [(CharModel(), torch.randint(0, 11, (2, 6))), (Tied(), torch.randint(0, 7, (2, 3)))]:
        net = Net(module)
        assert torch.allclose(net.apply(net.params, net.buffers, x).outputs, module.eval()(x), atol=1e-6)
        doubled = {name: 2 * leaf for name, leaf in net.params.items()}
        assert not torch.equal(net.apply(doubled, net.buffers, x).outputs, module(x))


def test_layers_are_ordered_by_use_and_the_head_is_the_last():
    task = Task(LastFirst(), (X, Y), classes=3)
    assert [unit.name for unit in task.units] == ["hidden", "out"]
    assert task.head() == {"out.weight", "out.bias"}


def test_features_are_what_enters_the_head():
    task = classifier()
    out = task.forward(task.net.params, {}, X)
    assert torch.equal(out.features, task.module[:2](X))


def test_normalisation_is_flagged_and_goes_with_the_layer_before_it():
    task = classifier(nn.BatchNorm1d(5))
    assert [unit.is_norm for unit in task.units] == [False, True, False]
    assert task.norms == {"1.weight", "1.bias"}
    assert "1.running_mean" in task.head(2)
    with pytest.raises(ModelError, match="2 layers"):
        task.head(3)


def test_a_named_head_is_used_and_an_unknown_one_refused():
    task = Task(LastFirst(), (X, Y), classes=3, head="hidden")
    assert task.head() == {"hidden.weight", "hidden.bias"}
    with pytest.raises(ModelError, match="no layer 'nose'"):
        Task(LastFirst(), (X, Y), classes=3, head="nose")


def test_a_head_may_be_called_by_keyword():
    class Named(LastFirst):
        def forward(self, x):
            return self.out(input=self.hidden(x).relu())

    task = Task(Named(), (X, Y), classes=3)
    task.require_features("any")
    assert torch.equal(task.forward(task.net.params, {}, X).features, task.module.hidden(X).relu())


def test_a_head_that_is_never_called_shows_no_features():
    class Functional(LastFirst):
        def forward(self, x):
            return nn.functional.linear(self.hidden(x).relu(), self.out.weight, self.out.bias)

    task = Task(Functional(), (X, Y), classes=3, head="out")
    assert task.head() == {"out.weight", "out.bias"}
    with pytest.raises(ModelError, match=r"lgmix needs the features .* never calls 'out': .*head=\.\.\. \(hidden\)"):
        task.require_features("lgmix")
    with pytest.raises(ModelError, match=r"gpfl needs the features"):
        check_head("gpfl", task)


def test_lazy_layers_are_refused_until_their_shapes_are_known():
    module = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3))
    with pytest.raises(ModelError, match=r"lazy layers.* call it once on a batch of inputs"):
        Task(module, (X, Y), classes=3)
    module(X)
    assert Task(module, (X, Y), classes=3).names[0] == "0.weight"


def test_a_model_of_normalisation_alone_trains_but_has_no_head():
    task = Task(nn.Sequential(nn.BatchNorm1d(6)), (X, Y), classes=3)
    assert task.loss(task.net.params, task.net.buffers, Batch(X, Y, torch.ones(4))).loss.isfinite()
    with pytest.raises(ModelError, match=r"normalisation layers only \(0\)"):
        _ = task.head_unit


def test_frozen_normalisation_stays_in_evaluation_mode():
    task = classifier(nn.BatchNorm1d(5))
    frozen = task.frozen(task.head(1))
    assert frozen == {"1"}
    scored = task.loss(task.net.params, task.net.buffers, Batch(X, Y, torch.ones(4)), frozen=frozen)
    assert torch.equal(scored.buffers["1.running_mean"], task.net.buffers["1.running_mean"])


def test_padding_does_not_count():
    task = classifier()
    padded = Batch(torch.cat([X, torch.zeros(2, 6)]), torch.cat([Y, Y[:2]]), torch.tensor([1.0] * 4 + [0.0] * 2))
    plain = task.loss(task.net.params, {}, Batch(X, Y, torch.ones(4))).loss
    assert torch.allclose(task.loss(task.net.params, {}, padded).loss, plain)


@pytest.mark.parametrize("layout", ["last", "second"])
def test_sequences_may_have_classes_last_or_second(layout):
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(1, 5)

        def forward(self, x):
            out = self.out(x[..., None])
            return out if layout == "last" else out.movedim(-1, 1)

    x, y = torch.randn(2, 6), torch.randint(0, 5, (2, 6))
    task = Task(Positions(), (x, y), classes=5)
    outputs = task.forward(task.net.params, {}, x).outputs
    assert task.losses(outputs, y).shape == (2,)
    assert task.correct(outputs, y).shape == (2,)


def test_dense_prediction_and_regression():
    image, mask = torch.randn(2, 1, 4, 4), torch.randint(0, 2, (2, 4, 4))
    dense = Task(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 1)), (image, mask), classes=2)
    out = dense.forward(dense.net.params, {}, image)
    assert out.features.shape == (2, 3, 4, 4)
    assert dense.losses(out.outputs, mask).shape == (2,)
    numbers = Task(nn.Linear(6, 1), (X, torch.randn(4)))
    assert list(numbers.metrics) == ["mse", "mae", "r2"]
    assert not numbers.metrics["mse"].higher_is_better
    with pytest.raises(ModelError, match="classification only"):
        numbers.correct(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize(
    ("module", "y", "classes", "message"),
    [
        (nn.Linear(6, 2), Y, 3, "gives 2 classes, but the data have 3"),
        (nn.Linear(5, 3), Y, 3, "cannot take inputs of shape"),
        (nn.Flatten(), Y, 3, "no parameters"),
        (nn.Linear(6, 2), torch.randn(4), None, "do not fit targets"),
        (nn.LSTM(6, 3), Y, 3, "must return one tensor"),
        (nn.Linear(6, 3), torch.zeros(4, 7, dtype=torch.long), 3, "do not fit labels"),
    ],
)
def test_what_does_not_fit_is_explained(module, y, classes, message):
    with pytest.raises(ModelError, match=message):
        Task(module, (X, y), classes=classes)


def test_an_own_loss_may_give_one_value_per_batch_but_then_samples_cannot_be_weighed():
    task = Task(nn.Linear(6, 3), (X, Y), nn.CrossEntropyLoss(), classes=3)
    assert task.loss(task.net.params, {}, Batch(X, Y, torch.ones(4))).loss.ndim == 0
    with pytest.raises(ModelError, match="one value per sample"):
        task.losses(torch.zeros(4, 3), Y)
    with pytest.raises(ModelError, match="one value per sample or one per batch"):
        Task(nn.Linear(6, 3), (X, Y), lambda outputs, y: outputs, classes=3)
