"""Weighted sums of trees over clients, in double precision: all averaging of models happens here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Sums of one slot over those who sent it; sums of two groups of clients add up (`+`) to those of both.

    Attributes:
        total: per leaf the sum of p m v over clients, with weights p, masks m and values v, in double precision; of
            leaves of whole numbers (counters of batches) the largest value.
        weight: per leaf the sum of p m, a number where nobody masked anything.
        count: how many clients sent the slot.
    """

    total: Mapping[str, Tensor]
    weight: Mapping[str, Tensor]
    count: int
    _everybody: float
    """The sum of p over all of them, whatever they masked."""
    _dtypes: Mapping[str, torch.dtype]
    """The leaves' own types, which means have."""
    _missing: str = "keep"
    """What a coordinate that was not sent counts as; see `Slot.missing`."""

    @classmethod
    def of(
        cls,
        sent: Iterable[tuple[Mapping[str, Tensor], float | Tensor, Mapping[str, Tensor] | None]],
        missing: str = "keep",
        before: Sums | None = None,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> Sums:
        """Sums of (tree, weight, mask) per client; a weight that is a vector weighs the rows of every leaf. With sums
        `before`, they are those over all of these clients in a row, to the bit. Leaves that are not `wanted` are left
        to others (`join`).

        >>> Sums.of([({"w": torch.tensor([0.0, 0.0])}, 3, None), ({"w": torch.tensor([4.0, 8.0])}, 1, None)]).mean()
        {'w': tensor([1., 2.])}
        """
        clients = list(sent)
        names = dict.fromkeys(name for leaves, _, _ in clients for name in leaves)
        start = before or cls({}, {}, 0, 0.0, {}, missing)
        total, weight, dtypes = dict(start.total), dict(start.weight), dict(start._dtypes)
        for name in names:
            here = [(leaves[name], p, (mask or {}).get(name)) for leaves, p, mask in clients if name in leaves]
            dtypes.setdefault(name, here[0][0].dtype)
            if wanted(name):
                total[name], weight[name] = _sum_leaf(here, total.get(name), weight.get(name))
        scalars = [float(p) for _, p, _ in clients if not isinstance(p, Tensor) or p.ndim == 0]
        everybody = add_in_order(start._everybody, scalars)
        return cls(total, weight, start.count + len(clients), everybody, dtypes, missing)

    @staticmethod
    def join(parts: Sequence[Sums]) -> Sums:
        """The sums of all leaves, from sums of some leaves each over the same clients.

        >>> tree, names = {"w": torch.ones(1), "b": torch.zeros(1)}, ("b", "w")
        >>> Sums.join([Sums.of([(tree, 2, None)], wanted=name.__eq__) for name in names]).mean()
        {'w': tensor([1.]), 'b': tensor([0.])}
        """
        total = {name: leaf for part in parts for name, leaf in part.total.items()}
        weight = {name: leaf for part in parts for name, leaf in part.weight.items()}
        names = parts[0]._dtypes
        return parts[0].replace_leaves({n: total[n] for n in names}, {n: weight[n] for n in names})

    def mean(self, before: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The weighted mean; what nobody sent keeps its value `before` (zero, if there is none)."""
        after = dict(before or {})
        for name, total in self.total.items():
            after[name] = self._mean_leaf(name, total, before.get(name) if before else None).to(self._dtypes[name])
        return after

    def _mean_leaf(self, name: str, total: Tensor, before: Tensor | None) -> Tensor:
        if not self._dtypes[name].is_floating_point:
            return total
        weight, old = self.weight[name], torch.zeros_like(total) if before is None else before.to(torch.float64)
        if self._missing == "zero":
            return total / self._everybody
        if self._missing == "before":
            return (total + (self._everybody - weight) * old) / self._everybody
        return torch.where(weight > 0, total / weight.clamp_min(torch.finfo(weight.dtype).tiny), old)

    def replace_leaves(self, total: Mapping[str, Tensor], weight: Mapping[str, Tensor]) -> Sums:
        """The same sums with other numbers, as when they travel without them."""
        return replace(self, total=total, weight=weight)

    def __add__(self, other: Sums) -> Sums:
        """The sums over the clients of both."""

        def combine(a: Mapping[str, Tensor], b: Mapping[str, Tensor], largest: bool) -> dict[str, Tensor]:
            both = {**a, **b}
            for name in a.keys() & b.keys():
                whole = largest and not self._dtypes[name].is_floating_point
                both[name] = torch.maximum(a[name], b[name]) if whole else a[name] + b[name]
            return both

        return replace(
            self,
            total=combine(self.total, other.total, largest=True),
            weight=combine(self.weight, other.weight, largest=False),
            count=self.count + other.count,
            _everybody=self._everybody + other._everybody,
            _dtypes={**other._dtypes, **self._dtypes},
        )


def add_in_order(start: float, numbers: Iterable[float]) -> float:
    """Numbers added one after another; `sum` of newer Pythons adds in another way."""
    return reduce(operator.add, numbers, start)


def _sum_leaf(
    sent: list[tuple[Tensor, float | Tensor, Tensor | None]], before: Tensor | None, weighed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Total and weight of one leaf, over those before as well."""
    leaf = sent[0][0]
    if not leaf.is_floating_point():
        values = [value for value, _, _ in sent]
        known = 0.0 if weighed is None else float(weighed)
        return torch.stack(values if before is None else [before, *values]).amax(0), torch.tensor(known + len(sent))
    total = torch.zeros(leaf.shape, dtype=torch.float64, device=leaf.device) if before is None else before.clone()
    by_row = any(isinstance(p, Tensor) and p.ndim == 1 for _, p, _ in sent)
    if not by_row and all(mask is None for _, _, mask in sent) and (weighed is None or weighed.ndim == 0):
        everybody = add_in_order(0.0 if weighed is None else float(weighed), [float(p) for _, p, _ in sent])
        for value, p, _ in sent:
            total.add_(value, alpha=float(p))
        return total, torch.tensor(everybody, dtype=torch.float64, device=leaf.device)
    weight = torch.zeros_like(total) if weighed is None else weighed.expand_as(total).clone()
    for value, p, mask in sent:
        here = torch.ones_like(leaf) if mask is None else mask.to(leaf.dtype)
        value = torch.where(here > 0, value, torch.zeros_like(value))
        if isinstance(p, Tensor) and p.ndim == 1:
            rows = p.to(torch.float64).reshape(-1, *[1] * (leaf.ndim - 1))
            total.addcmul_(value.to(torch.float64), rows)
            weight.addcmul_(here.to(torch.float64), rows)
        else:
            total.add_(value, alpha=float(p))
            weight.add_(here, alpha=float(p))
    return total, weight
