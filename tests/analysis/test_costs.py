"""pFedGate's table 5 as a calculator."""

import pytest

from idiolect.analysis import compare_costs, union_share
from idiolect.core.errors import OptionError


def test_the_papers_examples():
    """s = 0.5, a gate of 5 %, q = .67, k = 3: 1.1 d, 0.55 d, 0.67 d, 1.05 d beside 2 d, d, d and d; FedEM 6 d, 3 d."""
    costs = compare_costs(1000, 50, participants=10, clients=100)
    gate, plain, several = costs["pfedgate"], costs["fedavg"], costs["fedem"]
    assert (gate.train, gate.infer, gate.client_traffic, gate.client_disk) == pytest.approx((1100, 550, 670, 1050))
    assert (plain.train, plain.infer, plain.client_traffic, plain.client_disk) == (2000, 1000, 1000, 1000)
    assert several == (6000, 1000, 1, 3000, 30_000, 3000, 3000, 3000)
    hyper = costs["pfedhn"]  # (0.25 |C| + 100) |C_s| and 25 |C| + 0.25 |C|^2
    assert (hyper.server, hyper.server_disk) == ((25 + 100) * 10, 25 * 100 + 0.25 * 100**2)


def test_one_client_alone_unless_it_is_said():
    costs = compare_costs(1000, 50)
    assert (costs["fedavg"].server_traffic, costs["fedem"].train) == (1000, 2 * 3 * 1000)
    assert (costs["pfedhn"].server, costs["pfedhn"].server_disk) == (100 + 1 / 4, 100 / 4 + 1 / 4)


def test_the_share_that_is_sent_is_that_of_the_union():
    """1 - 0.5 x 0.8 x 0.9 = 0.64; one batch sends its own share, a whole model everything."""
    assert union_share([0.5, 0.2, 0.1]) == pytest.approx(0.64)
    assert (union_share([0.5]), union_share([0.3, 1.0]), union_share([])) == (0.5, 1.0, 0.0)
    with pytest.raises(OptionError, match="probabilities"):
        union_share([0.5, 1.5])


def test_a_gate_larger_than_what_it_saves_costs_more_than_fedavg():
    assert compare_costs(256_830, 308_400)["pfedgate"].train > compare_costs(256_830, 308_400)["fedavg"].train


@pytest.mark.parametrize("wrong", [{"s": 0.0}, {"sent": 1.2}, {"components": 0}, {"gate_parameters": -1}])
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        compare_costs(**{"parameters": 10, "gate_parameters": 1, **wrong})
