"""Loss and gradient of dense networks (`dense_reading.py` says which), written as matrix products.

Stacks of clients use them instead of automatic differentiation, for any method; where a method's step is plain SGD, the
whole step is done in place. This file is plain PyTorch; `dense_compiled.py` computes the same with numba."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import Grad
from ..contract.gradients import Autograd
from ..core.tree import Tree
from ..task.network import Net
from ..task.task import Batch, Scored, Task
from .compiling import compile_alone
from .dense_reading import ADD, GELU, LINEAR, MEAN, NORM, RELU, Operation, read_dense
from .observing import agree
from .processor import has_numba

log = logging.getLogger("idiolect")


class ForwardPass(NamedTuple):
    """The input and what every operation gives, the loss and its gradient with respect to the logits."""

    values: list[Tensor]
    loss: Tensor
    grad_logits: Tensor


@dataclass(frozen=True)
class Dense:
    """A dense network's loss and gradient. Everything works on one client, parameters [out, in] and inputs [batch, in],
    and on many clients at once, with one more axis in front."""

    operations: tuple[Operation, ...]

    def forward(self, params: Mapping[str, Tensor], batch: Batch, x: Tensor) -> ForwardPass:
        """The network on inputs [..., batch, in]."""
        values = [x]
        for operation in self.operations:
            values.append(apply_operation(operation, params, [values[at] for at in operation.inputs]))
        share = (batch.weight / batch.weight.sum(-1, keepdim=True)).unsqueeze(-1)
        log_probs, target = values[-1].log_softmax(-1), batch.y.unsqueeze(-1)
        loss = -(log_probs.gather(-1, target) * share).sum((-2, -1))
        return ForwardPass(values, loss, (log_probs.exp() * share).scatter_add(-1, target, -share))

    def backward(self, params: Mapping[str, Tensor], passed: ForwardPass) -> Iterator[tuple[Operation, Tensor, Tensor]]:
        """From the last operation to the first: the operation, the gradient with respect to what it gives, and its
        input. The parameters of an operation may be changed as soon as it has been yielded."""
        grads = {len(self.operations): passed.grad_logits}
        for index in reversed(range(len(self.operations))):
            if index + 1 in grads:
                operation, grad, x = self.operations[index], grads[index + 1], passed.values[index + 1]
                inputs = [passed.values[at] for at in operation.inputs]
                entered = grad_input(operation, params, inputs[0], x, grad) if any(operation.inputs) else None
                for at in operation.inputs:
                    if at and entered is not None:
                        grads[at] = grads[at] + entered if at in grads else entered
                yield operation, grad, inputs[0]

    def features(self, passed: ForwardPass) -> Tensor:
        """What enters the last layer."""
        return passed.values[self.operations[-1].inputs[0]]

    def gradients(self, params: Mapping[str, Tensor], batch: Batch, x: Tensor) -> tuple[Tree, ForwardPass]:
        """The gradients of all parameters, and the forward pass."""
        passed, grads = self.forward(params, batch, x), Tree()
        for operation, grad, inputs in self.backward(params, passed):
            if operation.weight is not None:
                grads[operation.weight] = grad_weight(operation, params[operation.weight], inputs, grad)
            if operation.bias is not None:
                grads[operation.bias] = grad.sum(-2)
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
        return Grad({slot: trained}, Scored(passed.loss, passed.values[-1], self.features(passed), {}))

    @cached_property
    def layers(self) -> list[Operation]:
        """The operations that have parameters."""
        return [operation for operation in self.operations if operation.weight is not None]

    @cached_property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [name for layer in self.layers for name in (layer.weight, layer.bias) if name is not None]

    def accepts(self, x: Tensor, params: Mapping[str, Tensor]) -> bool:
        """Whether inputs [..., features or tokens] and parameters are what is computed with; if not, PyTorch says what
        is wrong."""
        return params.keys() >= set(self.names)

    def change_(
        self, params: Tree, others: Tensor, batches: Batch, batch_of: Sequence[int], changes: Any,
        trained: Sequence[bool],
    ) -> Scored:  # fmt: skip
        """Steps of a stack, in place, each of which adds to parameters, and to other trees like them, sums of all of
        them and of the gradient.

        Args:
            params: all parameters, [clients, ...].
            others: the other trees, [clients, trees, all parameters].
            batches: [batches, clients, ...].
            batch_of: for each step the batch that it takes.
            changes: the factors of the sums that are added, an array [steps, clients, parameters, trees, trees + 1];
                the parameters are the first tree, and the gradient's factor is the last. A tree's own factor of -1
                sets it to the sum of the others.
            trained: for each parameter whether its gradient is needed.

        Returns:
            Losses, outputs and features before each step, [steps, clients, ...].
        """
        scores, wanted = [], {name for name, use in zip(self.names, trained, strict=True) if use}
        parts = torch.split(others, [params[name][0].numel() for name in self.names], 2)
        trees = {
            name: [params[name], *(each.view_as(params[name]) for each in part.unbind(1))]
            for name, part in zip(self.names, parts, strict=True)
        }
        for at, factors in zip(batch_of, torch.from_numpy(changes).to(others.device), strict=True):
            batch = Batch(*(leaf[at] for leaf in batches))
            passed = self.forward(params, batch, batch.x.flatten(2))
            scores.append((passed.loss, passed.values[-1], self.features(passed)))
            grads = dict[str, Tensor]()
            for operation, grad, x in self.backward(params, passed):
                if operation.weight in wanted:
                    grads[operation.weight] = grad_weight(operation, params[operation.weight], x, grad)
                if operation.bias in wanted:
                    grads[operation.bias] = grad.sum(1)
            for number, name in enumerate(self.names):
                change_leaf(trees[name], grads.get(name), factors[:, number])
        losses, outputs, features = (torch.stack(leaves) for leaves in zip(*scores, strict=True))
        return Scored(losses, outputs, features, {})


def change_leaf(leaves: Sequence[Tensor], grad: Tensor | None, factors: Tensor) -> None:
    """Add to leaves [clients, ...] the sums that factors [clients, leaves, leaves + 1] say; one whose own factor is -1
    becomes the sum of the others, without a trace of what it was."""
    added, replaced, factors = [], factors.diagonal(dim1=1, dim2=2) == -1, factors.clone()
    factors.diagonal(dim1=1, dim2=2)[replaced] = 0
    for row in factors.unbind(1):
        terms = zip([*leaves, grad], row.unbind(1), strict=True)
        added.append([f.view(-1, *[1] * (leaf.ndim - 1)) * leaf for leaf, f in terms if leaf is not None and f.any()])
    for leaf, parts, gone in zip(leaves, added, replaced.unbind(1), strict=True):
        leaf[gone] = 0
        for part in parts[1:]:
            parts[0] += part
        if parts:
            leaf += parts[0]


def apply_operation(operation: Operation, params: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """What an operation gives."""
    x = inputs[0]
    weight, bias = (None if name is None else params[name] for name in (operation.weight, operation.bias))
    if operation.kind == LINEAR and weight is not None:
        x = x @ weight.mT
        return x if bias is None else x.add_(bias.unsqueeze(-2))
    if operation.kind == NORM and weight is not None:
        x = normalise(operation, x)[0] * weight.unsqueeze(-2)
        return x if bias is None else x + bias.unsqueeze(-2)
    if operation.kind == MEAN and weight is not None:
        rows = x.flatten(-2).unsqueeze(-1).expand(*x.shape[:-2], -1, weight.shape[-1])
        return weight.gather(-2, rows).view(*x.shape, weight.shape[-1]).mean(-2)
    if operation.kind == ADD:
        return x + inputs[-1]
    return F.relu(x) if operation.kind == RELU else F.gelu(x)


def normalise(operation: Operation, x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of mean zero and variance one per row, and the factor that made them so."""
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    factor = (variance + operation.eps).rsqrt()
    return (x - mean) * factor, factor


