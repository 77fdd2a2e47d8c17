import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

winograd = pytest.importorskip("idiolect.kernels.winograd", reason="numba is not installed")
from idiolect.kernels import conv_pool as joined  # noqa: E402
from idiolect.kernels.reading import pair  # noqa: E402

LANES, GROUP = winograd.LANES, winograd.TILE_GROUP
MANY = (LANES, LANES + 1, 2 * LANES - 1, 3 * LANES)
POOL = nn.MaxPool2d(2)


def error(x, conv):
    """The largest error of maxima, in parts of the largest of them."""
    with torch.no_grad():
        found = winograd.conv_pool_2x2(x, conv.weight, conv.bias, conv.padding)
        bias = None if conv.bias is None else conv.bias.double()
        true = POOL(F.conv2d(x.double(), conv.weight.double(), bias, padding=conv.padding))
    assert found.shape == true.shape
    return ((found - true).abs().max() / true.abs().max()).item()


@pytest.mark.parametrize(
    ("shape", "outputs"), [((8, 32, 14, 14), 64), ((4, 3, 32, 32), 32), ((8, 32, 12, 12), 64), ((2, 300, 9, 9), 70)]
)
def test_errors_are_those_of_single_precision(shape, outputs):
    torch.manual_seed(0)
    assert error(torch.randn(shape), nn.Conv2d(shape[1], outputs, 5)) < 5e-6


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 5),
    channels=st.sampled_from((1, 2, 3, 4, *MANY)),
    outputs=st.sampled_from((*MANY, 4 * LANES + 3, 9 * LANES)),
    size=st.tuples(st.integers(6, 13), st.integers(8, 2 * LANES + 15)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    bias=st.booleans(),
    layout=st.sampled_from((torch.contiguous_format, torch.channels_last)),
)
def test_maxima_are_those_of_the_convolution(samples, channels, outputs, size, padding, bias, layout):
    conv = nn.Conv2d(channels, outputs, 5, padding=padding, bias=bias).to(memory_format=layout)
    assert error(torch.randn(samples, channels, *size).contiguous(memory_format=layout), conv) < 1e-5


@pytest.mark.parametrize("channels", [3, LANES + 2])
def test_inputs_may_be_parts_of_others(channels):
    whole, conv = torch.randn(8, 2 * channels, 12, 30), nn.Conv2d(channels, LANES, 5)
    assert error(whole[::2, ::2, 1:, ::3], conv) < 1e-5


@pytest.mark.parametrize("channels", [2, LANES])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_lost_and_stays_in_its_tiles(channels, value):
    conv, x = nn.Conv2d(channels, LANES, 5, padding=1), torch.randn(3, channels, 13, 12)
    for row, column in np.ndindex(13, 12):
        bad = x.clone()
        bad[1, channels - 1, row, column] = value
        with torch.no_grad():
            found = winograd.conv_pool_2x2(bad, conv.weight, conv.bias, conv.padding)
            reached = F.max_pool2d(F.conv2d(bad, conv.weight, conv.bias, padding=1), 2)
        assert found[reached.isnan()].isnan().all()
        assert not found[~reached.isfinite()].isfinite().any()
        rows, columns = (slice(max(0, (at + 1) // 2 - 2), (at + 1) // 2 + 1) for at in (row, column))
        found[1, :, rows, columns] = 0  # whose tiles contain it
        assert found.isfinite().all()


def test_kernels_and_biases_that_are_not_numbers_are_not_lost():
    conv, x = nn.Conv2d(LANES, LANES + 1, 5), torch.randn(3, LANES, 12, 12)
    with torch.no_grad():
        conv.weight[2, 1, 3, 4], conv.bias[LANES] = torch.nan, torch.nan
        found = winograd.conv_pool_2x2(x, conv.weight, conv.bias, conv.padding).isnan()
    assert found[:, [2, LANES]].all()
    assert found.sum() == found[:, [2, LANES]].sum()


class Refused(Exception):
    """PyTorch was not asked."""


def conv_pool(conv, pool, x):
    """A convolution and a max pooling as one step."""
    options = [pair(each) for each in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]
    return joined.conv_pool(x, conv.weight, conv.bias, conv.padding, (*options, pool.ceil_mode))


@pytest.fixture
def ways(monkeypatch):
    """Which way a convolution takes."""

    def refuse(*_):
        raise Refused

    monkeypatch.setattr("idiolect.kernels.conv_pool.conv_pool_2x2", refuse)

    def way(conv, pool=POOL, size=(14, 14), samples=8, **given):
        x = torch.randn(samples, conv.in_channels, *size, dtype=conv.weight.dtype, **given)
        try:
            conv_pool(conv, pool, x)
        except Refused:
            return "winograd"
        return "pytorch"

    return way


def test_convolutions_without_gradient_take_this_way_where_it_is_faster(ways):
    with torch.no_grad():
        assert ways(nn.Conv2d(32, 64, 5)) == ways(nn.Conv2d(3, 32, 5, padding=2, bias=False)) == "winograd"
        assert ways(nn.Conv2d(32, 64, 5), nn.MaxPool2d((2, 2), (2, 2), (0, 0), (1, 1))) == "winograd"
        assert ways(nn.Conv2d(32, 64, 5), size=(6, 7), samples=100) == "pytorch"
        assert ways(nn.Conv2d(32, 64, 5), size=(6, 8), samples=GROUP // 2 - 1) == "pytorch"
        assert ways(nn.Conv2d(winograd.FEW_CHANNELS + 1, 64, 5)) == ways(nn.Conv2d(32, LANES - 1, 5)) == "pytorch"
        assert ways(nn.Conv2d(32, 64, 3)) == ways(nn.Conv2d(32, 64, (5, 3))) == "pytorch"
        for pool in (nn.MaxPool2d(3), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True)):
            assert ways(nn.Conv2d(32, 64, 5), pool) == "pytorch"
        assert ways(nn.Conv2d(32, 64, 5).double()) == "pytorch"
        with torch.autocast("cpu", torch.bfloat16):
            assert ways(nn.Conv2d(32, 64, 5)) == "pytorch"


def test_convolutions_with_a_gradient_do_not_take_this_way(ways):
    conv = nn.Conv2d(32, 64, 5)
    assert ways(conv) == "pytorch"
    assert ways(conv.requires_grad_(False)) == "winograd"
    assert ways(conv, requires_grad=True) == "pytorch"
    conv.bias.requires_grad_()
    assert ways(conv) == "pytorch"
    assert conv_pool(conv, POOL, torch.randn(8, 32, 14, 14)).requires_grad


def test_wrong_channels_are_refused_by_pytorch():
    conv = nn.Conv2d(32, 64, 5)
    with torch.no_grad(), pytest.raises(RuntimeError, match="channels"):
        conv_pool(conv, POOL, torch.randn(8, 16, 14, 14))


def test_other_processors_use_pytorch(ways, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with torch.no_grad():
        assert ways(nn.Conv2d(32, 64, 5)) == "pytorch"
