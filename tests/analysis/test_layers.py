"""Depth: upload fractions, learning rates and the mask of the largest changes, with its tie rule."""

import math

import pytest
import torch

from idiolect.analysis import kernel_mask, layer_rates, top_fraction_mask, upload_fractions
from idiolect.analysis.layers import largest, select
from idiolect.core.errors import InputError, OptionError


def by_sorting(change: torch.Tensor, fraction: float) -> list[bool]:
    values = change.abs().flatten().tolist()
    kept = max(1, round(fraction * len(values)))
    if not any(values) or kept == len(values):
        return [True] * len(values)
    chosen = set(sorted(range(len(values)), key=lambda j: (-values[j], j))[:kept])
    return [j in chosen and values[j] > 0 for j in range(len(values))]


def test_upload_fractions_grow_with_depth():
    assert upload_fractions(4) == (0.25, 0.5, 0.75, 1.0)
    assert upload_fractions(1) == (1.0,)
    assert upload_fractions(20)[:3] == (0.1, 0.1, 0.15)
    assert upload_fractions(10, low=0.3, high=0.9)[::3] == (0.3, 0.4, 0.7, 0.9)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.5, 0.4), (0.1, 1.1)])
def test_impossible_fractions_are_refused(low, high):
    with pytest.raises(OptionError, match="0 < low <= high <= 1"):
        upload_fractions(4, low, high)


def test_no_layers_are_refused():
    with pytest.raises(OptionError, match="n_layers is 0"):
        upload_fractions(0)


def test_a_gradient_of_norm_one_half_way_down():
    assert layer_rates(1.0, [1.0, 1.0])[0].item() == pytest.approx(1.34657, abs=5e-6)
    assert layer_rates(0.1, [3.0, 1.0, 2.0, 5.0])[1].item() == pytest.approx(0.134657, abs=5e-7)


def test_rates_follow_the_formula():
    norms = [0.5, 2.0, 10.0]
    expected = [0.01 * (1 + (i + 1) / 3 * math.log(1 + 1 / g)) for i, g in enumerate(norms)]
    assert layer_rates(0.01, norms).tolist() == pytest.approx(expected)
    assert layer_rates(0.01, torch.tensor(norms)).tolist() == pytest.approx(expected)
    assert layer_rates(0.01, [torch.tensor(g) for g in norms]).tolist() == pytest.approx(expected)


def test_a_vanished_gradient_has_a_finite_rate():
    assert layer_rates(1.0, [0.0]).item() == pytest.approx(1 + math.log(1 + 1e8))
    assert layer_rates(1.0, [0.0], max_multiplier=5.0).item() == 5.0


def test_depths_may_be_given():
    assert layer_rates(1.0, [1.0, 1.0], depth=(0.5, 0.5)).tolist() == pytest.approx([1.34657, 1.34657], abs=5e-6)
    with pytest.raises(InputError, match="2 gradient norms and 1 depths"):
        layer_rates(1.0, [1.0, 1.0], depth=(0.5,))


def test_rates_of_many_clients_are_traced_at_once():
    norms = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    norms[0, 0] = 0
    together = torch.func.vmap(lambda row: layer_rates(0.1, list(row.unbind())))(norms)
    torch.testing.assert_close(together, torch.stack([layer_rates(0.1, row) for row in norms]))


@pytest.mark.parametrize("options", [{"floor": 0.0}, {"max_multiplier": 0.5}])
def test_impossible_rate_options_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        layer_rates(1.0, [1.0], **options)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_the_mask_equals_a_stable_sort(fraction, levels, size):
    generator = torch.Generator().manual_seed(levels + size)
    change = torch.randint(-levels, levels + 1, (size,), generator=generator).float()
    assert top_fraction_mask(change, fraction).tolist() == by_sorting(change, fraction)


@pytest.mark.parametrize(("size", "fraction", "kept"), [(1, 0.1, 1), (10, 0.01, 1), (100, 0.1, 10), (7, 0.5, 4)])
def test_exactly_so_many_are_kept(size, fraction, kept):
    assert top_fraction_mask(torch.ones(size), fraction).sum().item() == kept


def test_ties_go_to_the_lowest_flat_index():
    mask = top_fraction_mask(torch.tensor([[1.0, -2.0], [2.0, 2.0]]), 0.5)
    assert mask.tolist() == [[False, True], [True, False]]


def test_a_layer_that_did_not_move_is_uploaded_whole():
    assert top_fraction_mask(torch.zeros(3, 4), 0.1).all()


def test_masks_of_many_clients_are_traced_at_once():
    changes = torch.randint(-3, 4, (6, 4, 5), generator=torch.Generator().manual_seed(1)).float()
    changes[2] = 0
    together = torch.func.vmap(lambda change: top_fraction_mask(change, 0.3))(changes)
    assert torch.equal(together, torch.stack([top_fraction_mask(change, 0.3) for change in changes]))


@pytest.mark.parametrize("fraction", [0.0, 1.1, float("nan")])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(OptionError, match=r"\(0, 1\]"):
        top_fraction_mask(torch.ones(3), fraction)


def test_kernels_send_their_largest_moves_at_least_one_and_never_all():
    """Of 9 elements round(0.9 * 9) = 8 are left out; with all asked for, still one is; one element alone is sent."""
    change = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    for fraction, kept in ((0.1, 1), (0.5, 5), (1.0, 8)):
        mask = kernel_mask(change, fraction)
        assert mask.flatten(2).sum(-1).unique().tolist() == [kept]
        sizes = change.abs().flatten(2)
        for out in range(4):
            chosen = mask.flatten(2)[out, 0]
            assert sizes[out, 0][chosen].min() >= sizes[out, 0][~chosen].max()
    assert kernel_mask(change[..., :1, :1], 0.1).all()
    together = torch.func.vmap(lambda leaf: kernel_mask(leaf, 0.5))(torch.stack([change, -change]))
    assert torch.equal(together[0], kernel_mask(change, 0.5))


def test_a_kernel_mask_needs_kernels_and_a_share():
    with pytest.raises(InputError, match=r"\[outputs, inputs, ...\] is needed"):
        kernel_mask(torch.zeros(2, 2), 0.5)
    with pytest.raises(OptionError, match="fraction is 0"):
        kernel_mask(torch.zeros(2, 2, 3), 0.0)


@pytest.mark.parametrize("count", [1, 40, 99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_way_of_choosing_the_largest_chooses_the_same(dtype, count):
    """With ties, with infinities, along any axis of a stack, and while something is differentiated."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 25, generator=draw).mul(3).round().to(dtype)
    values[0, 0, :2] = torch.inf
    expected = torch.stack([select(row.abs().flatten(), count).view(4, 25) for row in values])
    assert torch.equal(torch.func.vmap(lambda row: largest(row, count))(values), expected)
    turned = torch.func.vmap(lambda row: largest(row.T, count), 2, 2)(values.permute(1, 2, 0)).permute(2, 1, 0)
    assert turned.sum((1, 2)).tolist() == [count] * 3
    assert torch.equal(largest(values[0].clone().requires_grad_(), count), expected[0])
    grad = torch.func.grad(lambda row: (row * largest(row, count)).sum())(values[1].float())
    assert torch.equal(grad, largest(values[1].float(), count).float())
