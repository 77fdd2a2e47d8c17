"""The conformance suite finds methods that break the contract: each of these breaks one rule."""

from dataclasses import dataclass

import pytest

from idiolect.contract import Method, buffers_of, private, tree
from idiolect.core.errors import ConformanceError
from idiolect.testing import check_method

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
    """It claims that all clients predict with the shared model."""

    one_model = True


class Doubling(Method):
    """Its optimiser steps are twice as long."""

    def optimizer_step(self, ctx, work, slot, grad, batch, lr):
        return super().optimizer_step(ctx, work, slot, grad, batch, 2 * lr)


class DoublingInWords(Doubling):
    """The same, and it says that it has such steps."""

    watches_steps = True


class Passing(Method):
    """It has an optimiser step of its own that does nothing of its own."""

    def optimizer_step(self, ctx, work, slot, grad, batch, lr):
        return super().optimizer_step(ctx, work, slot, grad, batch, lr)


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


@pytest.mark.parametrize(
    ("method", "check", "words"),
    [
        (SharedInWords(), "one_model", "differs from another client's"),
        (Doubling(), "watches_steps", "watches_steps is False, but without its optimizer_step"),
        (InPlace(), "pure", "step changed its working slots in phase train"),
        (Lambda(), "pure", "is a step a lambda"),
    ],
)
def test_a_broken_rule_is_named(method, check, words):
    with pytest.raises(ConformanceError, match=f"fails the check '{check}': .*{words}"):
        check_method(method, [check])


def test_clients_that_never_trained_are_evaluated_with_slots_of_their_own():
    """Whoever claims one model falls over on engines that evaluate several clients at once, and only with many."""
    with pytest.raises(RuntimeError, match=OWN) as caught:
        check_method(SharedInWords(), ["absent_clients"])
    assert "fails the check 'absent_clients'" in "".join(caught.value.__notes__)
    check_method(Personal(), ["absent_clients", "one_model"])


@pytest.mark.parametrize("method", [DoublingInWords(), Passing()])
def test_an_optimizer_step_may_be_declared_or_do_nothing_of_its_own(method):
    check_method(method, ["watches_steps"])


def test_methods_of_one_name_do_not_share_their_runs():
    """The classes here inherit the name of their base; what was computed for one is not taken for another."""
    check_method(Passing(), ["repeatable"])
    check_method(Doubling(), ["repeatable"])
    with pytest.raises(ConformanceError, match="watches_steps"):
        check_method(Doubling(), ["watches_steps"])
