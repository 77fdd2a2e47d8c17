"""FedAlt and FedSim: a personal part of the model (output, input or adapters), trained in turn or together."""

import pytest
import torch
from torch import nn

from idiolect import Task, run
from idiolect.contract import methods
from idiolect.core.errors import ModelError, OptionError
from idiolect.testing import check_method, play, play_params, tiny_plan
from idiolect.testing.scalar import Product, download_of, half_squared_error, scalar_federation, train_client

OUTPUT, INPUT = {"4.weight", "4.bias"}, {"0.weight", "0.bias"}


@pytest.mark.parametrize("method", ["fedalt", "fedsim"])
@pytest.mark.parametrize(
    ("options", "own"), [("", OUTPUT), ("personal=input", INPUT), ("units=[2]", {"2.weight", "2.bias"})]
)
def test_the_personal_part_differs_and_the_rest_is_common(method, options, own):
    found = play_params(tiny_plan(f"{method}({options})"))
    for name in found[0]:
        assert torch.equal(found[0][name], found[1][name]) == (name not in own)


def test_normalisation_goes_with_the_layer_before_it():
    task = tiny_plan("fedavg", norm=True).tasks[0]
    private = methods.build("fedalt(personal=input)").private_names(task)
    assert private == INPUT | task.names_of([task.units[1]])


def test_named_modules_bring_all_they_hold():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
            self.adapter = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
            self.adapter2 = nn.Linear(4, 4)

        def forward(self, x):
            hidden = self.body(x)
            return self.out(self.adapter2(hidden + self.adapter(hidden)))

    task = Task(Adapted(), (torch.randn(2, 4), torch.tensor([0, 1])), classes=3)
    private = methods.build("fedalt(units=[adapter])").private_names(task)
    assert private == {f"adapter.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}


def test_the_shared_part_is_trained_at_the_new_personal_part():
    """Without epochs of the shared part it stays as downloaded, and the personal part has moved."""
    plan = tiny_plan("fedalt(own_epochs=1, shared_epochs=0)")
    download, outcome = download_of(plan), train_client(plan)
    assert all(torch.equal(leaf, download["params"][n]) for n, leaf in outcome.upload.slots["params"].items())
    assert not torch.equal(outcome.state["private"]["4.weight"], plan.tasks[0].net.params["4.weight"])


def test_alternating_takes_twice_the_steps_of_together():
    steps = {method: train_client(tiny_plan(method)).steps for method in ("fedalt", "fedsim")}
    assert steps == {"fedalt": 16, "fedsim": 8}


@pytest.mark.parametrize(
    ("method", "u", "v"), [("fedalt", 2.012, 0.2), ("fedsim", 2.0, 0.2), ("fedalt(own_lr=0.2)", 2.008, 0.4)]
)
def test_the_hand_worked_examples(method, u, v):
    """Loss (u v - 1)^2 / 2 at u = 2, v = 0, rate 0.1: v moves along -2 to 0.2. FedAlt's u then moves along
    (0.4 - 1) 0.2 = -0.12 to 2.012; FedSim's, at the old v, along 0. With rate 0.2 for v it moves to 0.4, and u then
    along (0.8 - 1) 0.4 = -0.08 to 2.008."""
    options = {"loss": half_squared_error, "rounds": 1, "lr": 0.1, "engine": "loop"}
    model = run(method, scalar_federation(1.0), model=Product(body=2.0, head=0.0), **options).model(0)
    assert model.body.weight.item() == pytest.approx(u)
    assert model.head.weight.item() == pytest.approx(v)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ("fedalt(own_epochs=3)", "fedrep(head_epochs=3)"),
        ("fedsim", "fedper"),
        ("fedsim(personal=input, layers=2)", "lgfedavg"),
        ("fedalt(layers=0)", "fedavg"),
        ("fedsim(layers=0)", "fedavg"),
        ("fedsim(layers=3)", "local"),
    ],
)
def test_they_meet_the_methods_they_generalise_to_the_bit(method, other):
    own, plain = play_params(tiny_plan(method)), play_params(tiny_plan(other))
    assert all(torch.equal(leaf, plain[i][n]) for i, model in own.items() for n, leaf in model.items())


def test_statistics_of_the_frozen_part_stay_put():
    plan = tiny_plan("fedalt(shared_epochs=0)", norm=True)
    assert torch.equal(play(plan).server["buffers"]["1.running_mean"], plan.tasks[0].net.buffers["1.running_mean"])


def test_the_defaults_differ_from_fedavg_and_from_each_other():
    found = [play_params(tiny_plan(each))[0]["0.weight"] for each in ("fedalt", "fedsim", "fedavg")]
    assert not any(torch.equal(found[i], found[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_an_unseen_client_trains_only_its_personal_part():
    plan = tiny_plan("fedalt(personal=input)", unseen=1)
    (phase,) = plan.method.onboard(plan.context(5, 0))
    assert phase.part == INPUT


@pytest.mark.parametrize("outer", ["fedlag({}, warmup=0, k=1)", "flayer({})", "finetune({})"])
@pytest.mark.parametrize("inner", ["fedalt", "fedsim(personal=input)"])
def test_wrappers_wrap_them(outer, inner):
    own = play_params(tiny_plan(outer.format(inner)))
    name = "0.weight" if "input" in inner else "4.weight"
    assert not torch.equal(own[0][name], own[1][name])


@pytest.mark.parametrize("method", ["fedalt", "fedsim"])
def test_bad_options_are_refused(method):
    with pytest.raises(OptionError, match="personal must be one of output, input"):
        methods.build(f"{method}(personal=middle)")
    with pytest.raises(ModelError, match="no module 'adapter' to be personal; its layers: 0, 2, 4"):
        tiny_plan(f"{method}(units=[adapter])")
    for personal in ("input", "output"):
        with pytest.raises(ModelError, match="3 layers"):
            tiny_plan(f"{method}(personal={personal}, layers=4)")


def test_the_input_may_be_personal_under_the_whole_contract():
    check_method("fedalt(personal=input, layers=2)")
