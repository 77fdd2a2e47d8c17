"""What is learned: `Task` adds to a network the loss, the layer units, the head and the metrics. Nothing here knows of
clients or rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core import tree
from ..core.errors import ModelError
from ..core.layout import InputLayout
from ..core.tree import Slots, Tree
from .losses import LOSSES, Loss, class_axis, fit_loss, no_loss, per_sample
from .metrics import Metric, fit_metrics
from .network import Net, Output, blank

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)


class Batch(NamedTuple):
    """Samples, targets and one weight per sample (0 for padding that an engine added)."""

    x: Tensor
    y: Tensor
    weight: Tensor


class Scored(NamedTuple):
    """A loss, and the forward pass it came from."""

    loss: Tensor
    outputs: Tensor
    features: Tensor
    buffers: Tree


@dataclass(frozen=True)
class Unit:
    """One module that owns trained parameters or buffers; weight and bias travel together."""

    name: str
    params: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    is_norm: bool = False


class Task:
    """A model, its loss and its metrics, as pure functions of parameters and buffers.

    Args:
        module: any module that maps a batch of inputs to a batch of outputs; it is copied.
        example: a few inputs and targets, which show the order of the layers and the shapes.
        loss: a name, or a function (outputs, targets) -> one loss per sample, or one for the batch.
        metrics: functions (outputs, targets) -> number by name; the first is the headline.
        classes: number of classes, or None for regression.
        head: name of the output layer's module; found if not given.
        layout: how several inputs lie side by side in the rows that it is given; none is one input.
    """

    def __init__(
        self,
        module: nn.Module,
        example: tuple[Tensor, Tensor],
        loss: str | Loss | None = None,
        metrics: Mapping[str, Callable[[Tensor, Tensor], Any] | Metric] | None = None,
        classes: int | None = None,
        head: str | None = None,
        layout: InputLayout | None = None,
    ) -> None:
        self.module, self.example, self.classes, self.head_name = module, example, classes, head
        self.all_classes = classes
        """As many as `classes`, unless each client has its own: then those of all clients together."""
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise ModelError(
                f"the model {type(module).__name__} has lazy layers, whose shapes are not known yet; call it once on a "
                "batch of inputs before you give it"
            )
        self.net = Net(module, layout)
        if not self.net.params:
            raise ModelError(_why_nothing_trains(module))
        self.units = self._find_units()
        outputs = self._trace(example[0][:2])
        self.loss_fn, self.per_sample = fit_loss(loss, outputs, example[1][:2], classes)
        self.metrics = fit_metrics(metrics, outputs, example[1][:2], self.loss_fn)

    # -- the model as functions ------------------------------------------------------------------

    @property
    def initial(self) -> Slots:
        """The model's initial values."""
        return {"params": self.net.params, "buffers": self.net.buffers}

    @cached_property
    def example_output(self) -> Output:
        """What the initial model gives for the example, to look at the shapes."""
        device = next(iter(self.net.params.values())).device
        out = self.forward(self.net.params, self.net.buffers, self.example[0][:2].to(device))
        self.net.passes -= 1  # a look at shapes is no part of anybody's training
        return out

    def forward(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor, train: bool = False
    ) -> Output:
        """Outputs, features and buffers; see `Net.apply`."""
        return self.net.apply(params, buffers, x, train)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per sample."""
        if not self.per_sample:
            raise ModelError(
                "this method weighs samples one by one, but the loss gives one number for a whole batch; "
                "give a loss that returns one value per sample (reduction='none')"
            )
        return self.loss_fn(outputs, y)

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of outputs on a batch: the weighted mean over its samples."""
        if not self.per_sample:
            return self.loss_fn(outputs, batch.y)
        return (self.loss_fn(outputs, batch.y) * batch.weight).sum() / batch.weight.sum()

    def loss(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Batch,
        train: bool = True,
        frozen: frozenset[str] = frozenset(),
    ) -> Scored:
        """Forward pass and loss."""
        out = self.net.apply(params, buffers, batch.x, train, frozen)
        return Scored(self.score(out.outputs, batch), *out)

    def correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Per sample, the share of targets that the outputs get right (classification only)."""
        if self.classes is None:
            raise ModelError("accuracy is defined for classification only; this task has no classes")
        return per_sample((outputs.argmax(class_axis(outputs, y)) == y).to(torch.float32))

    @property
    def parameters_trained(self) -> int:
        """How many parameters are trained; one that is tied counts once."""
        return tree.size(self.net.params)

    @property
    def parameters_total(self) -> int:
        """How many parameters there are, trained or frozen."""
        return sum(leaf.numel() for leaf in self.net.module.parameters())

    def twin(self) -> Task:
        """The same task with a copy of its network, on which something can be tried."""
        other = copy.copy(self)
        other.net = copy.deepcopy(self.net, {id(self): other})
        return other

    def skeleton(self) -> Task:
        """A copy that computes the same from given parameters and buffers and holds neither values nor data: what a
        personal model keeps of its task. There are no metrics, and no loss but those that have a name."""
        bare = copy.copy(self)
        bare.net = self.net.skeleton({id(self): bare})
        bare.module, bare.metrics = bare.net.module, {}
        bare.example = (blank(self.example[0]), blank(self.example[1]))
        bare.loss_fn = self.loss_fn if self.loss_fn in LOSSES.values() else no_loss
        return bare

    # -- its layers ------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(self.net.params)

    @cached_property
    def head_unit(self) -> Unit:
        """The output layer: the last layer that is trained and no normalisation, or the one the user named."""
        plain = [unit for unit in self.units if not unit.is_norm]
        if self.head_name is None:
            if not plain:
                raise ModelError(
                    f"the model has normalisation layers only ({', '.join(unit.name for unit in self.units)}), so it "
                    "has no output layer; end it with one, such as nn.Linear"
                )
            return plain[-1]
        for unit in self.units:
            if unit.name == self.head_name:
                return unit
        listing = ", ".join(unit.name for unit in plain)
        known = self.head_name in dict(self.net.module.named_modules())
        problem = "has no trained parameters in" if known else "has no layer"
        raise ModelError(f"the model {problem} {self.head_name!r} to serve as head; its layers: {listing}")

    def require_features(self, method: str) -> None:
        """Raise a `ModelError` unless the features that enter the output layer can be seen."""
        head = self.head_unit.name
        if head not in self._called:
            seen = ", ".join(unit.name for unit in self.units if not unit.is_norm and unit.name in self._called)
            raise ModelError(
                f"{method} needs the features that enter the output layer, but the model never calls {head!r}: it uses "
                f"its weights in another way; call it as a module, or name a layer that is called: head=... "
                f"({seen or 'none is'})"
            )

    def head(self, layers: int = 1) -> frozenset[str]:
        """The names (parameters and buffers) of the last `layers` layers; normalisation goes with the layer
        before it.

        >>> task = Task(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        ...             (torch.zeros(2, 2), torch.tensor([0, 1])), classes=2)
        >>> sorted(task.head(1))
        ['2.bias', '2.weight']
        """
        plain = [unit for unit in self.units if not unit.is_norm]
        if not 0 <= layers <= len(plain):
            raise ModelError(
                f"the model has {len(plain)} layers, so the head cannot have {layers}; choose 0 to {len(plain)}"
            )
        if layers == 0:
            return frozenset()
        if self.head_name is not None and layers == 1:
            return frozenset(self.head_unit.params + self.head_unit.buffers)
        start = self.units.index(plain[-layers])
        return self.names_of(self.units[start:])

    @cached_property
    def norms(self) -> frozenset[str]:
        """The names of the parameters of normalisation layers."""
        return frozenset(name for unit in self.units if unit.is_norm for name in unit.params)

    @staticmethod
    def names_of(units: Iterable[Unit]) -> frozenset[str]:
        """All names, parameters and buffers, of some units."""
        return frozenset(name for unit in units for name in unit.params + unit.buffers)

    @cached_property
    def has_batchnorm(self) -> bool:
        """Whether a batch of one cannot be trained on."""
        return any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) and name not in self.net.frozen_norms
            for name, module in self.net.module.named_modules()
        )

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether in training the result for one sample depends on the others of its batch."""
        if not self.per_sample or self.has_batchnorm:
            return True
        x = self.example[0][:2].to(next(iter(self.net.params.values())).device)
        with torch.random.fork_rng(devices=[]):
            alone, beside = (
                self.net.apply(self.net.params, self.net.buffers, rows, train=True)
                for rows in (x, torch.cat([x, torch.zeros_like(x[:1])]))
            )
        pairs = [(alone.outputs, beside.outputs[: len(x)])]
        pairs += [(leaf, beside.buffers[name]) for name, leaf in alone.buffers.items()]
        return not all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in pairs)

    @cached_property
    def stat_momentum(self) -> dict[str, float]:
        """The buffers that hold running statistics of batches, and the weight of the newest batch in each."""
        return {
            f"{name}.{key}" if name else key: module.momentum or 1.0
            for name, module in self.net.module.named_modules()
            if isinstance(module, nn.modules.batchnorm._NormBase)
            for key in ("running_mean", "running_var")
            if module._buffers.get(key) is not None and name not in self.net.frozen_norms
        }

    def frozen(self, part: frozenset[str] | None) -> frozenset[str]:
        """The normalisation modules that stay in evaluation mode while only `part` is trained."""
        if part is None:
            return frozenset()
        return frozenset(unit.name for unit in self.units if unit.is_norm and not part & frozenset(unit.params))

    def _find_units(self) -> tuple[Unit, ...]:
        units = []
        for name, module in self.net.module.named_modules():
            prefix = f"{name}." if name else ""
            params = tuple(prefix + key for key in module._parameters if prefix + key in self.net.params)
            buffers = tuple(prefix + key for key in module._buffers if prefix + key in self.net.buffers)
            if params or buffers:
                units.append(Unit(name or "model", params, buffers, isinstance(module, NORMS)))
        return tuple(units)

    def _trace(self, x: Tensor) -> Tensor:
        """Run the model once: order the units by their first use, and tap the features that enter the head."""
        order: list[str] = []
        modules = dict(self.net.module.named_modules())

        def note(name: str) -> Callable[..., None]:
            return lambda *_: order.append(name)

        hooks = [
            modules[unit.name if unit.name in modules else ""].register_forward_pre_hook(note(unit.name))
            for unit in self.units
        ]
        try:
            outputs = self.net.apply(self.net.params, self.net.buffers, x).outputs
        except Exception as error:
            tokens = "" if x.is_floating_point() else ", tokens (inputs=numbers makes them measurements)"
            raise ModelError(
                f"the model {type(self.module).__name__} cannot take inputs of shape {self._shape_of(x)}{tokens}:"
                f" {error}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"the model must return one tensor, not {type(outputs).__name__}; wrap it in a module that does"
            )
        self.units, self._called = _by_first_use(self.units, order), frozenset(order)
        if self.head_name is not None or not all(unit.is_norm for unit in self.units):
            tapped = modules.get(self.head_unit.name)
            if tapped is not None and tapped is not self.net.module:
                tapped.register_forward_pre_hook(self._tap, with_kwargs=True)
        return outputs

    def _shape_of(self, x: Tensor) -> str:
        return str(tuple(x.shape[1:]) if self.net.call is None else self.net.call.layout)

    def _tap(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.net._tapped = next(iter((*args, *named.values())), None)


def _by_first_use(units: tuple[Unit, ...], order: list[str]) -> tuple[Unit, ...]:
    """Sort units by first use; one that is never called itself stays behind the one defined before it."""
    position: dict[str, tuple[int, int]] = {}
    last = -1
    for rank, unit in enumerate(units):
        last = order.index(unit.name) if unit.name in order else last
        position[unit.name] = (last, rank)
    return tuple(sorted(units, key=lambda unit: position[unit.name]))


def _why_nothing_trains(module: nn.Module) -> str:
    """What is wrong with a model that has no parameters to train."""
    frozen = sum(1 for _ in module.parameters())
    why = f": all {frozen} are frozen; call requires_grad_(True) on those that should be trained" if frozen else ""
    return f"the model {type(module).__name__} has no parameters to train{why}"
