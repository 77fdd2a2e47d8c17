"""What may be tried: derived from the options, or as the user writes it."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from idiolect.contract.method import methods
from idiolect.core.errors import InputError, OptionError, UnknownNameError
from idiolect.core.options import Options, option, options_of
from idiolect.task.task import Task
from idiolect.testing.tiny import play, tiny_plan
from idiolect.tuning.space import (
    LEARNING_RATE,
    Dimension,
    derive,
    make_spaces,
    parse_dimension,
    set_options,
    space_of,
)


@dataclass(frozen=True)
class Example(Options):
    weight: float = option(0.1, min=0.0)
    share: float = option(0.5, min=0.0, max=1.0)
    inside: float = option(0.5, above=0.0, below=1.0)
    signed: float = option(0.0)
    epochs: int = option(10, min=1)
    layers: int = option(1, min=0)
    rate: float | None = option(None, above=0.0)
    switch: bool = option(True)
    kind: str = option("a", choices=("a", "b"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("weight", "0.01:1:log"),
        ("share", "0:1"),
        ("inside", "0.01:0.99"),
        ("signed", "-1:1"),
        ("epochs", "5:20"),
        ("layers", "0:2"),
    ],
)
def test_a_range_follows_from_limits_and_default(name, wanted):
    assert str(derive(options_of(Example)[name])) == wanted


@pytest.mark.parametrize("name", ["rate", "switch", "kind"])
def test_what_is_no_number_stays_as_it_is(name):
    assert derive(options_of(Example)[name]) is None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(methods))
def test_every_methods_space_holds_its_default_and_can_be_run_at_both_ends(name):
    """Each dimension by itself: the method at its end fits the tiny model and goes through a round."""
    plan = tiny_plan(name, clients=3, rounds=1, epochs=1)
    method = plan.method
    for path, dimension in space_of(method, task=plan.tasks[0]).items():
        if path == LEARNING_RATE:
            continue
        owner, _, option_name = path.rpartition(".")
        held = getattr(method.inner if owner else method, option_name)
        assert dimension.is_choice, path
        assert dimension.contains(0.05 if held is None and not dimension.values else held), path
        for end in dimension.values or {dimension.low, dimension.high}:
            changed = set_options(method, {path: int(end) if dimension.whole else end})
            changed.check(plan.tasks[0])
            losses = [row[6] for row in play(replace(plan, method=changed)).rows if row[4:6] == ("val", "loss")]
            assert losses, (path, end)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("fedlag", {"k": "null,1,2,3", "xi": "-0.3:0", "warmup": "null,0,5,30"}),
        ("flayer", {"layers": "1:3", "low": "0.05:1", "lr_max_mult": "1:20:log"}),
        ("pfedgate", {"gate_lr": "0.005:0.5:log", "blocks": "2:10"}),
        (
            "fedfac",
            {"layers": "last hidden,1,2,3", "tau": "0.25,0.5,0.75,0.9,inf", "kappa": "0.5,0.75,0.85,0.9,0.95"},
        ),
        ("lgmix", {"history": "true,false", "centered": "false,true"}),
    ],
)
def test_what_the_papers_tune_is_searched_as_far_as_the_model_has_layers(method, wanted):
    space = space_of(methods.build(method), task=tiny_plan("fedavg").tasks[0])
    assert {name: str(each) for name, each in space.items() if name != LEARNING_RATE} == wanted


def test_a_choice_that_a_model_leaves_one_value_of_is_no_dimension():
    task = Task(nn.Linear(4, 3), (torch.zeros(2, 4), torch.tensor([0, 1])), classes=3)
    assert list(space_of(methods.build("fedper(onboard_epochs=3)"), task=task)) == ["layers", LEARNING_RATE]
    assert str(space_of(methods.build("fedper"), task=task)["layers"]) == "0:1"
    assert "layers" not in space_of(methods.build("flayer"), task=task)


def test_what_the_expression_sets_stays():
    assert list(space_of(methods.build("ditto(lam=0.5)"))) == [LEARNING_RATE]
    assert list(space_of(methods.build("finetune(ditto, epochs=3)"))) == ["inner.lam", LEARNING_RATE]


def test_the_rate_is_tried_around_the_runs():
    assert str(space_of(methods.build("fedavg"), lr=0.2)[LEARNING_RATE]) == "0.02:2:log"


def test_spaces_as_they_are_written():
    assert parse_dimension("mu=0.001:1:log") == ("mu", Dimension(0.001, 1, log=True))
    assert parse_dimension("inner.lam = 0:2") == ("inner.lam", Dimension(0, 2))
    assert parse_dimension("kind=paf, pc") == ("kind", Dimension(values=("paf", "pc")))
    assert parse_dimension("layers=[1,2],[3]") == ("layers", Dimension(values=([1, 2], [3])))


@pytest.mark.parametrize("text", ["mu", "mu=", "=1", "mu=1:2:3", "mu=a:b", "mu=2:1", "mu=0:1:log", "mu=1:2:log:x"])
def test_spaces_that_cannot_be_read(text):
    with pytest.raises(InputError, match="the space"):
        parse_dimension(text)


def chosen(*given, methods_="fedprox, ditto, pfedhn"):
    built = {name: methods.build(name) for name in methods_.split(", ")}
    return {n: {p: str(d) for p, d in each.items()} for n, each in make_spaces(built, given, 0.05).items()}


def test_a_name_reaches_all_methods_that_have_it_and_a_method_only_itself():
    assert chosen("mu=0:2")["fedprox"]["mu"] == "0:2"
    assert {each[LEARNING_RATE] for each in chosen("lr=0.1:1").values()} == {"0.1:1"}
    one = chosen("ditto.lr=0.1:1")
    assert (one["ditto"][LEARNING_RATE], one["fedprox"][LEARNING_RATE]) == ("0.1:1", "0.005:0.5:log")


def test_a_method_may_have_a_rate_of_its_own():
    found = chosen("pfedhn.lr=0.5:1", "pfedhn.run.lr=2:3")["pfedhn"]
    assert (found["lr"], found[LEARNING_RATE]) == ("0.5:1", "2:3")


def test_whole_numbers_stay_whole():
    built = {"fedper": methods.build("fedper")}
    assert make_spaces(built, ["layers=1:3"], 0.05)["fedper"]["layers"].whole


def test_bad_spaces_get_a_sentence():
    with pytest.raises(UnknownNameError, match="no method here has an option 'my'"):
        chosen("my=0:1")
    with pytest.raises(OptionError, match="mu must lie in"):
        chosen("mu=-1:1")
    with pytest.raises(OptionError, match="lr must lie in"):
        chosen("lr=0:1")


def test_a_budget_is_given_and_a_second_learning_rate_is_tuned_like_the_first():
    space = space_of(methods.build("pfedgate"), lr=0.2)
    assert "s" not in space
    assert "sparsity" not in space_of(methods.build("fedmask"))
    assert space["gate_lr"] == space["run.lr"] == Dimension(0.02, 2.0, log=True)
    assert "gate_lr" not in space_of(methods.build("pfedgate(gate_lr=0.1)"))
