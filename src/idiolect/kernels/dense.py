"""Small dense networks with their gradients written out as matrix products. In stacks they replace the general way to
differentiate, for any method; where the method's own step is plain SGD, the whole step is done in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..contract import Grad
from ..core.tree import Tree
from ..task.losses import cross_entropy
from ..task.task import Batch, Scored, Task


@dataclass(frozen=True)
class Layer:
    """One linear layer: the names of its weight and bias, and whether a ReLU follows it."""

    weight: str
    bias: str | None
    relu: bool


def dense_layers(task: Task) -> list[Layer]:
    """The layers of a network that is a chain of Flatten, Linear and ReLU; empty if it is anything else."""
    module, layers = task.net.module, list[Layer]()
    plain = task.loss_fn == cross_entropy and task.example[1].ndim == 1 and task.net.precision is None
    own = len(list(module.named_parameters(remove_duplicate=False))) == len(task.net.params)  # none frozen, none tied
    if not isinstance(module, nn.Sequential) or not plain or not own:
        return []
    for name, each in module.named_children():
        if isinstance(each, nn.Linear):
            bias = f"{name}.bias"
            layers.append(Layer(f"{name}.weight", bias if bias in task.net.params else None, False))
        elif isinstance(each, nn.ReLU) and layers and not layers[-1].relu:
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, True)
        elif not (isinstance(each, nn.Flatten) and each.start_dim == 1 and not layers):
            return []
    return layers if len(layers) == len(task.units) and not layers[-1].relu else []


class Pass(NamedTuple):
    """A forward pass: the logits, what entered each layer, the loss and its slope in the logits."""

    logits: Tensor
    inputs: list[Tensor]
    loss: Tensor
    slope: Tensor


@dataclass(frozen=True)
class Dense:
    """A dense network's loss and gradient. Everything works on one client, parameters [out, in] and inputs [batch, in],
    and as well on many at once, with one more axis in front."""

    layers: list[Layer]

    def forward(self, params: Mapping[str, Tensor], batch: Batch, x: Tensor) -> Pass:
        """The network on inputs [..., batch, in]."""
        inputs = []
        for layer in self.layers:
            inputs.append(x)
            x = x @ params[layer.weight].mT
            x = x if layer.bias is None else x.add_(params[layer.bias].unsqueeze(-2))
            x = x.relu_() if layer.relu else x
        share = (batch.weight / batch.weight.sum(-1, keepdim=True)).unsqueeze(-1)
        chances, target = x.log_softmax(-1), batch.y.unsqueeze(-1)
        loss = -(chances.gather(-1, target) * share).sum((-2, -1))
        return Pass(x, inputs, loss, (chances.exp() * share).scatter_add(-1, target, -share))

    def backward(self, params: Mapping[str, Tensor], passed: Pass) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """From the last layer to the first: the layer, the slope of the loss in its outputs, and its inputs. A layer
        may be changed as soon as it has been given out."""
        slope = passed.slope
        for number in reversed(range(len(self.layers))):
            layer, x = self.layers[number], passed.inputs[number]
            before = slope
            if number:
                slope = slope @ params[layer.weight]
                slope = torch.ops.aten.threshold_backward(slope, x, 0) if self.layers[number - 1].relu else slope
            yield layer, before, x

    def grad(self, slot: str, params: Mapping[str, Tensor], batch: Batch, part: frozenset[str] | None) -> Grad:
        """The gradient of one client's loss with respect to `part` of its model, for `Context.grad`."""
        passed, grads = self.forward(params, batch, batch.x.flatten(1)), Tree()
        for layer, slope, x in self.backward(params, passed):
            grads[layer.weight] = slope.mT @ x
            if layer.bias is not None:
                grads[layer.bias] = slope.sum(0)
        chosen = {name: grads[name] for name in params if part is None or name in part}
        return Grad({slot: chosen}, Scored(passed.loss, passed.logits, passed.inputs[-1], {}))

    def steps_(self, params: Tree, log: Tree, batches: Batch, part: frozenset[str] | None, lr: float) -> None:
        """Plain SGD steps of the first clients of a stack, as many as batches [steps, clients, ...] have, in place."""
        counts = batches.weight.sum(2)
        rows = counts.shape[1]
        trained = [part is None or layer.weight in part for layer in self.layers]
        losses = self.descend_({name: leaf[:rows] for name, leaf in params.items()}, batches, trained, lr)
        log["loss"][:rows] += (losses * counts).sum(0)
        log["samples"][:rows] += counts.sum(0)

    def descend_(self, params: Tree, batches: Batch, trained: Sequence[bool], rate: float) -> Tensor:
        """The steps of `steps_`; gives the losses before each, [steps, clients]."""
        losses = []
        for leaves in zip(*batches, strict=True):
            batch = Batch(*leaves)
            passed = self.forward(params, batch, batch.x.flatten(2))
            losses.append(passed.loss)
            for layer, slope, x in self.backward(params, passed):
                if trained[self.layers.index(layer)]:
                    params[layer.weight].baddbmm_(slope.mT, x, alpha=-rate)
                    if layer.bias is not None:
                        params[layer.bias].sub_(slope.sum(1), alpha=rate)
        return torch.stack(losses)


def dense_of(task: Task) -> Dense | None:
    """The written-out form of a task's network and loss, or None where it has none."""
    layers = dense_layers(task)
    if not layers:
        return None
    if {(leaf.dtype, leaf.device.type) for leaf in task.net.params.values()} == {(torch.float32, "cpu")}:
        with suppress(ImportError):
            from .dense_steps import CompiledDense

            return CompiledDense(layers)
    return Dense(layers)
