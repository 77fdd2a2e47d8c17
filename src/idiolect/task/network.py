"""A network as a pure function: `Net` calls any module with given parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.tree import Tree


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

    >>> net = Net(nn.Linear(2, 1))
    >>> net.apply({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, {}, torch.ones(3, 2)).outputs.flatten()
    tensor([2., 2., 2.])
    """

    def __init__(self, module: nn.Module) -> None:
        self.frozen_norms = _find_frozen_norms(module)
        constant = {name for name, leaf in module.named_parameters() if not leaf.requires_grad}
        constant |= {name for prefix in self.frozen_norms for name in _buffer_names(module, prefix)}
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.params: Tree = {n: leaf.clone() for n, leaf in self.module.named_parameters() if n not in constant}
        self.buffers: Tree = {n: leaf.detach().clone() for n, leaf in self.module.named_buffers() if n not in constant}
        self._tapped: Tensor | None = None
        self._frozen: frozenset[str] | None = None
        self._places = self._find_places()
        self._modules = dict(self.module.named_modules())
        self._own_modes = any(type(each).train is not nn.Module.train for each in self._modules.values())
        self.precision: torch.dtype | None = None

    def _find_places(self) -> list[tuple[dict[str, Any], str, str]]:
        """Every place in the module that holds a parameter or buffer; tied ones hold the same name."""
        names = {id(leaf): name for name, leaf in self.module.named_parameters() if name in self.params}
        names |= {id(leaf): name for name, leaf in self.module.named_buffers() if name in self.buffers}
        return [
            (table, key, names[id(leaf)])
            for each in self.module.modules()
            for table in (each._parameters, each._buffers)
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
        evaluation mode, as frozen normalisation layers do."""
        self._set_mode(train, frozen)
        after = {name: leaf.clone() for name, leaf in buffers.items()} if train else dict(buffers)
        before = [(table, key, table[key]) for table, key, _ in self._places]
        try:
            for table, key, name in self._places:
                table[key] = params[name] if name in params else after[name]
            outputs = self._call(x)
            features = self._tapped if self._tapped is not None else x
        finally:
            self._tapped = None
            for table, key, leaf in before:
                table[key] = leaf
        return Output(outputs, features, after)

    def _call(self, x: Tensor) -> Tensor:
        if self.precision is None:
            return self.module(x)  # type: ignore[no-any-return]
        with torch.autocast(x.device.type, self.precision):
            outputs: Tensor = self.module(x).float()
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
            for each in self._modules.values():
                each.training = train
        if train:
            for name in frozen | self.frozen_norms:
                self._modules[name].training = False
        self._frozen = wanted

    def to(self, device: torch.device | str) -> None:
        """Move the module and its initial values."""
        self.module.to(device)
        self.params = {name: leaf.to(device) for name, leaf in self.params.items()}
        self.buffers = {name: leaf.to(device) for name, leaf in self.buffers.items()}


def _find_frozen_norms(module: nn.Module) -> frozenset[str]:
    """The normalisation layers with running statistics whose parameters are all frozen."""
    norms = {n: each for n, each in module.named_modules() if isinstance(each, nn.modules.batchnorm._NormBase)}
    own = {name: list(each.parameters(recurse=False)) for name, each in norms.items()}
    return frozenset(name for name, leaves in own.items() if leaves and not any(leaf.requires_grad for leaf in leaves))


def _buffer_names(module: nn.Module, prefix: str) -> list[str]:
    return [name for name, _ in module.get_submodule(prefix).named_buffers(prefix)]
