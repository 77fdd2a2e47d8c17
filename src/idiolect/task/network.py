"""A network as a pure function: `Net` calls any module with given parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.layout import InputLayout
from ..core.tree import Tree
from .inputs import Call, plan_call

Place = tuple[dict[str, Any], str, str]
"""Where a module holds a tensor: in which table, by which key; and the tensor's name."""


class Output(NamedTuple):
    """What a forward pass gives: outputs, the features that enter the head, the buffers after it."""

    outputs: Tensor
    features: Tensor
    buffers: Tree


class Net:
    """Any module as a pure function of its parameters and buffers.

    Parameters that the user froze (`requires_grad=False`) are constants: they stay in the module and are no argument of
    `apply`. So are the running statistics of a normalisation layer whose parameters are all frozen, which stays in
    evaluation mode. A parameter or buffer that several modules share counts once, under its first name.

    Attributes:
        params, buffers: the initial values, by name.
        constants: what is frozen, by name.
        call: how it takes its inputs, where these are several that lie side by side in rows.
        passes: how often it was applied.

    >>> net = Net(nn.Linear(2, 1))
    >>> net.apply({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, {}, torch.ones(3, 2)).outputs.flatten()
    tensor([2., 2., 2.])
    """

    def __init__(self, module: nn.Module, layout: InputLayout | None = None) -> None:
        self.call: Call | None = None if layout is None else plan_call(layout, module)
        self.frozen_norms = _find_frozen_norms(module)
        self._inert = frozenset(name for name, child in module.named_modules() if is_inert(child))
        constant = {name for name, leaf in module.named_parameters() if not leaf.requires_grad}
        constant |= {name for prefix in self.frozen_norms for name in _buffer_names(module, prefix)}
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.params: Tree = {n: leaf.clone() for n, leaf in self.module.named_parameters() if n not in constant}
        self.buffers: Tree = {n: leaf.detach().clone() for n, leaf in self.module.named_buffers() if n not in constant}
        self._tapped: Tensor | None = None
        self._frozen: frozenset[str] | None = None
        self._places = self._find_places({*self.params, *self.buffers})
        self._modules = dict(self.module.named_modules())
        self._own_modes = any(type(module).train is not nn.Module.train for module in self._modules.values())
        self.precision: torch.dtype | None = None
        self.passes = 0

    def _find_places(self, wanted: Collection[str]) -> list[Place]:
        """Every place in the module that holds a wanted parameter or buffer; tied ones hold the same name."""
        leaves = (*self.module.named_parameters(), *self.module.named_buffers())
        names = {id(leaf): name for name, leaf in leaves if name in wanted}
        return [
            (table, key, names[id(leaf)])
            for module in self.module.modules()
            for table in (module._parameters, module._buffers)
            for key, leaf in table.items()
            if id(leaf) in names
        ]

    @property
    def constants(self) -> Tree:
        """Frozen parameters and statistics, by name."""
        leaves = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: leaf.detach() for name, leaf in leaves if name not in self.params and name not in self.buffers}

    def apply(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        x: Tensor,
        train: bool = False,
        frozen: frozenset[str] = frozenset(),
    ) -> Output:
        """Run the module on `x`. In training, buffers are updated on a copy; units named in `frozen` stay in
        evaluation mode, as frozen normalisation layers and dropout of nothing do."""
        self.passes += 1
        self._set_mode(train, frozen)
        after = {name: leaf.clone() for name, leaf in buffers.items()} if train else dict(buffers)
        with self._filled(self._places, lambda name: params[name] if name in params else after[name]):
            outputs = self._call(x)
            features = self._tapped if self._tapped is not None else x
        return Output(outputs, features, after)

    def apply_module(self, name: str, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Run one module of the network alone, with some parameters, by their names in the network."""
        places = [place for place in self._places if place[2] in params]
        with self._filled(places, params.__getitem__):
            return self._modules.get(name, self.module)(x)  # type: ignore[no-any-return]

    def holding(self, constants: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Let a network without values use these for what is frozen in it."""
        return self._filled(self._find_places(constants), constants.__getitem__)

    @contextmanager
    def _filled(self, places: Sequence[Place], value: Callable[[str], Tensor]) -> Iterator[None]:
        """Put values into the module for a while."""
        before = [(table, key, table[key]) for table, key, _ in places]
        try:
            for table, key, name in places:
                table[key] = value(name)
            yield
        finally:
            self._tapped = None
            for table, key, leaf in before:
                table[key] = leaf

    def _call(self, x: Tensor) -> Tensor:
        if self.precision is None:
            return self.module(x) if self.call is None else self.call(self.module, x)  # type: ignore[no-any-return]
        with torch.autocast(x.device.type, self.precision):
            outputs: Tensor = (self.module(x) if self.call is None else self.call(self.module, x)).float()
        if self._tapped is not None:
            self._tapped = self._tapped.float()
        return outputs

    def _set_mode(self, train: bool, frozen: frozenset[str]) -> None:
        wanted = frozen if train else None
        if self.module.training == train and wanted == self._frozen:
            return
        if self._own_modes:
            self.module.train(train)
        else:
            for module in self._modules.values():
                module.training = train
        if train:
            for name in frozen | self.frozen_norms | self._inert:
                self._modules[name].training = False
        self._frozen = wanted

    def skeleton(self, known: Mapping[int, Any] | None = None) -> Net:
        """The same network without values: each is a zero that is repeated and takes no memory.

        Args:
            known: what to take for some objects that the module refers to, by their id, instead of a copy.
        """
        bare, leaves = copy.copy(self), (*self.module.parameters(), *self.module.buffers())
        bare.module = copy.deepcopy(self.module, {**(known or {}), **{id(leaf): blank(leaf) for leaf in leaves}})
        bare.params = {name: blank(leaf) for name, leaf in self.params.items()}
        bare.buffers = {name: blank(leaf) for name, leaf in self.buffers.items()}
        bare._places = bare._find_places({*self.params, *self.buffers})
        bare._modules = dict(bare.module.named_modules())
        return bare

    def to(self, device: torch.device | str) -> None:
        """Move the module and its initial values."""
        self.module.to(device)
        self.params = {name: leaf.to(device) for name, leaf in self.params.items()}
        self.buffers = {name: leaf.to(device) for name, leaf in self.buffers.items()}


def blank(leaf: Tensor) -> Tensor:
    """Zeros of the same shape, in the memory of one.

    >>> blank(torch.ones(2, 3)).untyped_storage().nbytes()
    4
    """
    return torch.zeros((), dtype=leaf.dtype, device=leaf.device).expand(leaf.shape)


def is_inert(module: nn.Module) -> bool:
    """Whether a layer is dropout that drops nothing, and so neither random nor different in training.

    >>> is_inert(nn.Dropout(0.0)), is_inert(nn.Dropout2d(0.5))
    (True, False)
    """
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0


def _find_frozen_norms(module: nn.Module) -> frozenset[str]:
    """The normalisation layers with running statistics whose parameters are all frozen."""
    norms = {n: norm for n, norm in module.named_modules() if isinstance(norm, nn.modules.batchnorm._NormBase)}
    parameters = {name: list(norm.parameters(recurse=False)) for name, norm in norms.items()}
    return frozenset(
        name for name, leaves in parameters.items() if leaves and not any(leaf.requires_grad for leaf in leaves)
    )


def _buffer_names(module: nn.Module, prefix: str) -> list[str]:
    return [name for name, _ in module.get_submodule(prefix).named_buffers(prefix)]
