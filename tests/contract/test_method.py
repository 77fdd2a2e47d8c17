"""The contract itself: what wrappers pass on, what slots say and when, and that contexts cannot be changed."""

import inspect
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from pathlib import Path

import pytest
import torch

from idiolect.contract import (
    ClientContext,
    ComposeError,
    Method,
    Phase,
    Refuses,
    ServerContext,
    Slot,
    Sums,
    Wrapper,
    has_one_model,
    methods,
    model_in,
    predicts_its_own_way,
    private,
    scratch,
    shared,
    unwrap,
    zero,
    zeros_like_params,
)
from idiolect.contract.phase import NO_PHASE
from idiolect.core.tree import Tree
from idiolect.testing import tiny_plan

NAMES = sorted(methods)
FACTS = {"name", "about", "presets", "identities"}
"""What a wrapper says for itself."""


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


# -- wrappers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "one_model", "own_way"),
    [
        ("fedavg", True, False),
        ("finetune(fedavg)", True, False),
        ("finetune(ditto)", False, False),
        ("finetune(fedrod)", False, True),
        ("flayer(fedavg)", False, False),
    ],
)
def test_a_wrapper_has_one_model_and_predicts_as_its_inner_method_unless_it_changes_that(method, one_model, own_way):
    built = methods.build(method)
    assert (has_one_model(built), predicts_its_own_way(built)) == (one_model, own_way)


def test_a_wrapper_passes_every_function_on_but_step():
    functions = {name for name in public(Method) if inspect.isfunction(vars(Method)[name])}
    assert functions - public(Wrapper) == {"step"}


def test_a_wrapper_passes_every_property_and_fact_on_but_those_about_itself():
    functions = {name for name in public(Method) if inspect.isfunction(vars(Method)[name])}
    assert public(Method) - functions - (public(Wrapper) - {"name"}) == FACTS  # every class has a name of its own
    for name in public(Method) - functions - FACTS:
        assert isinstance(vars(Wrapper)[name], property), name


def test_a_wrapper_has_no_function_that_methods_do_not_have():
    assert public(Wrapper) - public(Method) == {"touches_model"}


@dataclass(frozen=True)
class Told(Method):
    """A method that answers every question by its name."""

    name = "told"


def test_what_a_wrapper_answers_is_the_inner_methods_answer():
    for name in public(Method) & public(Wrapper):
        if not inspect.isfunction(vars(Method)[name]) or name == "download":
            continue
        own = type("Own", (Told,), {"name": "told", name: lambda self, *args: (self.name, *args)})()
        count = len(inspect.signature(vars(Method)[name]).parameters) - 1
        answer = getattr(Wrapper(own), name)(*range(count))
        assert answer in (("told", *range(count)), None), name
        assert answer is not None or name == "check"


@dataclass(frozen=True)
class Sending(Wrapper):
    """A wrapper with a slot that goes down."""

    name = "sending"

    @property
    def slots(self):
        return {**self.inner.slots, "extra": Slot("server", zero("number"), down=True)}


def test_a_wrappers_own_slots_go_down_beside_the_inner_methods():
    plan = tiny_plan("fedavg")
    server = {**plan.tasks[0].initial, "extra": {"number": torch.ones(())}}
    sent = Sending(methods.build("fedavg")).download(plan.server(0), server, (0,)).of(0)
    assert sent.keys() == {"params", "buffers", "extra"}


@dataclass(frozen=True)
class Closed(Method):
    name = "closed"
    refuses = Refuses(wrapping="it has its reasons")


@dataclass(frozen=True)
class Watcher(Wrapper):
    name = "watcher"
    touches_model = False


def test_a_method_says_why_it_cannot_be_wrapped():
    with pytest.raises(ComposeError, match="sending cannot wrap closed: it has its reasons"):
        Sending(Closed())
    with pytest.raises(ComposeError, match="sending cannot wrap watcher: it has its reasons"):
        Sending(Watcher(Closed()))
    assert unwrap(Watcher(Closed())) == Closed()


# -- slots --------------------------------------------------------------------------------------------------


def test_the_three_usual_kinds_of_slots():
    assert shared(holds="model") == Slot("server", None, down=True, up="sum", holds="model")
    assert private(zeros_like_params) == Slot("client", zeros_like_params)
    assert scratch(zeros_like_params, up="each") == Slot("round", zeros_like_params, up="each")
    assert Slot("server") == Slot("server", None, False, "", "run", "keep", "other")


def test_a_slot_starts_as_the_initial_model_unless_it_says_otherwise():
    ctx = tiny_plan("fedavg").context(0, 0)
    assert shared().first(ctx) is ctx.initial["params"]
    assert not any(leaf.any() for leaf in private(zeros_like_params).first(ctx).values())
    first: Tree = scratch(zero("right", "samples")).first(ctx)
    assert {name: leaf.item() for name, leaf in first.items()} == {"right": 0.0, "samples": 0.0}


