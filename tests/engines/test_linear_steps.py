"""Steps that make sums of parameters and gradients are taken in place, all others as they are written."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect.contract import Method, Phase, tree
from idiolect.contract.slots import private, zeros_like_params
from idiolect.engines import stacking
from idiolect.engines.client_round import train
from idiolect.engines.slots import first_server
from idiolect.task.optimizers import SGD
from idiolect.task.task import Task
from idiolect.testing import tiny_plan


class Own(nn.Module):
    """A dense network as people write it."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x.flatten(1)))))


def run_both(method, monkeypatch, **training):
    """A round of some clients, one by one and stacked; and how many steps each try took in place."""
    taken, take = [], stacking.take_steps

    def spy(*args):
        work, steps = take(*args)
        taken.append(steps)
        return work, steps

    monkeypatch.setattr(stacking, "take_steps", spy)
    torch.manual_seed(0)
    plan = tiny_plan(method, **training)
    task = Task(Own(), plan.tasks[0].example, classes=3)
    plan = replace(plan, tasks=(task,) * len(plan.tasks))
    ids, server = plan.participants(0), first_server(plan.server(0))
    message = plan.method.download(plan.server(0), server, ids)
    stacked = dict(stacking.train_stack(plan, 0, dict.fromkeys(ids), message, 32))
    alone = {index: train(plan, index, 0, None, message.of(index)) for index in ids}
    return stacked, alone, taken


def assert_equal(stacked, alone):
    for index, outcome in alone.items():
        other = stacked[index]
        assert not other.unstacked
        torch.testing.assert_close(other.state, outcome.state, rtol=1e-4, atol=1e-6)
        assert (other.upload is None) == (outcome.upload is None)
        if outcome.upload is not None:
            torch.testing.assert_close(other.upload.slots, outcome.upload.slots, rtol=1e-4, atol=1e-6)
        assert (other.steps, other.samples, other.effort) == (outcome.steps, outcome.samples, outcome.effort)
        assert other.loss == pytest.approx(outcome.loss, rel=1e-5, nan_ok=True)


METHODS = ["fedavg", "fedprox", "ditto", "scaffold", "pfedme", "lgmix", "lgmix(centered=true)", "fedrep"]
SGDS = [SGD(), SGD(momentum=0.9), SGD(weight_decay=0.1), SGD(momentum=0.5, weight_decay=0.1)]


@pytest.mark.parametrize("method", METHODS)
def test_steps_that_make_sums_are_taken_in_place(method, monkeypatch):
    stacked, alone, taken = run_both(method, monkeypatch, batch_size=4, epochs=2)
    assert_equal(stacked, alone)
    assert taken
    assert 0 not in taken


@pytest.mark.parametrize("optimizer", SGDS[1:])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "scaffold"])
def test_momentum_and_weight_decay_are_sums_too(method, optimizer, monkeypatch):
    stacked, alone, taken = run_both(method, monkeypatch, batch_size=4, optimizer=optimizer)
    assert_equal(stacked, alone)
    assert 0 not in taken


@pytest.mark.parametrize("method", ["flayer(fedavg)", "flayer(ditto)", "fedlag(flayer(ditto))"])
def test_a_step_that_measures_the_gradient_is_traced_and_those_after_it_are_not(method, monkeypatch):
    stacked, alone, taken = run_both(method, monkeypatch, batch_size=4, epochs=2)
    assert_equal(stacked, alone)
    assert 0 in taken
    assert sum(taken) > taken.count(0)


@pytest.mark.parametrize("method", ["fedrod", "apfl", "perfedavg", "pfedgate(s=0.5)"])
def test_other_steps_are_left_as_they_are(method, monkeypatch):
    stacked, alone, _ = run_both(method, monkeypatch, batch_size=4)
    assert_equal(stacked, alone)


@dataclass(frozen=True)
class Curious(Method):
    """FedAvg that does with its own slot, beside the gradient, what `turn` says."""

    turn: str = ""

    @property
    def slots(self):
        return {**super().slots, "own": private(zeros_like_params)}

    def phases(self, ctx):
        return (Phase(self.turned, slots=("params",)),)

    def turned(self, ctx, work, batch):
        grad = ctx.grad(work, "params", batch)
        after = ctx.optimize(work, "params", grad, batch)
        before, own = work["params"], work["own"]
        if self.turn == "kept":  # the parameters before the step
            own = before
        if self.turn == "swapped":
            after, own = {**after, "params": tree.mix(own, after["params"], 0.1)}, before
        if self.turn == "squared":
            own = tree.map(torch.mul, before, before)
        if self.turn == "third" and ctx.step == 2:
            own = tree.add(own, before)
        if self.turn == "loss":  # how far it moves depends on the loss
            after = {**after, "params": tree.add(before, grad.tree, -0.1 * grad.scored.loss)}
        if self.turn == "twice":
            after = ctx.optimize(after, "params", ctx.grad(after, "params", batch), batch)
        if self.turn == "stale":  # a second gradient, and the values before the first
            after = ctx.optimize(after, "params", ctx.grad(after, "params", batch), batch)
            after = {**after, "params": tree.mix(before, after["params"], 0.5)}
        if self.turn == "in place":
            after = {**after, "params": tree.map(lambda leaf: leaf.clone().mul_(0.5), after["params"])}
        if self.turn == "random walk":
            after = {**after, "params": tree.map(torch.tanh, after["params"])}
        return {**after, "own": own}


@pytest.mark.parametrize(
    ("turn", "in_place"),
    [
        *(("", True), ("kept", True), ("swapped", True), ("third", True), ("twice", True)),
        *(("squared", False), ("loss", False), ("stale", False), ("in place", False), ("random walk", False)),
    ],
)
def test_whatever_a_step_does_the_result_is_that_of_the_loop(turn, in_place, monkeypatch):
    stacked, alone, taken = run_both(Curious(turn=turn), monkeypatch, batch_size=4, epochs=2)
    assert_equal(stacked, alone)
    assert (0 not in taken) == in_place


def test_without_compiled_kernels_steps_are_taken_in_place_too(monkeypatch):
    from idiolect.kernels.dense import Dense

    find = stacking.find_dense
    monkeypatch.setattr(stacking, "find_dense", lambda task: Dense(find(task).operations))
    stacked, alone, taken = run_both("scaffold", monkeypatch, batch_size=4)
    assert_equal(stacked, alone)
    assert 0 not in taken


def test_inputs_that_do_not_fit_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr("idiolect.kernels.dense_compiled.CompiledDense.accepts", lambda *_: False)
    stacked, alone, taken = run_both("fedprox", monkeypatch, batch_size=4)
    assert_equal(stacked, alone)
    assert set(taken) == {0}
