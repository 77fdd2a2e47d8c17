"""Loss and gradient of dense networks (Flatten, Linear and ReLU in a row, cross-entropy), written as matrix products.

Stacks of clients use them instead of automatic differentiation, for any method; where a method's step is plain SGD, the
whole step is done in place. This file is plain PyTorch; `dense_compiled.py` computes the same with numba."""

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
    supported = task.loss_fn == cross_entropy and task.example[1].ndim == 1 and task.net.precision is None
    n_parameters = len(list(module.named_parameters(remove_duplicate=False)))  # frozen and tied ones included
    if not isinstance(module, nn.Sequential) or not supported or n_parameters != len(task.net.params):
        return []
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            bias = f"{name}.bias"
            layers.append(Layer(f"{name}.weight", bias if bias in task.net.params else None, False))
        elif isinstance(child, nn.ReLU) and layers and not layers[-1].relu:
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, True)
        elif not (isinstance(child, nn.Flatten) and child.start_dim == 1 and not layers):
            return []
    return layers if len(layers) == len(task.units) and not layers[-1].relu else []


class ForwardPass(NamedTuple):
    """The logits, the inputs of every layer, the loss and its gradient with respect to the logits."""

    logits: Tensor
    inputs: list[Tensor]
    loss: Tensor
    grad_logits: Tensor


@dataclass(frozen=True)
class Dense:
    """A dense network's loss and gradient. Everything works on one client, parameters [out, in] and inputs [batch, in],
    and on many clients at once, with one more axis in front."""

    layers: list[Layer]

    def forward(self, params: Mapping[str, Tensor], batch: Batch, x: Tensor) -> ForwardPass:
        """The network on inputs [..., batch, in]."""
        inputs = []
        for layer in self.layers:
            inputs.append(x)
            x = x @ params[layer.weight].mT
            x = x if layer.bias is None else x.add_(params[layer.bias].unsqueeze(-2))
            x = x.relu_() if layer.relu else x
        share = (batch.weight / batch.weight.sum(-1, keepdim=True)).unsqueeze(-1)
        log_probs, target = x.log_softmax(-1), batch.y.unsqueeze(-1)
        loss = -(log_probs.gather(-1, target) * share).sum((-2, -1))
        return ForwardPass(x, inputs, loss, (log_probs.exp() * share).scatter_add(-1, target, -share))

    def backward(self, params: Mapping[str, Tensor], passed: ForwardPass) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """From the last layer to the first: the layer, the gradient with respect to its outputs, and its inputs. The
        parameters of a layer may be changed as soon as it has been yielded."""
        grad = passed.grad_logits
        for index in reversed(range(len(self.layers))):
            layer, x, grad_outputs = self.layers[index], passed.inputs[index], grad
            if index:
                grad = grad @ params[layer.weight]
                grad = torch.ops.aten.threshold_backward(grad, x, 0) if self.layers[index - 1].relu else grad
            yield layer, grad_outputs, x

    def gradients(self, params: Mapping[str, Tensor], batch: Batch, x: Tensor) -> tuple[Tree, ForwardPass]:
        """The gradients of all parameters, and the forward pass."""
        passed, grads = self.forward(params, batch, x), Tree()
        for layer, grad_outputs, inputs in self.backward(params, passed):
            grads[layer.weight] = grad_outputs.mT @ inputs
            if layer.bias is not None:
                grads[layer.bias] = grad_outputs.sum(-2)
        return grads, passed

    def grad(self, slot: str, params: Mapping[str, Tensor], batch: Batch, part: frozenset[str] | None) -> Grad:
        """The gradient of one client's loss.

        Args:
            slot: the name under which the gradient is returned.
            params: the values of all parameters.
            batch: the client's samples.
            part: the names of the parameters that are trained; None for all.
        """
        grads, passed = self.gradients(params, batch, batch.x.flatten(1))
        trained = {name: grads[name] for name in params if part is None or name in part}
        return Grad({slot: trained}, Scored(passed.loss, passed.logits, passed.inputs[-1], {}))

    def steps_(self, params: Tree, log: Tree, batches: Batch, part: frozenset[str] | None, lr: float) -> None:
        """Plain SGD steps of the first clients of a stack, in place, one per batch of `batches` [steps, clients, ...];
        their losses are added to the log."""
        counts = batches.weight.sum(2)
        rows = counts.shape[1]
        trained = [part is None or layer.weight in part for layer in self.layers]
        losses = self.sgd_({name: leaf[:rows] for name, leaf in params.items()}, batches, trained, lr)
        log["loss"][:rows] += (losses * counts).sum(0)
        log["samples"][:rows] += counts.sum(0)

    def sgd_(self, params: Tree, batches: Batch, trained: Sequence[bool], lr: float) -> Tensor:
        """The steps of `steps_`; returns the losses before each, [steps, clients]."""
        losses = []
        for leaves in zip(*batches, strict=True):
            batch = Batch(*leaves)
            passed = self.forward(params, batch, batch.x.flatten(2))
            losses.append(passed.loss)
            for layer, grad_outputs, inputs in self.backward(params, passed):
                if trained[self.layers.index(layer)]:
                    params[layer.weight].baddbmm_(grad_outputs.mT, inputs, alpha=-lr)
                    if layer.bias is not None:
                        params[layer.bias].sub_(grad_outputs.sum(1), alpha=lr)
        return torch.stack(losses)


def find_dense(task: Task) -> Dense | None:
    """The dense network of a task, compiled if numba is installed; None if the network or its loss is another."""
    layers = dense_layers(task)
    if not layers:
        return None
    if {(leaf.dtype, leaf.device.type) for leaf in task.net.params.values()} == {(torch.float32, "cpu")}:
        with suppress(ImportError):
            from .dense_compiled import CompiledDense

            return CompiledDense(layers)
    return Dense(layers)
