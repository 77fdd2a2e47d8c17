import sys

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.kernels import convolutions as kernels
from idiolect.kernels.convolutions import by_rows, faster_way, speed_up, unfolded


@pytest.mark.parametrize("channels", [1, 3])
def test_preferring_speed_changes_no_result(channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1, stride=2)),
        *(nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 5)),
    )
    x, y = torch.randn(6, channels, 14, 14), torch.arange(6) % 5
    plain, fast = (Task(model, (x, y), classes=5) for _ in range(2))
    speed_up(fast.net.module)
    order = [type(each).__name__ for each in fast.net.module]
    order = ["MaxPool2d" if each == "Identity" else each for each in order]  # joined with the convolution before it
    assert order == ["Conv2d", "MaxPool2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "ReLU", "Flatten", "Linear"]
    found = []
    for task in (plain, fast):
        params = {name: leaf.clone().requires_grad_() for name, leaf in task.net.params.items()}
        scored = task.loss(params, {}, Batch(x, y, torch.ones(6)))
        found.append((scored.outputs, scored.features, *torch.autograd.grad(scored.loss, list(params.values()))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [{"padding": 2}, {"padding": "same"}, {"stride": (2, 1)}, {"bias": False}])
def test_unfolded_convolutions_are_convolutions(given):
    conv, x = nn.Conv2d(1, 3, (5, 3), **given), torch.randn(2, 1, 11, 12)
    torch.testing.assert_close(unfolded(conv, x, conv.weight, conv.bias), conv(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"padding": (2, 1)}, {"bias": False}])
def test_convolutions_by_rows_are_convolutions_twice_differentiable(given, monkeypatch):
    monkeypatch.setattr(kernels, "LONG_ROW", 9)
    conv, x = nn.Conv2d(3, 2, (4, 3), dtype=torch.float64, **given), torch.randn(2, 3, 6, 7, dtype=torch.float64)
    inputs = (x.requires_grad_(), *conv.parameters())

    def ours(x, weight, bias=None):
        return by_rows(conv, x, weight, bias)

    assert torch.equal(ours(*inputs), conv(x))
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs)


