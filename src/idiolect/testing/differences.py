"""Whether two sets of leaves are equal and, where they are not, which two values are furthest apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.errors import ConformanceError


def require(condition: bool, problem: str) -> None:
    """Raise `ConformanceError` unless the condition holds."""
    if not condition:
        raise ConformanceError(problem)


def require_equal_leaves(a: Mapping[str, Tensor], b: Mapping[str, Tensor], what: str, relative: float = 0.0) -> None:
    """Require two sets of leaves to be the same, to the bit or to a relative tolerance; else say where they differ
    most."""
    require(a.keys() == b.keys(), f"{what}: only one of the two has {', '.join(sorted(a.keys() ^ b.keys()))}")
    apart = [name for name, leaf in a.items() if not close(leaf, b[name], relative)]
    require(not apart, f"{what}: {largest_difference(a, b, apart)}" if apart else "")


def close(a: Tensor, b: Tensor, relative: float) -> bool:
    """Whether two leaves are the same bits, or within a relative tolerance of each other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if relative == 0.0 or not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(
        torch.allclose(a, b, rtol=relative, atol=relative * max(1e-3, float(a.abs().max())) if a.numel() else 0)
    )


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: list[str]) -> str:
    """Where the leaves of these names differ most, and what both are there.

    >>> a, b = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, {"w": torch.tensor([[1.0, 2.5], [3.0, 4.25]])}
    >>> largest_difference(a, b, ["w"])
    'w[0, 1] is 2.0 and 2.5, 2 of 4 values of w differ'
    """
    for name in names:
        if a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            kinds = " and ".join(f"{leaf.dtype} {list(leaf.shape)}" for leaf in (a[name], b[name]))
            return f"{name} is {kinds}"
    gaps = {name: (a[name].double() - b[name].double()).abs().nan_to_num(torch.inf, torch.inf) for name in names}
    name = max(names, key=lambda name: float(gaps[name].max()))
    at = tuple(int(place) for place in torch.unravel_index(gaps[name].argmax(), gaps[name].shape))
    differ = int((gaps[name] > 0).sum())
    others = f", and so do {len(names) - 1} other leaves" if len(names) > 1 else ""
    where = f"{name}[{', '.join(map(str, at))}]" if at else name
    return (
        f"{where} is {a[name][at].item()!r} and {b[name][at].item()!r}, "
        f"{differ} of {gaps[name].numel()} values of {name} differ{others}"
    )
