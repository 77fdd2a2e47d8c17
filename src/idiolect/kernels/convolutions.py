"""The same results by faster ways: rearrangements of a module that engines make on their own copy of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Kernel rows of fewer numbers (width times channels) are left to the library, whose gradient is faster for them.
LONG_ROW = 128


def speed_up(module: nn.Module) -> None:
    """Rearrange a module for a CPU: images with their channels last in memory, ReLU after the pooling that followed it,
    and convolutions, or their gradients, as products of matrices where those are faster. Parameters, buffers and their
    names stay as they are."""
    if any(isinstance(each, nn.Conv2d) for each in module.modules()):
        module.register_forward_pre_hook(channels_last)
    for each in module.modules():
        if type(each) is nn.Sequential:
            each._modules = dict(pooled_first(list(each._modules.items())))
        if type(each) is nn.Conv2d and (way := faster_way(each)):
            each._conv_forward = partial(way, each)  # type: ignore[method-assign]
    if type(module) is nn.Sequential:  # an inner one's steps may be called one by one, too
        module._modules = dict(joined(list(module._modules.items())))


def channels_last(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A batch of images in the memory format that convolutions like best."""
    return tuple(
        each.contiguous(memory_format=torch.channels_last) if isinstance(each, Tensor) and each.ndim == 4 else each
        for each in inputs
    )


def faster_way(conv: nn.Conv2d) -> Callable[..., Tensor] | None:
    """The function that computes a convolution faster than the library."""
    if not is_usual(conv):
        return None
    if conv.in_channels == 1:
        return unfolded
    return by_rows if moves_by_one(conv) and is_narrow() else None


def is_usual(conv: nn.Conv2d) -> bool:
    """Whether every kernel sees all channels of neighbouring places, and zeros around the image."""
    return (conv.groups, conv.dilation, conv.padding_mode) == (1, (1, 1), "zeros")


def moves_by_one(conv: nn.Conv2d) -> bool:
    """Whether kernels move by one place, over an image whose padding is given in numbers."""
    return conv.stride == (1, 1) and not isinstance(conv.padding, str)


def is_narrow() -> bool:
    """Whether this processor has AVX2 but not AVX-512, with which the library's own gradients are faster."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


def pooled_first(steps: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Steps of a sequence with a ReLU and a maximum after it exchanged, which leaves a fraction of the ReLU's work:
    max(relu(x)) = relu(max(x)), and so are the gradients."""
    for at, ((_, first), (_, second)) in enumerate(pairwise(steps)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            return [*steps[:at], steps[at + 1], steps[at], *pooled_first(steps[at + 2 :])]
    return steps


def joined(steps: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Steps of a sequence with a convolution and the maximum after it as one step, where numba is installed; what the
    convolution gives changes, so it must not be a step twice."""
    once = {conv for conv, times in Counter(step for _, step in steps).items() if times == 1}
    result = list(steps)
    for at, ((_, conv), (name, pool)) in enumerate(pairwise(steps)):
        if conv in once and type(conv) is nn.Conv2d and type(pool) is nn.MaxPool2d and can_join(conv, pool):
            try:
                from .pooled import conv_pool
            except ImportError:
                return steps
            conv._conv_forward = partial(conv_pool, conv, pool)  # type: ignore[method-assign]
            result[at + 1] = (name, nn.Identity())
    return result


def can_join(conv: nn.Conv2d, pool: nn.MaxPool2d) -> bool:
    """Whether the gradient of a convolution is faster if only what won in the pooling is looked at."""
    disjoint = pool.stride == pool.kernel_size and pool.kernel_size not in (1, (1, 1)) and not pool.return_indices
    return disjoint and is_usual(conv) and moves_by_one(conv) and conv.in_channels > 1


def unfolded(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of one channel as one product of all patches, [kernel, samples * places], with the kernels;
    channels come last in memory. The library's own gradient of such kernels is several times slower.

    >>> conv, x = nn.Conv2d(1, 2, 3, stride=2, padding=1), torch.rand(4, 1, 8, 8)
    >>> torch.allclose(unfolded(conv, x, conv.weight, conv.bias), conv(x), atol=1e-6)
    True
    """
    (height, width), (down, right) = weight.shape[2:], conv.stride
    padded = F.pad(x[:, 0], conv._reversed_padding_repeated_twice)
    patches = padded.unfold(1, height, down).unfold(2, width, right).permute(3, 4, 0, 1, 2)
    table = weight.flatten(1).T if bias is None else torch.cat([weight.flatten(1).T, bias[None]])
    flat = x.new_ones(len(table), patches[0, 0].numel())  # the last line stays one: it meets the bias
    flat[: height * width].view_as(patches).copy_(patches)
    return (flat.T @ table.contiguous()).view(*patches.shape[2:], -1).permute(0, 3, 1, 2)


def by_rows(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of stride one whose kernels, if their rows are long, have a gradient made of products of matrices,
    one per kernel row.

    >>> conv, x = nn.Conv2d(50, 3, 3, padding=1), torch.rand(4, 50, 8, 8)
    >>> torch.allclose(by_rows(conv, x, conv.weight, conv.bias), conv(x), atol=1e-6)
    True
    """
    if weight.shape[1] * weight.shape[3] < LONG_ROW or torch.is_autocast_enabled("cpu"):
        return F.conv2d(x, weight, bias, padding=conv.padding)
    return ByRows.apply(x, weight, bias, conv.padding)  # type: ignore[no-any-return, no-untyped-call]


class ByRows(torch.autograd.Function):
    """The library's convolution and gradient of the input, with a gradient of the kernels of our own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of input, kernels and bias."""
        (x, weight), (high, wide), wanted = ctx.saved_tensors, ctx.padding, ctx.needs_input_grad
        given = (None, [1, 1], [high, wide], [1, 1], False, [0, 0], 1, [True, False, False])
        before = torch.ops.aten.convolution_backward(grad, x, weight, *given)[0] if wanted[0] else None
        padded = F.pad(x, (wide, wide, high, high)) if high or wide else x
        kernels = gradient_by_rows(padded, grad, weight.shape) if wanted[1] else None
        return before, kernels, grad.sum((0, 2, 3)) if wanted[2] else None, None


def gradient_by_rows(x: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of kernels [outputs, channels, height, width]: with rows outermost, the patches that one kernel row
    meets are one matrix, [rows * samples * columns, width * channels]."""
    outputs, channels, height, width = shape
    rows = grad.shape[2]
    lines = x.permute(2, 0, 3, 1).contiguous().unfold(2, width, 1).transpose(3, 4)
    lines = lines.reshape(len(lines), -1, width * channels)
    after = grad.permute(2, 0, 3, 1).reshape(-1, outputs).T
    found = [after @ lines[at : at + rows].flatten(0, 1) for at in range(height)]
    return torch.stack(found, 1).view(outputs, height, width, channels).permute(0, 3, 1, 2)
