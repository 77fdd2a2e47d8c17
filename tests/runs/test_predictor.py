"""Personal models as modules: they hold networks and values and nothing else, and can be saved, copied and moved."""

import copy
import io

import pytest
import torch
from torch import nn

import idiolect
from idiolect.contract import Wrapper, methods, predicts_its_own_way
from idiolect.runs.predictor import Values
from idiolect.testing import tiny_federation

OWN_WAY = [name for name in methods if predicts_its_own_way(methods.build(name))]
WRAPPERS = [name for name in methods if isinstance(methods.build(name), Wrapper)]
EXPRESSIONS = [
    *OWN_WAY,
    *(f"{wrapper}({inner})" for wrapper, inner in zip(WRAPPERS, ("fedrod", "fedem", "feddbe"), strict=True)),
    "pfedgate(split=structured)",
    "pfedgate(gate=client)",
    "heterofl(evaluate=global)",
]


class Net(nn.Module):
    """A network of an own class with a frozen first layer, a buffer, and normalisation that is frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("shift", torch.linspace(0, 1, 6))
        for layer in (self.first, self.norm):
            layer.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.body(torch.relu(self.norm(self.first(x)) + self.shift))))


def run(text, model=None):
    model = model or nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    own_loss = lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none")  # noqa: E731
    settings = {"rounds": 1, "engine": "loop", "batch_size": 4, "lr": 0.1}
    return idiolect.run(text, tiny_federation(), model=model, loss=own_loss, **settings)


def save(module):
    file = io.BytesIO()
    torch.save(module, file)
    return file.getvalue()


def size(module):
    return sum(leaf.numel() * leaf.element_size() for leaf in module.state_dict().values())


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_saved_personal_model_holds_its_values_and_no_data(text):
    result = run(text)
    module, client = result.model(0), result.plan.data.clients[0]
    saved = save(module)
    for each in result.plan.data.clients:
        for row in each.x:
            assert row.numpy().tobytes() not in saved
    assert not any(name in saved for name in (b"Federation", b"Plan", b"idiolect.data"))
    assert len(saved) < size(module) + 40_000
    again = torch.load(io.BytesIO(saved), weights_only=False)
    for x in (client.x[:1], client.x):
        assert torch.equal(again(x), module(x))
    assert abs(len(save(module)) - len(saved)) < 100  # predicting leaves nothing behind


@pytest.mark.parametrize(
    "text", ["fedrod", "fedem", "pfedgate", "feddbe", "heterofl(rates=1)", "finetune(fedcp)", "ditto"]
)
def test_a_state_dict_has_frozen_values_and_buffers_and_carries_the_model_over(text):
    result = run(text, Net())
    module, other, x = result.model(0), result.model(1), result.plan.data.clients[0].x
    held = [leaf for leaf in module.state_dict().values() if leaf.shape == (6, 4)]
    assert any(torch.equal(leaf, result.plan.tasks[0].net.constants["first.weight"]) for leaf in held)
    assert any(torch.equal(leaf, torch.linspace(0, 1, 6)) for leaf in module.state_dict().values())
    outputs = module(x)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), outputs)
    blank = {name: torch.zeros_like(leaf) for name, leaf in module.state_dict().items()}
    module.load_state_dict(blank)
    assert not torch.equal(module(x), outputs)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_personal_model_can_be_copied_and_converted(text):
    result = run(text)
    module, x = result.model(0), result.plan.data.clients[0].x
    outputs = module(x)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), outputs)
    double = twin.to(torch.float64)
    assert all(leaf.dtype == torch.float64 for leaf in double.state_dict().values() if leaf.is_floating_point())
    assert torch.allclose(double(x.double()).float(), outputs, atol=1e-4)
    assert double(x.double()).dtype == torch.float64
    assert torch.equal(module(x), outputs)
    assert all(leaf.device.type == "meta" for leaf in copy.deepcopy(module).to("meta").state_dict().values())


def test_a_converted_model_with_frozen_layers_computes_in_the_new_type():
    result = run("fedrod", Net())
    module, x = result.model(0), result.plan.data.clients[0].x
    outputs = module(x)
    assert torch.allclose(module.double()(x.double()).float(), outputs, atol=1e-4)


def test_the_state_dict_names_slots_and_leaves():
    names = run("fedem(components=2)", Net()).model(0).state_dict().keys()
    assert {"constants.model.first.weight", "constants.model.norm.running_mean"} <= names
    assert any(name.startswith("values.") and name.endswith("head.weight") for name in names)


def test_values_come_back_whatever_their_names_are():
    slots = {
        "a": {"b": torch.ones(1), "b.c": torch.ones(2), "forward": torch.ones(3), "": torch.ones(4)},
        "a.b": {"x/y:z": torch.ones(5), "x_y_z": torch.ones(6)},
        "empty": {},
    }
    held = Values(slots).read()
    assert {slot: {name: len(leaf) for name, leaf in leaves.items()} for slot, leaves in held.items()} == {
        slot: {name: len(leaf) for name, leaf in leaves.items()} for slot, leaves in slots.items()
    }


def test_buffers_that_are_not_saved_are_the_clients_own():
    """They are in no state dict, but they are part of the model."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            if self.training:
                self.seen += 1
            return self.head(x) + 0 * self.seen

    result = run("fedavg", Counting())
    assert float(result.model(0).seen) > 0
