"""Faster convolutions on a CPU: `speed_up` rearranges an engine's own copy of a network, with the same results.

Images get their channels last in memory, ReLU moves behind the max pooling that follows it, a convolution and its max
pooling become one step (`conv_pool.py`), and convolutions of one channel become one matrix product. They are found in
any module, by `torch.fx`; one that cannot be traced is left as it is, and those inside of it are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..task.task import Task
from .compiling import compile_alone
from .observing import agree, observe
from .reading import Pair, Pool, is_only_use, is_relu, read_conv, read_pool
from .tracing import install_forward, trace


def speed_up(task: Task) -> bool:
    """Rearrange a task's network in place, as far as it computes the same on the task's example. Parameters, buffers
    and their names stay as they are.

    Returns whether the network takes images, and should be given kernels, with channels last in memory: not if it has
    no convolutions, or looks at memory itself, as `Tensor.view` does in a module that cannot be traced.
    """
    module, trial, x = task.net.module, task.twin().net.module, task.example[0]
    if not has_convolutions(module) or task.net.call is not None:
        return False
    usual = observe(trial, x)
    parts = rearrange_parts(trial, trial_inputs(trial, x))
    modules, tried = dict(module.named_modules()), dict(trial.named_modules())
    for graphs, last in ((parts, True), (parts, False), ({}, True)):
        for name in parts.keys() - graphs.keys():
            del tried[name].forward
        if same_results(trial, x, usual, last):
            for name, graph in graphs.items():
                install_forward(modules[name], graph)
            if last:
                module.register_forward_pre_hook(move_channels_last)
            return last
    return False


def has_convolutions(module: nn.Module) -> bool:
    """Whether there is something to gain."""
    return any(isinstance(child, nn.Conv2d) for child in module.modules())


def same_results(module: nn.Module, x: Tensor, usual: Sequence[Tensor | None], last: bool) -> bool:
    """Whether a module computes what is usual, with channels last in memory or first."""
    with torch.no_grad():
        for leaf in module.parameters():
            leaf.data = channels_last(leaf.data) if last else leaf.data.contiguous()
    try:
        with compile_alone():
            return agree(usual, observe(module, channels_last(x) if last else x))
    except Exception:  # whatever a module does
        return False


def trial_inputs(module: nn.Module, x: Tensor) -> dict[nn.Module, Tensor]:
    """The inputs of a module and of all inside of it that take one tensor, in a pass over an example."""
    inputs = dict[nn.Module, Tensor]()

    def note(child: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if len(args) == 1 and not named and isinstance(args[0], Tensor):
            inputs[child] = args[0].detach().clone()

    hooks = [child.register_forward_pre_hook(note, with_kwargs=True) for child in module.modules()]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module.eval()(x)
    for hook in hooks:
        hook.remove()
    return inputs


def rearrange_parts(module: nn.Module, inputs: Mapping[nn.Module, Tensor], name: str = "") -> dict[str, fx.Graph]:
    """The rearranged graphs of a module and of those inside that its graph calls; if it has none, of all inside."""
    if not has_convolutions(module):
        return {}
    graph, parts = trace(module) if module in inputs else None, dict[str, fx.Graph]()
    if graph is not None and rearrange(graph, module):
        graph = graph if computes(module, graph, inputs[module]) else None
        parts = {} if graph is None else {name: graph}
    if graph is None:
        inner = [key for key, _ in module.named_children()]
    else:
        inner = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    for key in inner:
        parts |= rearrange_parts(module.get_submodule(key), inputs, f"{name}.{key}" if name else key)
    return parts


def computes(module: nn.Module, graph: fx.Graph, x: Tensor) -> bool:
    """Whether a graph computes what a module does, on an example. The module is a copy, which computes the graph
    afterwards if it does."""
    try:
        usual = observe(module, x)
    except Exception:  # whatever a module does
        return False
    install_forward(module, graph)
    if same_results(module, x, usual, last=False):
        return True
    del module.forward
    return False


def rearrange(graph: fx.Graph, module: nn.Module) -> bool:
    """Let a graph use faster operations; whether there were any."""
    changed = False
    for node in list(graph.nodes):
        if (pool := read_pool(node)) is not None:
            while is_relu(node.args[0]) and is_only_use(node.args[0]) and is_only_use(node.args[0].args[0]):
                node = pool_before_relu(graph, node)
                changed = True
            changed |= join_pooling(graph, module, node, pool)
    for node in list(graph.nodes):
        conv = read_conv(node, module)
        if conv is not None and conv.in_channels == 1:
            replace_node(graph, node, conv_one_channel, (*conv.leaves, conv.stride, conv.padding))
            changed = True
        if node.op == "call_method" and node.target == "view":  # which refuses what has its channels last
            node.target, changed = "reshape", True
    return changed


def replace_node(graph: fx.Graph, node: fx.Node, function: Any, args: tuple[Any, ...]) -> None:
    """Put another operation in the place of one."""
    with graph.inserting_before(node):
        node.replace_all_uses_with(graph.call_function(function, args))
    graph.erase_node(node)


def pool_before_relu(graph: fx.Graph, pool: fx.Node) -> fx.Node:
    """Exchange a max pooling and the ReLU before it: max(relu(x)) = relu(max(x)), also for gradients, and the ReLU has
    a fraction of the work. Returns the pooling."""
    relu: Any = pool.args[0]
    pool.replace_input_with(relu, relu.args[0])
    with graph.inserting_after(pool):
        after = graph.node_copy(relu, lambda node: pool if node is relu.args[0] else node)
    pool.replace_all_uses_with(after, lambda user: user is not after)
    graph.erase_node(relu)
    return pool


def join_pooling(graph: fx.Graph, module: nn.Module, node: fx.Node, pool: Pool) -> bool:
    """Let a convolution compute the max pooling that follows it, where numba is installed; whether it does."""
    try:
        from .conv_pool import conv_pool
    except ImportError:
        return False
    before: Any = node.args[0]
    conv = read_conv(before, module)
    disjoint = pool[0] == pool[1] != (1, 1)
    if conv is None or not disjoint or not is_only_use(before) or conv.stride != (1, 1) or conv.in_channels == 1:
        return False
    replace_node(graph, node, conv_pool, (*conv.leaves, conv.padding, pool))
    graph.erase_node(before)
    return True


def channels_last(leaf: Tensor) -> Tensor:
    """A batch of images, or the kernels of a convolution, with channels last in memory; other tensors as they are."""
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


def move_channels_last(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook that brings a network's inputs into the memory format in which convolutions are fastest."""
    return tuple(channels_last(leaf) if isinstance(leaf, Tensor) else leaf for leaf in inputs)


def conv_one_channel(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """A convolution of one channel as one product of all patches, [kernel, samples * positions], with the kernels;
    channels come last in memory. PyTorch's own gradient of such kernels is several times slower.

    >>> conv, x = nn.Conv2d(1, 2, 3, stride=2, padding=1), torch.rand(4, 1, 8, 8)
    >>> torch.allclose(conv_one_channel(x, conv.weight, conv.bias, (2, 2), (1, 1)), conv(x), atol=1e-6)
    True
    """
    (height, width), (stride_rows, stride_columns), (rows, columns) = weight.shape[2:], stride, padding
    padded = F.pad(x[:, 0], (columns, columns, rows, rows))
    patches = padded.unfold(1, height, stride_rows).unfold(2, width, stride_columns).permute(3, 4, 0, 1, 2)
    kernels = weight.flatten(1).T if bias is None else torch.cat([weight.flatten(1).T, bias[None]])
    flat = x.new_ones(len(kernels), patches[0, 0].numel())  # the last row stays one: it is multiplied with the bias
    flat[: height * width].view_as(patches).copy_(patches)
    return (flat.T @ kernels.contiguous()).view(*patches.shape[2:], -1).permute(0, 3, 1, 2)