def grad_input(operation: Operation, params: Mapping[str, Tensor], x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    """The gradient with respect to each input of an operation."""
    weight = None if operation.weight is None else params[operation.weight]
    if operation.kind == LINEAR and weight is not None:
        return grad @ weight
    if operation.kind == NORM and weight is not None:
        (normal, factor), grad = normalise(operation, x), grad * weight.unsqueeze(-2)
        return factor * (grad - grad.mean(-1, keepdim=True) - normal * (grad * normal).mean(-1, keepdim=True))
    if operation.kind == RELU:
        return torch.ops.aten.threshold_backward(grad, out, 0)  # type: ignore[no-any-return]
    return torch.ops.aten.gelu_backward(grad, x) if operation.kind == GELU else grad


def grad_weight(operation: Operation, weight: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of an operation's weight."""
    if operation.kind == LINEAR:
        return grad.mT @ x
    if operation.kind == NORM:
        return (grad * normalise(operation, x)[0]).sum(-2)
    tokens = x.shape[-1]
    rows = x.flatten(-2).unsqueeze(-1).expand(*x.shape[:-2], -1, weight.shape[-1])
    return torch.zeros_like(weight).scatter_add(-2, rows, (grad / tokens).repeat_interleave(tokens, -2))


_found: WeakKeyDictionary[Net, tuple[torch.dtype | None, Dense | None]] = WeakKeyDictionary()


def find_dense(task: Task) -> Dense | None:
    """The dense network of a task, compiled if numba is installed; None if the network or its loss is another, or if
    it computes anything else for the task's example."""
    known = _found.get(task.net)
    if known is None or known[0] != task.net.precision:
        known = _found[task.net] = (task.net.precision, read_and_check(task))
    return known[1]


def read_and_check(task: Task) -> Dense | None:
    """`find_dense`, without looking up what was found before."""
    operations = tuple(read_dense(task))
    if not operations:
        return None
    dense = Dense(operations)
    if {(leaf.dtype, leaf.device.type) for leaf in task.net.params.values()} == {(torch.float32, "cpu")}:
        dense = compiled_form(operations) or dense
    return dense if computes(dense, task.twin()) else None


def compiled_form(operations: tuple[Operation, ...]) -> Dense | None:
    """A dense network whose steps are compiled; None without numba."""
    if not has_numba():
        return None
    try:
        from .dense_compiled import CompiledDense
    except ImportError as error:  # it is there, but does not work
        log.warning("PyTorch computes the steps of dense networks, since numba cannot be loaded: %s", error)
        return None
    return CompiledDense(operations)


def computes(dense: Dense, task: Task) -> bool:
    """Whether a dense network computes what a task does, on the task's example."""
    device = next(iter(task.net.params.values())).device
    x, y = (leaf.to(device) for leaf in task.example)
    batch, params = Batch(x, y, torch.ones(len(y), device=device)), task.net.params
    try:
        grads, scored = Autograd().of_loss(lambda part: task.loss(part["params"], {}, batch), {"params": params})
    except Exception:  # whatever a module does
        return False
    try:
        with compile_alone():
            found = dense.grad("params", params, batch, None)
    except Exception as error:
        log.warning("PyTorch computes this network's steps, since faster ones failed: %s", error)
        return False
    pairs = [(scored.loss, found.scored.loss), (scored.outputs, found.scored.outputs)]
    pairs += [(scored.features, found.scored.features), *((grads["params"][n], found.tree[n]) for n in params)]
    return agree(*zip(*pairs, strict=True))
