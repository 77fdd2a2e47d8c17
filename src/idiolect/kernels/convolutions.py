"""Faster convolutions on a CPU: `speed_up` rearranges an engine's own copy of a network, with the same results.

Images get their channels last in memory, ReLU moves behind the max pooling that follows it, a convolution and its max
pooling become one step (`conv_pool.py`), and convolutions of one channel become one matrix product."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def speed_up(module: nn.Module) -> None:
    """Rearrange a network in place. Parameters, buffers and their names stay as they are.

    A convolution and its max pooling become one step only in an outermost `nn.Sequential`: the layers of an inner
    module may be called one by one.
    """
    if any(isinstance(child, nn.Conv2d) for child in module.modules()):
        module.register_forward_pre_hook(move_channels_last)
    for child in module.modules():
        if type(child) is nn.Sequential:
            pool_before_relu(child)
        if type(child) is nn.Conv2d and child.in_channels == 1 and is_standard(child):
            child.forward = partial(conv_one_channel, child)  # type: ignore[method-assign]
    if type(module) is nn.Sequential:
        join_pooling(module)


def channels_last(leaf: Tensor) -> Tensor:
    """A batch of images, or the kernels of a convolution, with channels last in memory; other tensors as they are."""
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


def move_channels_last(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook that brings a network's inputs into the memory format in which convolutions are fastest."""
    return tuple(channels_last(leaf) if isinstance(leaf, Tensor) else leaf for leaf in inputs)


def pool_before_relu(sequence: nn.Sequential) -> None:
    """Exchange a ReLU and the max pooling that follows it: max(relu(x)) = relu(max(x)), also for gradients, and the
    ReLU has a fraction of the work."""
    for index, (first, second) in enumerate(pairwise(list(sequence))):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            sequence[index], sequence[index + 1] = second, first


def join_pooling(sequence: nn.Sequential) -> None:
    """Let convolutions compute the max pooling that follows them, where numba is installed. A convolution that occurs
    twice stays as it is: its outputs change."""
    try:
        from .conv_pool import conv_pool
    except ImportError:
        return
    count = Counter(sequence)
    for index, (conv, pool) in enumerate(pairwise(list(sequence))):
        if type(conv) is nn.Conv2d and type(pool) is nn.MaxPool2d and count[conv] == 1 and can_join(conv, pool):
            conv.forward = partial(conv_pool, conv, pool)  # type: ignore[method-assign]
            sequence[index + 1] = nn.Identity()


def can_join(conv: nn.Conv2d, pool: nn.MaxPool2d) -> bool:
    """Whether `conv_pool` computes this: windows that do not overlap, after a convolution of stride one."""
    disjoint = pool.stride == pool.kernel_size and pool.kernel_size not in (1, (1, 1)) and not pool.return_indices
    return disjoint and is_standard(conv) and conv.stride == (1, 1) and conv.in_channels > 1


def is_standard(conv: nn.Conv2d) -> bool:
    """Whether a convolution has one group, no dilation, and a number of zeros as padding."""
    return (conv.groups, conv.dilation, conv.padding_mode) == (1, (1, 1), "zeros") and not isinstance(conv.padding, str)


def conv_one_channel(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of one channel as one product of all patches, [kernel, samples * positions], with the kernels;
    channels come last in memory. PyTorch's own gradient of such kernels is several times slower.

    >>> conv, x = nn.Conv2d(1, 2, 3, stride=2, padding=1), torch.rand(4, 1, 8, 8)
    >>> torch.allclose(conv_one_channel(conv, x), conv(x), atol=1e-6)
    True
    """
    weight, bias, padding = conv.weight, conv.bias, cast("tuple[int, int]", conv.padding)
    (height, width), (stride_rows, stride_columns), (rows, columns) = weight.shape[2:], conv.stride, padding
    padded = F.pad(x[:, 0], (columns, columns, rows, rows))
    patches = padded.unfold(1, height, stride_rows).unfold(2, width, stride_columns).permute(3, 4, 0, 1, 2)
    kernels = weight.flatten(1).T if bias is None else torch.cat([weight.flatten(1).T, bias[None]])
    flat = x.new_ones(len(kernels), patches[0, 0].numel())  # the last row stays one: it is multiplied with the bias
    flat[: height * width].view_as(patches).copy_(patches)
    return (flat.T @ kernels.contiguous()).view(*patches.shape[2:], -1).permute(0, 3, 1, 2)
