"""What FedLAG's theory says of personal layers, and what it does not say."""

import math

import pytest
import torch

from idiolect.analysis import (
    constant_range,
    convergence_terms,
    cosine_matrix,
    count_conflicts,
    gains_of_angles,
    mean_gain,
    personal_gains,
)
from idiolect.core.errors import InputError, OptionError


def test_the_hand_worked_gains():
    """h = 2, -1: the mean is 1/2, so 2 (2 - 1/2) = 3 and -1 (-1 - 1/2) = 3/2; on average 9/4, their variance."""
    updates = [torch.tensor([2.0]), torch.tensor([-1.0])]
    assert personal_gains(updates).tolist() == [3.0, 1.5]
    assert mean_gain(updates) == 2.25
    assert mean_gain(updates, lr=0.1) == pytest.approx(0.225)


def test_the_gains_are_the_papers_double_sum():
    updates = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double()
    norms, cosines = updates.norm(dim=1), cosine_matrix(updates)
    lemma = [sum(norms[u] * (norms[u] - cosines[u, v] * norms[v]) for v in range(5)) / 5 for u in range(5)]
    assert personal_gains(updates).tolist() == pytest.approx([float(each) for each in lemma], rel=1e-6)


def test_a_gain_is_a_difference_of_losses_to_first_order():
    """f_u(w) = |w - t_u|^2 / 2: after one small step, own minus mean; its second order is the square of the rate."""
    draw, lr = torch.Generator().manual_seed(2), 1e-4
    targets, start = torch.randn(2, 4, 3, generator=draw, dtype=torch.float64)[0], torch.ones(3, dtype=torch.float64)
    grads = start - targets
    own, mean = start - lr * grads, start - lr * grads.mean(0)
    lost = [0.5 * (w - targets).square().sum(1) for w in (mean, own)]
    measured = (lost[0] - lost[1]).tolist()
    assert personal_gains(grads, lr).tolist() == pytest.approx(measured, rel=1e-2, abs=1e-7)
    assert personal_gains(-lr * grads, 1 / lr).tolist() == pytest.approx(measured, rel=1e-2, abs=1e-7)


def test_gains_of_angles_are_those_of_the_updates():
    updates = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double()
    updates[3] = 0
    found = gains_of_angles(cosine_matrix(updates), updates.norm(dim=1))
    assert found.tolist() == pytest.approx(personal_gains(updates).tolist(), rel=1e-6)
    with pytest.raises(InputError, match=r"shape \(5, 5\) and 4 lengths"):
        gains_of_angles(cosine_matrix(updates), torch.ones(4))


def test_the_constant_lies_in_its_range_for_every_admissible_rate_and_reaches_its_ends():
    for epochs in (2, 3, 10):
        low, high = constant_range(0.3, epochs)
        ends = [1 / (2 * math.sqrt(6) * epochs**2 * 0.3), 1 / (6 * epochs * 0.3)]  # of L, at this rate
        for share in (0.001, 0.5, 0.999):
            terms = convergence_terms(0.3, epochs, 1, ends[0] + share * (ends[1] - ends[0]), 1.0, 1.0)
            assert terms.is_admissible
            assert low < terms.constant < high
        reached = [convergence_terms(0.3, epochs, 1, end, 1.0, 1.0).constant for end in ends]
        assert reached == pytest.approx([low, high])
    assert constant_range(0.3, 1) == pytest.approx((-0.09, -0.09))
    with pytest.raises(OptionError, match="epochs 0"):
        constant_range(0.3, 0)


def test_lemma_5_1_fails_for_a_short_update_that_agrees():
    assert personal_gains(torch.tensor([[3.0], [1.0]])).tolist() == [3.0, -1.0]


def test_lemma_5_2_says_nothing_of_conflicts():
    """A layer without a single conflict gains more than one in which all oppose each other."""
    calm, torn = torch.tensor([[9.0], [1.0]]), torch.tensor([[1.0], [-1.0]])
    assert [int(count_conflicts(cosine_matrix(each), 0.0)) for each in (calm, torn)] == [0, 1]
    assert mean_gain(calm) == 16.0 > mean_gain(torn) == 1.0
    for seed in range(20):
        assert mean_gain(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))) >= 0


def test_the_constant_of_theorem_5_3_is_negative_for_every_admissible_rate():
    for epochs in (2, 3, 5, 20, 1000):
        low, high = convergence_terms(1.0, epochs, 1, 2.0, 1.0, 1.0).rates
        assert low < high
        for share in (0.001, 0.5, 0.999):
            terms = convergence_terms(low + share * (high - low), epochs, 1, 2.0, 1.0, 1.0, gain=3.0)
            assert terms.is_admissible
            assert terms.constant < 0
            assert terms.gain == 3 * terms.constant
    low, high = convergence_terms(0.1, 1, 1, 1.0, 1.0, 1.0).rates
    assert high < low  # with one epoch no rate is admissible


def test_the_terms_of_theorem_5_3():
    """E = 2, R = 10, eta = 0.5, L = 1: 4 / (10 * 0.5 * 2), 0.5 * 3, 0.25 * 2 * 1 * 3 and 24 * 4 / 16 - 0.25 * 2."""
    terms = convergence_terms(0.5, 2, 10, 1.0, 4.0, 3.0)
    assert terms[2:6] == pytest.approx((0.4, 1.5, 1.5, 5.5))
    assert terms.rates == pytest.approx((1 / (8 * math.sqrt(6)), 1 / 12))
    assert not terms.is_admissible


def test_what_is_no_update_and_no_rate_is_refused():
    with pytest.raises(InputError, match="one row per client"):
        personal_gains(torch.zeros(3))
    with pytest.raises(OptionError, match="lr is 0"):
        convergence_terms(0.0, 2, 1, 1.0, 1.0, 1.0)
