"""The device that is not there."""

from dataclasses import dataclass

import pytest

from idiolect.contract import methods
from idiolect.core import tree
from idiolect.core.errors import ConformanceError
from idiolect.methods.fedprox import FedProx
from idiolect.testing import check_method, play, require_equal, tiny_plan
from idiolect.testing.engine_checks import play_elsewhere


@dataclass(frozen=True)
class Misplaced(FedProx):
    """Makes a tensor where it happens to be."""

    def prepare(self, ctx, work):
        work = super().prepare(ctx, work)
        return {
            **work,
            "params": tree.map(lambda leaf: leaf + leaf.new_zeros(leaf.shape, device="cpu"), work["params"]),
        }


@pytest.mark.parametrize("method", ["fedavg", "ditto", "pfedhn"])
def test_numbers_are_those_of_the_cpu(method):
    usual = play(tiny_plan(method, rounds=2, epochs=1, unseen=1))
    require_equal(usual, play_elsewhere(methods.build(method)), "elsewhere", 1e-5)


def test_a_tensor_in_another_place_breaks_the_contract():
    with pytest.raises(ConformanceError, match=r"fails the check 'devices': .* mixes tensors of the run's device with"):
        check_method(Misplaced(), ["devices"])
