"""The device that is not there."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.errors import ConformanceError
from idiolect.engines import Loop
from idiolect.methods.fedprox import FedProx
from idiolect.testing import check_method, play, require_equal, tiny_plan
from idiolect.testing.disturbances import WorkersHere
from idiolect.testing.engine_checks import play_elsewhere
from idiolect.testing.placement import PlacedTensor, elsewhere

Stacks = partial(WorkersHere, count=1, chunk=3)


@dataclass(frozen=True)
class Misplaced(FedProx):
    """Makes a tensor where it happens to be."""

    def prepare(self, ctx, work):
        work = super().prepare(ctx, work)
        return {
            **work,
            "params": tree.map(lambda leaf: leaf + leaf.new_zeros(leaf.shape, device="cpu"), work["params"]),
        }


@dataclass(frozen=True)
class MisplacedInStacks(FedProx):
    """Makes one only where clients are stacked."""

    def step(self, ctx, work, batch):
        after = super().step(ctx, work, batch)
        if type(batch.x) is PlacedTensor:  # one client alone
            return after
        return {**after, "params": tree.map(lambda leaf: leaf + torch.zeros(leaf.shape), after["params"])}


@pytest.mark.parametrize(("method", "make"), [("fedavg", Loop), ("pfedhn", Loop), ("ditto", Stacks), ("fedem", Stacks)])
def test_numbers_are_those_of_the_cpu(method, make):
    usual = play(tiny_plan(method, rounds=2, epochs=1, unseen=1), make)
    require_equal(usual, play_elsewhere(methods.build(method), make, batch_size=4), "elsewhere", 1e-5)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (Misplaced, r".* mixes tensors of the run's device with"),
        (MisplacedInStacks, r"clients that are stacked do not keep to it: .* mixes tensors of the run's device with"),
    ],
)
def test_a_tensor_in_another_place_breaks_the_contract(method, problem):
    with pytest.raises(ConformanceError, match=f"fails the check 'devices': {problem}"):
        check_method(method(), ["devices"])


def test_tensors_without_values_stay_what_they_are():
    with elsewhere() as device:
        assert type(torch.empty(2, device="meta") + 1) is torch.Tensor
        assert isinstance(torch.empty(2, device=device), PlacedTensor)