def test_convolutions_by_rows_leave_short_rows_and_half_precision_to_the_library():
    long, short = nn.Conv2d(64, 2, 3), nn.Conv2d(4, 2, 3)
    assert type(by_rows(long, torch.randn(2, 64, 6, 7), long.weight, long.bias).grad_fn).__name__ == "ByRowsBackward"
    assert "Convolution" in type(by_rows(short, torch.randn(2, 4, 6, 7), short.weight, short.bias).grad_fn).__name__
    conv, x = long, torch.randn(2, 64, 6, 7)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = by_rows(conv, x, conv.weight, conv.bias)
    assert outputs.dtype == torch.bfloat16
    assert torch.autograd.grad(outputs.sum(), conv.weight)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("conv", "way"),
    [
        (nn.Conv2d(1, 4, 3, stride=2, padding="valid"), unfolded),
        (nn.Conv2d(1, 4, 3, dilation=2), None),
        (nn.Conv2d(64, 4, 3, padding=1), by_rows),
        (nn.Conv2d(64, 4, 3, stride=2), None),
        (nn.Conv2d(64, 4, 3, padding="same"), None),
        (nn.Conv2d(64, 64, 3, groups=64), None),
    ],
)
def test_convolutions_are_computed_in_the_way_that_is_faster(conv, way, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert faster_way(conv) is way
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert faster_way(conv) is (way if way is unfolded else None)


@pytest.mark.parametrize(
    ("conv", "pool"),
    [
        (nn.Conv2d(32, 5, 3), nn.MaxPool2d(2)),
        (nn.Conv2d(16, 3, (2, 5), bias=False), nn.MaxPool2d((3, 2), ceil_mode=True)),
        (nn.Conv2d(64, 3, 1), nn.MaxPool2d(2, padding=1)),
        (nn.Conv2d(3, 7, 5, padding=(2, 1)), nn.MaxPool2d(3)),
        (nn.Conv2d(13, 6, (3, 9), padding=4), nn.MaxPool2d(2)),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_and_its_maxima_as_one_have_the_same_gradients_and_second_ones(conv, pool, layout):
    pooled = pytest.importorskip("idiolect.kernels.pooled", reason="numba is not installed")
    x = torch.randn(4, conv.in_channels, 9, 11).contiguous(memory_format=layout).requires_grad_()
    inputs = (x, *conv.parameters())
    both = pooled.conv_pool(conv, pool, x, conv.weight, conv.bias), pool(conv(x))
    assert type(both[0].grad_fn).__name__ == "ConvPoolBackward"
    assert torch.equal(*both)
    slope = torch.randn_like(both[0]) * (both[0] > 0)
    once = [torch.autograd.grad(each, inputs, slope, retain_graph=True) for each in both]
    kept = [torch.autograd.grad(each, inputs, slope, create_graph=True) for each in both]
    sums = [sum(leaf.square().sum() for leaf in each) for each in kept]
    twice = [torch.autograd.grad(each, inputs, materialize_grads=True) for each in sums]
    for ours, library in (once, kept, twice):
        for a, b in zip(ours, library, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gradients_that_are_not_numbers_are_not_lost_among_the_losers():
    pooled = pytest.importorskip("idiolect.kernels.pooled", reason="numba is not installed")
    conv, x = nn.Conv2d(32, 2, 3), torch.randn(2, 32, 6, 6)
    maxima = pooled.conv_pool(conv, nn.MaxPool2d(2), x, conv.weight, conv.bias)
    slope = torch.zeros_like(maxima)
    slope[1, 1, 0, 1] = torch.nan
    weight, bias = torch.autograd.grad(maxima, (conv.weight, conv.bias), slope)
    assert weight[1].isnan().all()
    assert bias.isnan().tolist() == [False, True]
    assert not weight[0].any()


def test_convolutions_and_maxima_are_one_step_where_that_is_faster(monkeypatch):
    def steps(*layers):
        module = nn.Sequential(*layers)
        speed_up(module)
        return [type(each).__name__ for each in module]

    pytest.importorskip("idiolect.kernels.pooled", reason="numba is not installed")
    long = lambda **given: nn.Conv2d(32, 4, 3, **given)  # noqa: E731
    assert steps(long(), nn.ReLU(), nn.MaxPool2d(2)) == ["Conv2d", "Identity", "ReLU"]
    assert steps(long(), nn.MaxPool2d(2), long(), nn.MaxPool2d(2)) == ["Conv2d", "Identity"] * 2
    assert steps(nn.Conv2d(3, 4, 5, padding=1), nn.MaxPool2d(2)) == ["Conv2d", "Identity"]
    assert steps(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2)) == ["Conv2d", "MaxPool2d"]
    assert steps(long(stride=2), nn.MaxPool2d(2)) == ["Conv2d", "MaxPool2d"]
    assert steps(long(), nn.MaxPool2d(3, stride=1)) == ["Conv2d", "MaxPool2d"]
    assert steps(long(), nn.MaxPool2d(1)) == ["Conv2d", "MaxPool2d"]
    again, inner = nn.Conv2d(32, 32, 3), nn.Sequential(long(), nn.MaxPool2d(2))
    assert steps(again, nn.MaxPool2d(2), again) == ["Conv2d", "MaxPool2d", "Conv2d"]
    assert steps(inner) == ["Sequential"]
    assert [type(each).__name__ for each in inner] == ["Conv2d", "MaxPool2d"]
    monkeypatch.setitem(sys.modules, "idiolect.kernels.pooled", None)
    assert steps(long(), nn.MaxPool2d(2)) == ["Conv2d", "MaxPool2d"]
