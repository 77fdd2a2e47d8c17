import sys

import pytest
import torch
from torch import nn

from idiolect import Batch, Task
from idiolect.kernels import speed_up
from idiolect.kernels.convolutions import conv_one_channel, rearrange
from idiolect.kernels.reading import pair
from idiolect.kernels.tracing import trace


def operations(module):
    """The operations of a module after it was rearranged."""
    graph = trace(module)
    rearrange(graph, module)
    calls = [node for node in graph.nodes if node.op.startswith("call")]
    return [
        type(module[int(node.target)]).__name__ if node.op == "call_module" else node.target.__name__ for node in calls
    ]


def options(pool):
    """The options of a max pooling as kernels take them."""
    return (*(pair(each) for each in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)), pool.ceil_mode)


@pytest.mark.parametrize("channels", [1, 3])
def test_speeding_up_changes_no_result(channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1, stride=2)),
        *(nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 5)),
    )
    x, y = torch.randn(6, channels, 14, 14), torch.arange(6) % 5
    plain, fast = (Task(model, (x, y), classes=5) for _ in range(2))
    speed_up(fast)
    assert "forward" in vars(fast.net.module)
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
    products = conv_one_channel(x, conv.weight, conv.bias, conv.stride, conv.padding)
    torch.testing.assert_close(products, conv(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("conv", "faster"),
    [
        (nn.Conv2d(1, 4, 3, stride=2, padding=1), True),
        (nn.Conv2d(1, 4, 3, dilation=2), False),
        (nn.Conv2d(1, 4, 3, padding="same"), False),
        (nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), True),
        (nn.Conv2d(3, 4, 3), False),
    ],
)
def test_convolutions_of_one_channel_become_products(conv, faster):
    assert ("conv_one_channel" in operations(conv)) is faster


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
    both = conv_pool.conv_pool(x, conv.weight, conv.bias, conv.padding, options(pool)), pool(conv(x))
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
    maxima = conv_pool.conv_pool(x, conv.weight, conv.bias, conv.padding, options(nn.MaxPool2d(2)))
    grad = torch.zeros_like(maxima)
    grad[1, 1, 0, 1] = torch.nan
    weight, bias = torch.autograd.grad(maxima, (conv.weight, conv.bias), grad)
    assert weight[1].isnan().all()
    assert bias.isnan().tolist() == [False, True]
    assert not weight[0].any()


def test_convolutions_and_maxima_are_one_step_where_that_is_faster(monkeypatch):
    pytest.importorskip("idiolect.kernels.conv_pool", reason="numba is not installed")
    steps = lambda *layers: operations(nn.Sequential(*layers))  # noqa: E731
    long = lambda **given: nn.Conv2d(32, 4, 3, **given)  # noqa: E731
    assert steps(long(), nn.ReLU(), nn.MaxPool2d(2)) == ["conv_pool", "relu"]
    assert steps(nn.Conv2d(32, 32, 3), nn.MaxPool2d(2), long(), nn.MaxPool2d(2)) == ["conv_pool"] * 2
    assert steps(nn.Conv2d(3, 4, 5, padding=1), nn.MaxPool2d(2)) == ["conv_pool"]
    assert steps(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2)) == ["conv_one_channel", "max_pool2d"]
    assert steps(long(), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)) == [
        "conv2d",
        "BatchNorm2d",
        "max_pool2d",
        "relu",
    ]
    assert steps(long(stride=2), nn.MaxPool2d(2)) == ["conv2d", "max_pool2d"]
    assert steps(long(), nn.MaxPool2d(3, stride=1)) == ["conv2d", "max_pool2d"]
    assert steps(long(), nn.MaxPool2d(1)) == ["conv2d", "max_pool2d"]
    again, inner = nn.Conv2d(32, 32, 3), nn.Sequential(long(), nn.MaxPool2d(2))
    assert steps(again, nn.MaxPool2d(2), again) == ["conv_pool", "conv2d"]
    assert steps(inner) == ["conv_pool"]
    monkeypatch.setitem(sys.modules, "idiolect.kernels.conv_pool", None)
    assert steps(long(), nn.MaxPool2d(2)) == ["conv2d", "max_pool2d"]
