"""A network as plain values, by which another process builds it again: the expression that built it, or its layers with
their arguments. Nothing is pickled, and code of a user's own is named, never written down."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.code import load_code, name_code, user_code
from ..core.errors import ModelError
from ..core.fingerprint import fingerprint
from ..data import Federation
from ..models import build

_RECURRENT = (
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
)
_PLACES = ("device", "dtype")


@dataclass(frozen=True)
class Described:
    """What a network must know of data, without the data.

    Attributes:
        input_shape, target_shape: the shapes of one sample; of several inputs, a shape for each.
        outputs: how many numbers a network gives for it.
        tokens: whether the inputs are tokens.
        vocabulary: how many different tokens there are.
    """

    input_shape: Any
    target_shape: tuple[int, ...]
    outputs: int
    tokens: bool
    vocabulary: int

    @classmethod
    def of(cls, data: Federation) -> Described:
        """What some data say of themselves."""
        words = data.vocabulary if data.tokens or data.layout is not None else 0
        return cls(data.input_shape, data.target_shape, data.outputs, data.tokens, words)


def describe_network(module: nn.Module, built_by: str, data: Described, example: Tensor | None) -> dict[str, Any]:
    """A network as plain values: `expression` or `layers`, or neither where it cannot be built again from what its
    layers say of themselves; the class, its `code`, the shapes of its values, and the names of what is frozen.

    Args:
        module: the network.
        built_by: the expression that built it; "" where it was given built.
        data: what it was built for.
        example: inputs on which what is built must compute the same; None where one tensor is not enough.
    """
    kind = type(module)
    plain: dict[str, Any] = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "code": hash_own_code(module),
        "frozen": sorted(name for name, leaf in module.named_parameters() if not leaf.requires_grad),
        "shapes": {name: list(leaf.shape) for name, leaf in values_of(module).items()},
    }
    ways: list[dict[str, Any]] = [{"expression": built_by}] if built_by else []
    if layers := _describe_layers(module):
        ways.append({"layers": layers})
    for way in ways:
        if _computes_the_same(module, way, data, example):
            return plain | way
    return plain


def build_network(
    plain: Mapping[str, Any], data: Described, given: nn.Module | None = None, most: float = math.inf
) -> nn.Module:
    """The network that plain values describe, with initial values, or the one that is given, if it is alike; an error
    that names what is missing. One that would hold more than `most` numbers is not built."""
    if given is not None:
        require_shapes(given, plain["shapes"])
        return given
    if (size := _measure(plain, data)) > most:
        raise ModelError(
            f"the network that is described would hold {size:,} numbers, too many for the values that are with it; do "
            "not open a file whose origin you do not know, and save the model again if it is yours"
        )
    module = _build(plain, data)
    if module is None:
        raise ModelError(
            f"the network {plain['class']} was built in Python and cannot be built again from what its layers say of "
            "themselves; build it there in the same way, and give it as load_model(path, module)"
        )
    if plain["code"] not in (None, hash_own_code(module)):
        raise ModelError(
            f"the code of the network {plain['class']} is another one than when the model was saved; use the code of "
            "then, or build the network yourself and give it as load_model(path, module)"
        )
    require_shapes(module, plain["shapes"])
    frozen = set(plain["frozen"])
    for name, leaf in module.named_parameters():
        leaf.requires_grad_(name not in frozen)
    return module


def hash_own_code(module: nn.Module) -> str | None:
    """A fingerprint of the classes in a network that are neither PyTorch's nor this library's; None without any."""
    kinds = {type(part).__qualname__: type(part) for part in module.modules()}
    own = [kind for _, kind in sorted(kinds.items()) if kind.__module__.partition(".")[0] not in ("torch", "idiolect")]
    return fingerprint(own) if own else None


def values_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name, also those that no state dict has; tied ones under each name."""
    leaves = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: leaf.detach() for name, leaf in leaves}


