"""Neurons' mean outputs, and entropies by nearest neighbours."""

import math

import pytest
import torch

from idiolect.analysis import neighbour_entropy, neuron_means
from idiolect.core.errors import InputError, OptionError

DRAW = torch.Generator().manual_seed(0)


def test_a_channel_is_averaged_over_samples_and_positions():
    maps = torch.arange(16.0).reshape(2, 2, 2, 2)
    assert neuron_means(maps).tolist() == [
        (0 + 1 + 2 + 3 + 8 + 9 + 10 + 11) / 8,
        (4 + 5 + 6 + 7 + 12 + 13 + 14 + 15) / 8,
    ]


def test_the_hand_worked_entropy():
    """0, 1, 3 with k = 1: distances 1, 1, 2; psi(3) - psi(1) = 1 + 1/2; so 1.5 + ln 2 + (ln 2) / 3."""
    found = neighbour_entropy(torch.tensor([0.0, 1.0, 3.0]), k=1)
    assert float(found) == pytest.approx(1.5 + math.log(2) * 4 / 3)


def test_the_second_neighbour():
    """0, 1, 3 with k = 2: distances 3, 2, 3; psi(3) - psi(2) = 1/2."""
    found = neighbour_entropy(torch.tensor([0.0, 1.0, 3.0]), k=2)
    assert float(found) == pytest.approx(0.5 + math.log(2) + (math.log(3) * 2 + math.log(2)) / 3)


def test_it_estimates_the_entropies_of_known_densities_column_by_column():
    normal, uniform = torch.randn(2000, generator=DRAW), 4 * torch.rand(2000, generator=DRAW)
    found = neighbour_entropy(torch.stack([normal, uniform, 10 * normal], 1))
    wanted = [0.5 * math.log(2 * math.pi * math.e), math.log(4), 0.5 * math.log(2 * math.pi * math.e) + math.log(10)]
    assert found.tolist() == pytest.approx(wanted, abs=0.08)
    assert found[0] == neighbour_entropy(normal)


def test_equal_numbers_have_no_density():
    assert float(neighbour_entropy(torch.ones(5))) == -math.inf


def test_bad_input():
    with pytest.raises(OptionError, match=r"k in \[1, 2\]"):
        neighbour_entropy(torch.zeros(3), k=3)
    with pytest.raises(InputError, match="finite"):
        neighbour_entropy(torch.tensor([0.0, math.nan]))
    with pytest.raises(InputError, match="samples and neurons"):
        neuron_means(torch.zeros(3))
