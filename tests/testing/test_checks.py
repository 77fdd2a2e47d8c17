"""The conformance suite finds methods that break the contract: each of these breaks one rule."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch

from idiolect.contract import (
    About,
    Method,
    Phase,
    Wrapper,
    buffers_of,
    just_trained,
    methods,
    option,
    private,
    tree,
)
from idiolect.core.errors import ConformanceError, UnknownNameError
from idiolect.methods.fedprox import FedProx
from idiolect.methods.fedrod import FedRoD
from idiolect.testing import CHECKS, check_method
from idiolect.testing.differences import require_equal_leaves

OWN = "own"


@dataclass(frozen=True)
class Personal(Method):
    """Every client predicts with a model of its own."""

    @property
    def slots(self):
        return {**super().slots, OWN: private(holds="model")}

    def finish(self, ctx, work):
        return {**work, OWN: work["params"], buffers_of(OWN): work["buffers"]}

    def personal_model(self, ctx, work):
        return {"params": work[OWN], "buffers": work[buffers_of(OWN)]}


class SharedInWords(Personal):
    """It claims that all clients predict with one and the same model."""

    about = About("A mean of models", kind="global")


class Doubling(Method):
    """Its optimiser steps are twice as long."""

    @property
    def optimizer_step(self):
        return self.double

    def double(self, ctx, work, slot, grad, batch, lr):
        return ctx.log(ctx.apply(work, slot, grad, 2 * lr), grad, batch)


class Twin(Method):
    """FedAvg under another name."""


@dataclass(frozen=True)
class Pulled(Method):
    """FedProx under another name, which it says that it is in a neutral case."""

    mu: float = option(0.1)
    pull: bool = option(False)
    identities: ClassVar = {"pulled(pull=true)": "fedprox"}

    def step(self, ctx, work, batch):
        return FedProx(self.mu).step(ctx, work, batch)

    def prepare(self, ctx, work):
        return FedProx(self.mu).prepare(ctx, work)


@dataclass(frozen=True)
class Wrapped(Wrapper):
    """A wrapper that changes nothing."""

    name = "wrapped"
    inner: Method = field(default_factory=lambda: methods.build("ditto"))


class Untrained(Method):
    """Its steps come to nothing."""

    def step(self, ctx, work, batch):
        super().step(ctx, work, batch)
        return work


class Elsewhere(Method):
    """It trains a model that nobody ever sees."""

    def prepare(self, ctx, work):
        return {**work, "elsewhere": work["params"]}

    def phases(self, ctx):
        return (Phase(self.step, slots=("elsewhere",)),)

    def step(self, ctx, work, batch):
        return ctx.optimize(work, "elsewhere", ctx.grad(work, "elsewhere", batch), batch)


class InPlace(Method):
    """It changes what it is given."""

    def step(self, ctx, work, batch):
        work["params"] = tree.scale(work["params"], 0.9)
        return work


class Lambda(Method):
    """No two calls give equal phases."""

    def phases(self, ctx):
        (phase,) = super().phases(ctx)
        return (type(phase)(lambda ctx, work, batch: self.step(ctx, work, batch)),)


class Growing(Personal):
    """A client's state has a leaf more after its first round."""

    def finish(self, ctx, work):
        return {**work, OWN: {**work["params"], "extra": ctx.samples}, buffers_of(OWN): work["buffers"]}


class Drawing(Method):
    """What it starts from is drawn anew in every run."""

    def prepare(self, ctx, work):
        return {**work, "params": tree.scale(work["params"], float(torch.rand(())))}


class Remembering(Method):
    """A client starts from something else where the client that came before it has a higher number."""

    before: ClassVar = [0]

    def prepare(self, ctx, work):
        start = tree.scale(work["params"], 0.5) if self.before[0] > ctx.index > 0 else work["params"]
        self.before[0] = ctx.index
        return {**work, "params": start}


class Borrowing(Method):
    """It trains on what is held out."""

    def phases(self, ctx):
        return [replace(phase, data="val") for phase in super().phases(ctx)]


class Marking(Method):
    """What it sends to clients has a mark that no bytes have."""

    def download(self, ctx, server, ids):
        message = super().download(ctx, server, ids)
        for leaf in message.of(0)["params"].values():
            leaf.marked = True
        return message

    def prepare(self, ctx, work):
        marked = all(hasattr(leaf, "marked") for leaf in work["params"].values())
        return {**work, "params": tree.scale(work["params"], 1.0 if marked else 0.5)}


class Peeking(Method):
    """It looks at values, from the second round on."""

    def step(self, ctx, work, batch):
        return super().step(ctx, work, batch) if ctx.round == 0 or batch.x.sum() < 1e9 else work


@dataclass(frozen=True)
class SharedModelInWords(FedRoD):
    """FedRoD, which claims to predict as FedAvg where its shared model is FedAvg's."""

    identities: ClassVar = {"fedrod(gamma=0)": "fedavg"}


class LateFedAvg(Method):
    """FedAvg, but for what the shared model predicts after the first round."""

    def personal_model(self, ctx, work):
        model = super().personal_model(ctx, work)
        return {**model, "params": tree.scale(model["params"], 0.5)} if ctx.round == 0 else model