def fill(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """The module, with all its values set to these."""
    require_shapes(module, {name: list(leaf.shape) for name, leaf in values.items()})
    with torch.no_grad():
        for name, leaf in values_of(module).items():
            leaf.copy_(values[name])
    return module


def require_shapes(module: nn.Module, wanted: Mapping[str, Sequence[int]]) -> None:
    """Raise an error unless a network's values have these names and shapes."""
    shapes = {name: list(leaf.shape) for name, leaf in values_of(module).items()}
    if wrong := sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name)):
        name, sides = wrong[0], (wanted, shapes)
        kinds = [f"has the shape {side[name]}" if name in side else "is missing" for side in sides]
        raise ModelError(
            f"the values in the file do not fit the network {type(module).__name__}: {name!r} {kinds[0]} in the "
            f"file and {kinds[1]} in the network; give the network that they were trained in"
        )


def _build(plain: Mapping[str, Any], data: Described) -> nn.Module | None:
    with torch.random.fork_rng(devices=[]):
        if "expression" in plain:
            return build(str(plain["expression"]), data)
        return _build_layers(plain["layers"]) if "layers" in plain else None


def _measure(plain: Mapping[str, Any], data: Described) -> int:
    """How many numbers a network would hold, without holding them; 0 where own code builds it, which may look at what
    it makes."""
    if ":" in str(plain.get("expression")) or ":" in _class_names(plain.get("layers")):
        return 0
    with torch.device("meta"):
        module = _build(plain, data)
    return sum(leaf.numel() for leaf in values_of(module).values()) if module else 0


def _class_names(layers: Any) -> str:
    """The names of all classes in a description of layers, in one text."""
    if not isinstance(layers, Mapping):
        return ""
    return " ".join([str(layers.get("class")), *map(_class_names, (layers.get("parts") or {}).values())])


def _computes_the_same(module: nn.Module, way: Mapping[str, Any], data: Described, example: Tensor | None) -> bool:
    try:
        twin = _build(way, data)
        assert twin is not None
        mine, its = values_of(module), values_of(twin)
        if [(n, v.shape, v.dtype) for n, v in mine.items()] != [(n, v.shape, v.dtype) for n, v in its.items()]:
            return False
        if str(module) != str(twin):
            return False
        if example is None:
            return "expression" in way
        fill(twin, mine)
        return _same_outputs(module, twin, example)
    except Exception:  # whatever a user's own class raises, it cannot be built in this way
        return False


def _same_outputs(module: nn.Module, twin: nn.Module, example: Tensor) -> bool:
    modes = {name: part.training for name, part in module.named_modules()}
    kept = {name: leaf.clone() for name, leaf in values_of(module).items()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            place = next(module.parameters()).device
            return torch.equal(module.eval()(example.to(place)), twin.to(place).eval()(example.to(place)))
    finally:
        for name, part in module.named_modules():
            part.training = modes[name]
        fill(module, kept)


def _describe_layers(module: nn.Module) -> dict[str, Any] | None:
    """The class of a module, its arguments and, of PyTorch's containers, its parts; None where it does not say them."""
    kind = type(module)
    if kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
        parts = {name: _describe_layers(part) for name, part in module.named_children()}
        return None if None in parts.values() else {"class": kind.__name__, "parts": parts}
    name = kind.__name__ if getattr(nn, kind.__name__, None) is kind else name_code(kind)
    arguments = _find_arguments(module)
    return None if not name or arguments is None else {"class": name, "arguments": arguments}


def _find_arguments(module: nn.Module) -> dict[str, Any] | None:
    """The arguments that built a module, from its attributes of the same names; None where one is missing."""
    if isinstance(module, nn.RNNBase):
        known = {name: getattr(module, name) for name in _RECURRENT}
        return known | ({"proj_size": module.proj_size} if module.proj_size else {})
    found = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        value = getattr(module, name, parameter.empty)
        if isinstance(parameter.default, bool) and (value is None or isinstance(value, Tensor)):
            value = value is not None
        if name in _PLACES or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if _is_plain(value):
            found[name] = value
        elif parameter.default is parameter.empty:
            return None
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _build_layers(plain: Mapping[str, Any]) -> nn.Module:
    name = str(plain["class"])
    if name in ("Sequential", "ModuleList", "ModuleDict"):
        container = getattr(nn, name)()
        for part, value in plain["parts"].items():
            container.add_module(part, _build_layers(value))
        return container  # type: ignore[no-any-return]
    kind = load_code(name, "network") if ":" in name else getattr(nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ModelError(f"{name!r} is no class of networks")
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in plain["arguments"].items()}
    with user_code(f"the network {name} cannot be built", ModelError):
        return kind(**arguments)
