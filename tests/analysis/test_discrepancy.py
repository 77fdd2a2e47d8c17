"""The maximum mean discrepancy of two samples."""

import math

import pytest
import torch

from idiolect.analysis.discrepancy import discrepancy

BANDWIDTHS = (10.0, 15.0)


def test_the_discrepancy_is_the_double_sum_over_pairs_and_ignores_padding():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, 2, generator=draw, dtype=torch.float64) for _ in range(2))

    def k(x, y):
        return sum(math.exp(-float((x - y).square().sum()) / (2 * s)) for s in BANDWIDTHS)

    pairs = [k(a[l], a[m]) + k(b[l], b[m]) - 2 * k(a[l], b[m]) for l in range(3) for m in range(3)]  # noqa: E741
    assert discrepancy(a, b, torch.ones(3).double(), BANDWIDTHS).item() == pytest.approx(sum(pairs) / 9)
    padded = [torch.cat([sample, 9 * torch.ones(2, 2)]) for sample in (a, b)]
    assert discrepancy(*padded, torch.tensor([1.0, 1, 1, 0, 0]).double(), BANDWIDTHS).item() == pytest.approx(
        sum(pairs) / 9
    )
    assert discrepancy(a, a, torch.ones(3).double(), BANDWIDTHS).item() == pytest.approx(0.0, abs=1e-12)
