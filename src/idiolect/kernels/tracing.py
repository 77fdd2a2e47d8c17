"""Any module as a graph of operations, by `torch.fx`, so that kernels find what they compute however it is written.

Nothing here changes a module but `install_forward`, and that only its `forward`: names, parameters, buffers, hooks and
modes stay, and so do the modules inside of it, which others may call one by one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import fx, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# Layers that are one function of their inputs and parameters, which the graph names: so `nn.ReLU` and `F.relu` are one.
FUNCTIONS = (nn.Conv2d, nn.Embedding, nn.Flatten, nn.GELU, nn.Identity, nn.LayerNorm, nn.Linear, nn.MaxPool2d, nn.ReLU)


class Tracer(fx.Tracer):
    """Goes into everything but PyTorch's other layers and what does more than its `forward` when it is called."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one operation of the graph."""
        library = type(m).__module__.startswith("torch.nn") and type(m) not in (nn.Sequential, *FUNCTIONS)
        return library or has_hooks(m) or type(m).__call__ is not nn.Module.__call__


def has_hooks(module: nn.Module) -> bool:
    """Whether something else happens when a module is called."""
    return any(getattr(module, hooks) for hooks in HOOKS)


def trace(module: nn.Module) -> fx.Graph | None:
    """The operations of a module with one input; None where a graph would not say all that the module does.

    The module is traced in training and in evaluation, and has to do the same in both up to what its layers do. It is
    refused if it draws random numbers, changes its attributes or makes new tensors meanwhile. That a graph is right
    has to be checked on an example all the same: it knows nothing of `torch.no_grad` and the like.

    Args:
        module: traced as it is and left in training mode, so give a copy.
    """
    graphs = []
    for mode in (False, True):
        module.train(mode)
        before, state = _attributes(module), torch.get_rng_state()
        try:
            graph = Tracer().trace(module)
        except Exception:  # whatever a module does with values that are not there
            return None
        if not torch.equal(state, torch.get_rng_state()) or _attributes(module) != before:
            return None
        graphs.append(graph)
    same = _describe(graphs[0]) == _describe(graphs[1])
    inputs = [node for node in graphs[0].nodes if node.op == "placeholder"]
    return graphs[0] if same and len(inputs) == 1 and inputs[0].target[0] != "*" else None


def _attributes(module: nn.Module) -> list[Any]:
    """What a module and those inside hold, to see whether it changes."""
    return [
        (name, key, id(value), _contents(value))
        for name, child in module.named_modules()
        for key, value in vars(child).items()
    ]


def _contents(value: Any) -> list[int]:
    values = value.values() if isinstance(value, Mapping) else value
    return [id(each) for each in values] if isinstance(value, (Mapping, list, tuple, set)) else []


def _describe(graph: fx.Graph) -> list[Any]:
    return [(node.op, node.target, str(node.args), str(node.kwargs)) for node in graph.nodes]


def install_forward(module: nn.Module, graph: fx.Graph) -> None:
    """Let a module compute a graph. A copy of the module computes it with the copy's parameters."""
    compiled: Any = fx.GraphModule(module, graph)
    module.forward = MethodType(type(compiled).forward, module)
