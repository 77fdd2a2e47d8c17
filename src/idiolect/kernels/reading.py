"""What the operations of a graph are: ReLUs, convolutions, max pooling, whichever way a module calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

Pair = tuple[int, int]
Pool = tuple[Pair, Pair, Pair, Pair, bool]
"""Kernel size, stride, padding and dilation of a max pooling, and its ceil_mode."""
RELUS = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")


def is_only_use(node: fx.Node) -> bool:
    """Whether one operation alone uses the result of another."""
    return len(node.users) == 1


def is_relu(node: Any) -> bool:
    """Whether an operation is a ReLU, in place or not."""
    return isinstance(node, fx.Node) and node.op.startswith("call") and node.target in RELUS


class Conv(NamedTuple):
    """A convolution: its input, kernels and bias in a graph, and its options."""

    leaves: tuple[fx.Node, fx.Node, fx.Node | None]
    stride: Pair
    padding: Pair
    in_channels: int


def read_conv(node: fx.Node, module: nn.Module) -> Conv | None:
    """A convolution with kernels of the module's, one group, no dilation and a number of zeros as padding."""
    if node.target is not torch.conv2d:
        return None
    given = read_arguments(node, {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}, ("weight",))
    weight, bias = given["weight"], given["bias"]
    options = [pair(given[name]) for name in ("stride", "padding", "dilation", "groups")]
    if None in options or options[2:] != [(1, 1), (1, 1)] or weight.op != "get_attr":
        return None
    stride, padding = options[:2]
    return Conv((given["input"], weight, bias), stride, padding, module.get_parameter(weight.target).shape[1])


def read_pool(node: fx.Node) -> Pool | None:
    """The options of a max pooling that gives its maxima alone."""
    if node.target not in (F.max_pool2d, torch.max_pool2d):
        return None
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    given = read_arguments(node, defaults, ("kernel_size",))
    given["stride"] = given["stride"] or given["kernel_size"]
    options = [pair(given[name]) for name in ("kernel_size", "stride", "padding", "dilation")]
    if None in options or given["return_indices"] or not node.args:
        return None
    return (*options, given["ceil_mode"])


def read_arguments(node: fx.Node, defaults: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of an operation on `input`, by name."""
    names = ("input", *required, *defaults)
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def pair(option: Any) -> Any:
    """An option for rows and columns as two numbers; None if it is neither one number nor two.

    >>> pair(2), pair([1, 2]), pair("same")
    ((2, 2), (1, 2), None)
    """
    if isinstance(option, int):
        return (option, option)
    known = isinstance(option, (list, tuple)) and len(option) == 2 and all(isinstance(each, int) for each in option)
    return tuple(option) if known else None