class UntrainedFedAvg(Method):
    """FedAvg, but for what the model predicts right after local training."""

    def personal_model(self, ctx, work):
        model = super().personal_model(ctx, work)
        return {**model, "params": tree.scale(model["params"], 0.5)} if just_trained(work) else model


@dataclass(frozen=True)
class FedAvgInTheEnd(LateFedAvg):
    """It claims to be FedAvg, and is in the last round only."""

    identities: ClassVar = {LateFedAvg(): "fedavg"}


@dataclass(frozen=True)
class FedAvgUnlessTrained(UntrainedFedAvg):
    """It claims to be FedAvg, and is but right after training."""

    identities: ClassVar = {UntrainedFedAvg(): "fedavg"}


class Filling(Personal):
    """A slot of the client's state, empty at first, is filled in its first round."""

    @property
    def slots(self):
        return {**super().slots, "later": private(lambda ctx: {})}

    def finish(self, ctx, work):
        return {**super().finish(ctx, work), "later": {"samples": ctx.samples}}


@pytest.mark.parametrize(
    ("method", "check", "words"),
    [
        (Growing(), "pure", "other slots or leaves than at first: own extra"),
        (Filling(), "pure", "other slots or leaves than at first: later samples"),
        (FedAvgInTheEnd(), "identities", r"but losses differ: \w+ loss of round 1, seen, (personal|after_local)\["),
        (FedAvgUnlessTrained(), "identities", r"but losses differ: \w+ loss of round \d, seen, after_local\["),
        (
            SharedModelInWords(),
            "identities",
            r"but predictions differ: client \d (adapted|personal)\[.*\] is",
        ),
        (SharedInWords(), "one_model", "differs from another client's"),
        (Twin(), "acts", "it does what fedavg does: on the tiny federation"),
        (Pulled(), "acts", "it does what fedprox does"),
        (Wrapped(), "acts", "it does what ditto does"),
        (Untrained(), "acts", "its phases change no slot that is kept or sent"),
        (Elsewhere(), "acts", "its phases change no slot that is kept or sent"),
        (Drawing(), "repeatable", "two runs of one plan: "),
        (Remembering(), "client_order", "clients in reverse order: "),
        (Marking(), "through_bytes", "through bytes: "),
        (Borrowing(), "no_test_data", "other validation and test labels: "),
        (InPlace(), "pure", "step changed its working slots in phase train"),
        (Peeking(), "stacking", "cannot be stacked, but refuses.stacking does not say so: it looks at the values"),
        (Lambda(), "pure", "is a step a lambda"),
    ],
)
def test_a_broken_rule_is_named(method, check, words):
    with pytest.raises(ConformanceError, match=f"fails the check '{check}': .*{words}"):
        check_method(method, [check])


def test_what_spoils_one_check_of_a_second_run_leaves_the_others_as_they_are():
    """All of them look at one run in which everything is disturbed, and each at one of its own where that differs."""
    check_method(Marking(), ["repeatable", "client_order", "no_test_data"])


def test_clients_that_never_trained_are_evaluated_with_slots_of_their_own():
    """Also where a method claims one model: what cannot be evaluated together is evaluated one by one."""
    check_method(SharedInWords(), ["stacking", "workers"])
    check_method(Personal(), ["stacking", "workers", "one_model"])


def test_every_engine_takes_a_methods_own_optimizer_step():
    check_method(Doubling(), ["stacking", "workers"])


def test_a_method_may_equal_another_in_the_cases_that_it_declares():
    """Whatever the options are that a neutral case does not speak of; and FedAvg is FedAvg."""
    for method in ("fedprox(mu=0)", "fedexp(eps=inf, average_last=false)", "fedlag(ditto, k=0)", "fedavg"):
        check_method(method, ["acts"])
    check_method(Pulled(pull=True), ["acts"])


def test_a_report_says_what_was_checked():
    report = check_method(Personal(), ["pure", "messages"])
    assert report.passed == ("pure", "messages")
    assert "Client functions change nothing they are given" in str(report)
    assert next(iter(CHECKS)) == "round_trip"


def test_an_unknown_check_is_named_with_those_that_there_are():
    with pytest.raises(UnknownNameError, match="there is no check purity; the checks are round_trip, pure,"):
        check_method("fedavg", ["purity"])


def test_the_largest_difference_is_shown_with_its_place_and_both_values():
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    b[0, 1], b[1, 2] = 1e-8, 0.5
    with pytest.raises(ConformanceError, match=r"^two: w\[1, 2\] is 0.0 and 0.5, 2 of 6 values of w differ, and"):
        require_equal_leaves({"v": a, "w": a}, {"v": a + 1e-9, "w": b}, "two")
    with pytest.raises(ConformanceError, match=r"^two: w is torch.float32 \[2, 3\] and torch.float32 \[3\]"):
        require_equal_leaves({"w": a}, {"w": a[0]}, "two")
    require_equal_leaves({"w": a}, {"w": a.clone()}, "two")


def test_methods_of_one_name_do_not_share_their_runs():
    """The classes here inherit the name of their base; what was computed for one is not taken for another."""
    check_method(Personal(), ["one_model"])
    with pytest.raises(ConformanceError, match="differs from another client's"):
        check_method(SharedInWords(), ["one_model"])
