"""A plain SGD step of many small dense networks at once, forward and backward written out as batched products.
Used by stacks where the method's own step is the plain one; equal to the traced step, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..context import Context
from ..losses import cross_entropy
from ..method import overrides
from ..optim import SGD
from ..task import Batch, Task
from ..tree import Slots, Tree
from .plan import Plan


@dataclass(frozen=True)
class Layer:
    """One linear layer: the names of its weight and bias, and whether a ReLU follows it."""

    weight: str
    bias: str | None
    relu: bool


def dense_layers(task: Task) -> list[Layer]:
    """The layers of a network that is a chain of Flatten, Linear and ReLU; empty if it is anything else."""
    module, layers = task.net.module, list[Layer]()
    if not isinstance(module, nn.Sequential) or task.loss_fn != cross_entropy:
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


def dense_step(plan: Plan, task: Task) -> DenseStep | None:
    """The fast step for a plan, or None where the method, the optimiser or the model needs the general one."""
    plain = type(plan.optimizer) is SGD and plan.optimizer.clip is None
    own = any(overrides(plan.method, name) for name in ("step", "update"))
    layers = dense_layers(task)
    return DenseStep(layers) if plain and not own and layers and task.example[1].ndim == 1 else None


@dataclass(frozen=True)
class DenseStep:
    """The step on stacked slots: parameters [clients, out, in], inputs [clients, batch, ...]."""

    layers: list[Layer]

    def __call__(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """Forward, backward, optimiser step and training log."""
        params = work["params"]
        logits, inputs = self.forward(params, batch.x.flatten(2))
        share = batch.weight / batch.weight.sum(1, keepdim=True)
        chances = logits.log_softmax(2)
        loss = -(chances.gather(2, batch.y.unsqueeze(2)).squeeze(2) * share).sum(1)
        slope = (chances.exp() - F.one_hot(batch.y, logits.shape[2])) * share.unsqueeze(2)
        grads = self.backward(ctx, params, slope, inputs)
        momentum = {"momentum": work["params:momentum"]} if "params:momentum" in work else {}
        moved, momentum = ctx.optimizer.step(params, grads, momentum, ctx.rate)
        count, log = batch.weight.sum(1), work["log"]
        return {
            **work,
            "params": moved,
            **{f"params:{key}": each for key, each in momentum.items()},
            "log": {"loss": log["loss"] + loss * count, "samples": log["samples"] + count},
        }

    def forward(self, params: Tree, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The logits, and what entered each layer."""
        inputs = []
        for layer in self.layers:
            inputs.append(x)
            weight = params[layer.weight].transpose(1, 2)
            x = (
                torch.bmm(x, weight)
                if layer.bias is None
                else torch.baddbmm(params[layer.bias].unsqueeze(1), x, weight)
            )
            x = x.relu_() if layer.relu else x
        return x, inputs

    def backward(self, ctx: Context, params: Tree, slope: Tensor, inputs: list[Tensor]) -> Tree:
        """The gradients of what the phase trains, from the slope of the loss in the logits."""
        part, grads = ctx.phase.part, Tree()
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            if part is None or layer.weight in part:
                grads[layer.weight] = torch.bmm(slope.transpose(1, 2), inputs[number])
                if layer.bias is not None:
                    grads[layer.bias] = slope.sum(1)
            if number:
                slope = torch.bmm(slope, params[layer.weight])
                if self.layers[number - 1].relu:
                    slope = slope * (inputs[number] > 0)
        return grads
