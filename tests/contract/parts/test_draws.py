"""Models that are drawn anew have the scale of the given ones, and how near they stay can be chosen."""

import numpy as np
import pytest
import torch

from idiolect.contract.parts.draws import draw_like

WEIGHTS = {"w": 0.3 * torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) + 2.0}


@pytest.mark.parametrize("spread", [1.0, 0.5, 0.1])
def test_draws_have_the_mean_and_scale_of_each_tensor_and_stay_as_near_as_is_asked(spread):
    drawn = draw_like(WEIGHTS, np.random.default_rng(1), spread)["w"]
    assert float(drawn.mean()) == pytest.approx(2.0, abs=0.03)
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.05)
    alike = float(torch.corrcoef(torch.stack([drawn.flatten(), WEIGHTS["w"].flatten()]))[0, 1])
    assert alike == pytest.approx(np.sqrt(1 - spread**2), abs=0.05)


def test_draws_follow_from_the_generator_alone():
    one, same, other = (draw_like(WEIGHTS, np.random.default_rng(seed))["w"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
