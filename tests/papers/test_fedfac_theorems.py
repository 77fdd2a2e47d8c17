"""FedSplit's theorems, numerically: the network of equation 4, trained as section 3.2 says, keeps to them."""

import math

import pytest
import torch

from idiolect.analysis import relu_kernel, split_bound, split_rate

OWNERS = torch.tensor([0, 0, 0, 1, 1, 1])
LR, STEPS, WIDTH = 0.02, 3, 20_000


def problem(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 8, generator=draw, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True), torch.randn(6, generator=draw, dtype=torch.float64), draw


def train(x, y, draw, rounds):
    """The errors before the first and after every round; shared and personal units, sums over a client's samples."""
    personal = torch.randn(2, WIDTH, 8, generator=draw, dtype=torch.float64)
    shared = torch.randn(WIDTH, 8, generator=draw, dtype=torch.float64)
    signs = torch.randint(0, 2, (2, WIDTH), generator=draw).double() * 2 - 1

    def outputs(own, common, inputs):
        return ((inputs @ own.T).relu() @ signs[0] + (inputs @ common.T).relu() @ signs[1]) / math.sqrt(WIDTH)

    def errors():
        return torch.cat([y[OWNERS.eq(c)] - outputs(personal[c], shared, x[OWNERS.eq(c)]) for c in range(2)])

    found = [errors()]
    for _ in range(rounds):
        moves = []
        for c in range(2):
            own, common, inputs, labels = personal[c], shared, x[OWNERS.eq(c)], y[OWNERS.eq(c)]
            for _ in range(STEPS):
                error = labels - outputs(own, common, inputs)
                slopes = [
                    ((sign[:, None] * (inputs @ part.T >= 0).double().T) * error) @ inputs / math.sqrt(WIDTH)
                    for sign, part in zip(signs, (own, common), strict=True)
                ]
                own, common = own + LR * slopes[0], common + LR * slopes[1]
            personal[c] = own
            moves.append(common - shared)
        shared = shared + sum(moves) / 2
        found.append(errors())
    return torch.stack(found)


def test_theorem_1_the_errors_shrink_at_least_as_fast_as_the_rate_says():
    x, y, draw = problem(0)
    rate = split_rate(x, OWNERS, LR, STEPS)
    squares = train(x, y, draw, rounds=30).square().sum(1)
    bound = squares[0] * rate.factor ** torch.arange(31.0, dtype=torch.float64)
    assert (squares <= bound * (1 + 1e-9)).all()
    assert squares[30] < 0.9 * squares[0]
    assert rate.factor < rate.fedavg


def test_a_round_moves_the_errors_by_both_kernels():
    """By -(lr G / C H^s + lr G H^p) errors to first order in lr; the width and the steps leave some percent."""
    x, y, draw = problem(1)
    kernel = LR * STEPS * (relu_kernel(x) / 2 + relu_kernel(x, OWNERS))
    before, after = train(x, y, draw, rounds=1)
    expected = -kernel @ before
    assert (after - before - expected).norm() < 0.05 * expected.norm()


def test_theorem_2_more_clients_on_the_same_samples_have_a_larger_bound():
    x, y, _ = problem(2)
    few, many = (split_bound(x, y, owners) for owners in ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]))
    assert few < many
    both = relu_kernel(x) + relu_kernel(x, OWNERS)
    assert few == pytest.approx(2 * math.sqrt(2 / 3 * float(y @ torch.linalg.inv(both) @ y)))
