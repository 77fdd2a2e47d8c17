"""How a network takes several inputs, or sequences of different length: by the parameters of its `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.errors import ModelError
from ..core.layout import InputLayout, Nested, Padded, rebuild, walk
from ..core.once import say_once

LENGTHS, MASK, ATTENTION_MASK = "lengths", "mask", "attention_mask"
SAID = (LENGTHS, MASK, ATTENTION_MASK)
"""What a network is told of sequences that were filled up, where its `forward` has such a parameter: how long they are,
where they have values (booleans), and the same as whole numbers."""


@dataclass(frozen=True)
class Call:
    """How inputs in rows are given to a network.

    Attributes:
        layout: how they lie in a row.
        style: `named` parameters, `placed` one after another, or all as `one` argument.
        extras: parameters that are told of sequences, with the path of the sequence.
    """

    layout: InputLayout
    style: str
    extras: tuple[tuple[str, str], ...] = ()

    def arguments(self, inputs: Tensor | Nested) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `forward` for rows, or for inputs that are still apart."""
        nested = self.layout.unpack(inputs if isinstance(inputs, Tensor) else self.layout.pack(inputs))
        found = dict(walk(nested))
        told = {name: _tell(name, found[path]) for name, path in self.extras}
        plain = _values(nested)
        if self.style == "named":
            return (), {**plain, **told}
        if self.style == "placed":
            return plain, told
        if isinstance(plain, dict):  # sequences in it are told of beside them
            plain |= {f"{n}_{LENGTHS}": value.lengths for n, value in nested.items() if isinstance(value, Padded)}
        return (plain,), told

    def pack(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
        """The rows for arguments of `forward`; what tells of sequences comes with them, or is found from them."""
        paths = {path: name for name, path in self.extras if name in named}
        plain = {name: value for name, value in named.items() if name not in dict(self.extras)}
        nested: Any = args[0] if len(args) == 1 and not plain and self.style == "one" else plain if plain else args
        if self.style == "named" and args:
            names = [name for name in self.layout.structure if name not in plain]
            nested = {**dict(zip(names, args, strict=False)), **plain}
        leaves = dict(walk(nested)) if not isinstance(nested, list) else {"": nested}
        told = [_untell(value, paths.get(path), named) for path, value in leaves.items()]
        return self.layout.pack(rebuild(nested, iter(told)) if isinstance(nested, dict | tuple) else told[0])

    def __call__(self, module: nn.Module, inputs: Tensor) -> Any:
        """What a network makes of inputs in rows."""
        args, named = self.arguments(inputs)
        return module(*args, **named)


def plan_call(layout: InputLayout, module: nn.Module) -> Call:
    """How to give inputs to a network, or a `ModelError` where it cannot take them."""
    parameters = inspect.signature(module.forward).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    extras = _find_extras(layout, names)
    told = {name for name, _ in extras}
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [name for name in needed if name not in told]
    structure = layout.structure
    if any(leaf.sequence for leaf in layout.leaves) and not told:
        say_once(
            f"sequences are filled up with zeros to one length, which {type(module).__name__} is not told: its"
            " forward has"
            f" none of the parameters {', '.join(SAID)}"
        )
    if isinstance(structure, Mapping):
        if (structure.keys() <= names or anything) and set(needed) <= structure.keys():
            return Call(layout, "named", extras)
        if len(needed) <= 1 and places and not structure.keys() & names:
            return Call(layout, "one", extras)
    elif isinstance(structure, tuple):
        free = [p for p in places if p.name not in told]
        if (len(free) >= len(structure) > 1 or many) and len(needed) <= len(structure):
            return Call(layout, "placed", extras)
        if len(needed) <= 1 and places:
            return Call(layout, "placed" if len(structure) == 1 else "one", extras)
    elif len(needed) <= 1 and places:
        return Call(layout, "one", extras)
    takes = ", ".join(p.name for p in parameters) or "nothing"
    raise ModelError(
        f"the inputs are {layout}, but forward of {type(module).__name__} takes {takes}; give it a parameter for"
        " each input,"
        " or one for all of them"
    )


def _find_extras(layout: InputLayout, names: set[str]) -> tuple[tuple[str, str], ...]:
    """The parameters that are told of sequences: `lengths` where there is one sequence, else `tokens_lengths`."""
    paths = dict(walk(layout.structure))
    sequences = [path for path, leaf in paths.items() if leaf.sequence]
    wanted = {f"{path}_{what}": path for path in sequences for what in SAID}
    if len(sequences) == 1:
        wanted |= dict.fromkeys(SAID, sequences[0])
    return tuple((name, path) for name, path in wanted.items() if name in names and name not in paths)


def _tell(name: str, sequences: Padded) -> Tensor:
    if name.endswith(LENGTHS):
        return sequences.lengths
    return sequences.mask.long() if name.endswith(ATTENTION_MASK) else sequences.mask


def _untell(values: Any, name: str | None, named: Mapping[str, Any]) -> Any:
    """Sequences that were filled up, with their lengths, where some are told."""
    if name is None or isinstance(values, list):
        return values
    return Padded(values, named[name] if name.endswith(LENGTHS) else named[name].sum(1))


def _values(nested: Nested) -> Any:
    if isinstance(nested, Padded):
        return nested.values
    if isinstance(nested, dict):
        return {name: _values(part) for name, part in nested.items()}
    return tuple(map(_values, nested)) if isinstance(nested, tuple) else nested
