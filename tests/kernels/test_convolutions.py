import sys

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.kernels import speed_up
from idiolect.kernels.convolutions import conv_one_channel


@pytest.mark.parametrize("channels", [1, 3])
def test_speeding_up_changes_no_result(channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1, stride=2)),
        *(nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 5)),
    )
    x, y = torch.randn(6, channels, 14, 14), torch.arange(6) % 5
    plain, fast = (Task(model, (x, y), classes=5) for _ in range(2))
    speed_up(fast.net.module)
    order = [type(layer).__name__ for layer in fast.net.module]
    order = ["MaxPool2d" if name == "Identity" else name for name in order]  # joined with the convolution before it
    assert order == ["Conv2d", "MaxPool2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "ReLU", "Flatten", "Linear"]
    results = []
    for task in (plain, fast):
        params = {name: leaf.clone().requires_grad_() for name, leaf in task.net.params.items()}
        scored = task.loss(params, {}, Batch(x, y, torch.ones(6)))
        results.append((scored.outputs, scored.features, *torch.autograd.grad(scored.loss, list(params.values()))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [{"padding": 2}, {"padding": (1, 2)}, {"stride": (2, 1)}, {"bias": False}])
def test_products_of_patches_are_convolutions(given):
    conv, x = nn.Conv2d(1, 3, (5, 3), **given), torch.randn(2, 1, 11, 12)
    torch.testing.assert_close(conv_one_channel(conv, x), conv(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("conv", "faster"),
    [
        (nn.Conv2d(1, 4, 3, stride=2, padding=1), True),
        (nn.Conv2d(1, 4, 3, dilation=2), False),
        (nn.Conv2d(1, 4, 3, padding="same"), False),
        (nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(3, 4, 3), False),
    ],
)
def test_convolutions_of_one_channel_become_products(conv, faster):
    speed_up(conv)
    assert ("forward" in vars(conv)) is faster


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
    conv_pool = pytest.importorskip("idiolect.kernels.conv_pool", reason="numba is not installed")
    x = torch.randn(4, conv.in_channels, 9, 11).contiguous(memory_format=layout).requires_grad_()
    inputs = (x, *conv.parameters())
    both = conv_pool.conv_pool(conv, pool, x), pool(conv(x))
    assert type(both[0].grad_fn).__name__ == "ConvPoolBackward"
    assert torch.equal(*both)
    grad = torch.randn_like(both[0]) * (both[0] > 0)
    once = [torch.autograd.grad(each, inputs, grad, retain_graph=True) for each in both]
    second_order = [torch.autograd.grad(each, inputs, grad, create_graph=True) for each in both]
    sums = [sum(leaf.square().sum() for leaf in each) for each in second_order]
    twice = [torch.autograd.grad(each, inputs, materialize_grads=True) for each in sums]
    for ours, pytorch in (once, second_order, twice):
        for a, b in zip(ours, pytorch, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gradients_that_are_not_numbers_are_not_lost_among_the_losers():
    conv_pool = pytest.importorskip("idiolect.kernels.conv_pool", reason="numba is not installed")
    conv, x = nn.Conv2d(32, 2, 3), torch.randn(2, 32, 6, 6)
    maxima = conv_pool.conv_pool(conv, nn.MaxPool2d(2), x)
    grad = torch.zeros_like(maxima)
    grad[1, 1, 0, 1] = torch.nan
    weight, bias = torch.autograd.grad(maxima, (conv.weight, conv.bias), grad)
    assert weight[1].isnan().all()
    assert bias.isnan().tolist() == [False, True]
    assert not weight[0].any()


def test_convolutions_and_maxima_are_one_step_where_that_is_faster(monkeypatch):
    def steps(*layers):
        module = nn.Sequential(*layers)
        speed_up(module)
        return [type(each).__name__ for each in module]

    pytest.importorskip("idiolect.kernels.conv_pool", reason="numba is not installed")
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
    monkeypatch.setitem(sys.modules, "idiolect.kernels.conv_pool", None)
    assert steps(long(), nn.MaxPool2d(2)) == ["Conv2d", "MaxPool2d"]
