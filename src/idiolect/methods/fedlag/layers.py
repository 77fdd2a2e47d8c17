"""Which layers may become personal, and which of them do by their place in the network."""

from __future__ import annotations

from typing import NamedTuple

from ...task.task import Task


class LayerUnit(NamedTuple):
    """What is scored and becomes personal together: parameters, and all names that go along with them."""

    params: tuple[str, ...]
    along: tuple[str, ...]


def divide_layers(task: Task, private: frozenset[str], granularity: str, attach_norm: str) -> dict[str, LayerUnit]:
    """The model without what is `private`, as layers of the chosen granularity. Buffers of modules without parameters
    go with the layer before them, those before all layers with the first; so does normalisation, if it is attached."""
    layers: dict[str, LayerUnit] = {}
    loose: list[tuple[str, str | None, tuple[str, ...]]] = []
    last: str | None = None
    for unit in task.units:
        params = tuple(name for name in unit.params if name not in private)
        rest = tuple(name for name in unit.buffers if name not in private)
        block = unit.name.partition(".")[0]
        if unit.is_norm or not unit.params:
            if attach_norm == "preceding" or not unit.is_norm:
                loose.append((block, last, params + rest))
            continue
        last = ""
        parts = [(name,) for name in params] if granularity == "tensor" else [params] if params else []
        # With single tensors, buffers and normalisation go with the first tensor of their module.
        for part in parts:
            key = {"module": unit.name, "tensor": part[0], "block": block}[granularity]
            so_far = layers.get(key, LayerUnit((), ()))
            layers[key] = LayerUnit(so_far.params + part, so_far.along + part + rest)
            last, rest = last or key, ()
    for block, before, names in loose:
        near = next(iter(layers), "") if before is None else before
        key = block if granularity == "block" and block in layers else near
        if key in layers:  # not after a layer that is private
            layers[key] = LayerUnit(layers[key].params, layers[key].along + names)
    return layers


def choose_by_place(layers: list[str], place: str, k: int) -> set[str]:
    """The first, the middle or the last k layers, or all.

    >>> sorted(choose_by_place(["a", "b", "c", "d"], "middle", 2))
    ['b', 'c']
    """
    start = {"first": 0, "middle": (len(layers) - k) // 2, "last": len(layers) - k, "all": 0}[place]
    return set(layers) if place == "all" else set(layers[start : start + k])