def test_the_model_in_a_slot_is_its_parameters_and_its_buffers():
    own, buffers = {"w": torch.ones(1)}, {"mean": torch.ones(1)}
    assert model_in({"own": own, "own.buffers": buffers}, "own") == {"params": own, "buffers": buffers}


@pytest.mark.parametrize("name", NAMES)
def test_slots_are_declared_from_options_alone_in_words_that_engines_know(name):
    """No context, task or run is at hand: `slots` is a property, and the same each time."""
    method = methods.build(name)
    slots = method.slots
    assert list(slots) == list(method.slots)
    for slot, facts in slots.items():
        assert facts.home in ("server", "client", "round"), slot
        assert facts.up in ("", "sum", "each"), slot
        assert facts.missing in ("keep", "before", "zero"), slot
        assert facts.holds in ("model", "parameters", "other"), slot
        assert facts.init is None or callable(facts.init), slot
        assert not (facts.down and facts.home != "server"), f"{slot}: only the server sends slots down"
        assert replace(facts, weigh="run") == facts or facts.weigh == "uniform" or "/" in facts.weigh, slot


@pytest.mark.parametrize("name", [*NAMES, "lgmix(missed=ignore)", "finetune(fedfac)"])
def test_a_method_that_needs_single_uploads_says_why(name):
    method = methods.build(name)
    single = [slot for slot, facts in method.slots.items() if facts.up == "each"]
    assert bool(single) == bool(method.refuses.summing), single


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_phases_are_bound_methods_so_that_equal_phases_are_equal(name):
    plan = tiny_plan(name)
    ctx = plan.context(0, 0)
    for phases in (plan.method.phases, plan.method.adapt, plan.method.onboard):
        assert list(phases(ctx)) == list(phases(ctx))
        for phase in phases(ctx):
            assert inspect.ismethod(phase.step), phase
            assert phase.before is None or inspect.ismethod(phase.before), phase


# -- contexts -------------------------------------------------------------------------------------------------


def test_contexts_phases_and_slots_cannot_be_changed():
    plan = tiny_plan("fedavg")
    for record, field in (
        (plan.context(0, 0), "round"),
        (plan.context(0, 0), "phase"),
        (plan.server(0), "clients"),
        (plan.training, "lr"),
        (Phase(plan.method.step), "epochs"),
        (shared(), "up"),
        (plan.method, "name"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(record, field, 1)


def test_a_context_outside_training_has_a_phase_that_trains_nothing():
    ctx: ClientContext = tiny_plan("fedavg").context(0, 0)
    assert ctx.phase is NO_PHASE
    assert ctx.phase.slots == ()
    assert ctx.phase.step(ctx, {"a": {}}, None) == {"a": {}}


def test_the_learning_rate_is_the_runs_unless_the_phase_has_its_own():
    ctx = tiny_plan("fedavg", lr=0.3).context(0, 0)
    assert ctx.lr == 0.3
    assert replace(ctx, phase=Phase(ctx.method.step, lr=0.7)).lr == 0.7


def test_private_names_are_the_methods_and_those_of_the_runs_policy():
    names = {
        changes: tiny_plan("fedper", norm=True, **dict(changes)).context(0, 0).private_names
        for changes in ((), (("norm_stats", "local"),), (("norm_affine", "local"),))
    }
    head = {"5.weight", "5.bias"}
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert list(names.values()) == [head, head | statistics, head | {"1.weight", "1.bias"}]


# -- how much there is to read -----------------------------------------------------------------------------


def count_names() -> dict[str, int]:
    """What an author meets by name, kind by kind: what a method may override or say, and fields of what it gets and
    gives. Records of facts (`about`, `needs`, `refuses`, `training`) count as one each."""
    said = {name for name in Method.__annotations__ if not name.startswith("_")}
    contexts = {field.name for cls in (ClientContext, ServerContext) for field in fields(cls)}
    return {
        "functions": len(public(Method) - said),
        "attributes": len(said),
        "fields of phases": len(fields(Phase)),
        "fields of contexts": len(contexts),
        "fields of slots": len(fields(Slot)),
        "sums": len([field for field in fields(Sums) if not field.name.startswith("_")]) + len({"mean"}),
    }


def test_the_design_says_how_many_names_the_contract_has():
    counts = count_names()
    sentence = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(sum(counts.values()), sentence)
    text = " ".join((Path(__file__).parents[2] / "docs" / "design.md").read_text().split())
    assert f"{sum(counts.values())} names: {sentence}" in text
