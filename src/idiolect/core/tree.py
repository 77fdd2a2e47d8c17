"""Arithmetic on trees. A tree is `dict[str, Tensor]`: parameters or buffers by name; slots are
`dict[str, tree]`. Everything here is pure. Uploads are averaged by `core.sums`; `mean` and
`means` average a list of trees at once."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Slots = dict[str, Tree]
T = TypeVar("T")
# Products over many models go over so many coordinates at a time, so that they need little memory.
_COLUMNS = 1 << 16


def map(fn: Callable[..., Tensor], first: Mapping[str, Tensor], *others: Mapping[str, Tensor]) -> Tree:
    """Apply `fn` name by name; the names are those of the first tree.

    >>> map(torch.add, {"w": torch.ones(1)}, {"w": torch.ones(1), "more": torch.zeros(1)})
    {'w': tensor([2.])}
    """
    return {name: fn(leaf, *(other[name] for other in others)) for name, leaf in first.items()}


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """a - b, name by name."""
    return map(torch.sub, a, b)


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float | Tensor = 1.0) -> Tree:
    """a + scale * b, name by name."""
    if isinstance(scale, Tensor):
        return map(lambda x, y: x + scale * y, a, b)
    return map(lambda x, y: torch.add(x, y, alpha=scale), a, b)  # one pass over memory instead of two


def scale(a: Mapping[str, Tensor], factor: float | Tensor) -> Tree:
    """factor * a, name by name."""
    return map(lambda x: factor * x, a)


def mix(a: Mapping[str, Tensor], b: Mapping[str, Tensor], share: float | Tensor) -> Tree:
    """share * a + (1 - share) * b, name by name."""
    return map(lambda x, y: share * x + (1 - share) * y, a, b)


def to_device(slots: Mapping[str, Mapping[str, Tensor]], device: str) -> Slots:
    """Slots on a device; what is there already is not copied."""
    return {slot: map(lambda leaf: leaf.to(device), leaves) for slot, leaves in slots.items()}


def zeros_like(a: Mapping[str, Tensor]) -> Tree:
    """A tree of zeros of the same shapes."""
    return map(torch.zeros_like, a)


def floats(a: Mapping[str, Tensor]) -> Tree:
    """The leaves that can be mixed; the others are whole numbers, such as counters of batches.

    >>> floats({"mean": torch.tensor([0.5]), "batches": torch.tensor(3)})
    {'mean': tensor([0.5000])}
    """
    return {name: leaf for name, leaf in a.items() if leaf.is_floating_point()}


def pick(a: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The part of a tree (or of slots) that carries `names`, in its own order."""
    wanted = frozenset(names)
    return {name: leaf for name, leaf in a.items() if name in wanted}


def drop(a: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The part of a tree (or of slots) that does not carry `names`."""
    unwanted = frozenset(names)
    return {name: leaf for name, leaf in a.items() if name not in unwanted}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """The inner product of two trees, as a 0-d tensor."""
    return torch.stack([(leaf * b[name]).sum() for name, leaf in a.items()]).sum()


def norm(a: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of a tree, as a 0-d tensor.

    >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(5.)
    """
    return dot(a, a).sqrt()


def cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """The cosine of the angle between two trees; 0 where one of them is zero."""
    length = norm(a) * norm(b)
    return torch.where(length > 0, dot(a, b) / length.clamp_min(torch.finfo(length.dtype).tiny), 0.0)


def size(a: Mapping[str, Tensor]) -> int:
    """How many numbers a tree holds."""
    return sum(leaf.numel() for leaf in a.values())


def flatten(a: Mapping[str, Tensor], names: Iterable[str] | None = None) -> Tensor:
    """The leaves (or those called `names`) as one vector."""
    leaves = a.values() if names is None else [a[name] for name in names]
    return torch.cat([leaf.reshape(-1) for leaf in leaves])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> Tree:
    """The inverse of `flatten`: a vector as a tree with the names and shapes of another.

    >>> unflatten(torch.arange(3.0), {"w": torch.zeros(1, 2), "b": torch.zeros(1)})
    {'w': tensor([[0., 1.]]), 'b': tensor([2.])}
    """
    pieces = torch.split(vector, [leaf.numel() for leaf in like.values()])
    return {name: piece.reshape(leaf.shape) for (name, leaf), piece in zip(like.items(), pieces, strict=True)}


def stack(trees: Sequence[Mapping[str, Tensor]]) -> Tree:
    """One tree whose leaves carry the given trees along a new first axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(a: Mapping[str, Tensor]) -> list[Tree]:
    """The inverse of `stack`."""
    length = next(iter(a.values())).shape[0]
    return [{name: leaf[i] for name, leaf in a.items()} for i in builtins.range(length)]


def mean(
    trees: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float | Tensor],
    masks: Sequence[Mapping[str, Tensor] | None] | None = None,
    keep: Mapping[str, Tensor] | None = None,
    denominator: str = "uploaders",
) -> Tree:
    r"""The weighted mean over those who sent a coordinate; what nobody sent keeps its value.

    For each coordinate q, with m_i,q = 1 where client i sent it,

    .. math:: \text{mean}_q = \sum_i p_i m_{i,q} v_{i,q} / \sum_i p_i m_{i,q}.

    Args:
        trees: one tree per client; a name that is absent was not sent.
        weights: one non-negative number per client; they need not sum to one.
        masks: per client None (all that it has was sent) or a boolean tree.
        keep: the previous values, kept where nobody sent anything.
        denominator: `uploaders` as above; `all` divides by the weight of all clients and keeps the
            previous value with the rest of the weight; `zeros` counts what was not sent as zero.

    Sums are taken in double precision, so a mask of ones gives the same bits as no mask, and one
    client's mean is the client's value. Integer leaves (batch counters) take the maximum.

    >>> mean([{"w": torch.tensor([0.0, 0.0])}, {"w": torch.tensor([4.0, 8.0])}], [3, 1])
    {'w': tensor([1., 2.])}
    >>> first = {"w": torch.tensor([True, False])}
    >>> mean([{"w": torch.tensor([1.0, 7.0])}], [2], [first], keep={"w": torch.tensor([5.0, 5.0])})
    {'w': tensor([1., 5.])}
    """
    masks = masks if masks is not None else [None] * len(trees)
    numbers = [float(weight) for weight in weights]
    result: Tree = dict(keep or {})
    for name in dict.fromkeys(name for tree in trees for name in tree):
        sent = [
            (tree[name], number, mask.get(name) if mask else None)
            for tree, number, mask in zip(trees, numbers, masks, strict=True)
            if name in tree
        ]
        before = keep.get(name) if keep else None
        result[name] = _leaf_mean(sent, before, sum(numbers), denominator)
    return result


def means(trees: Sequence[Mapping[str, Tensor]], weights: Tensor) -> list[Tree]:
    """The weighted means for several weightings, a row of `weights` each, as one product of matrices; everybody sent
    everything. As in `mean` sums are taken in double precision, and integer leaves take the maximum.

    >>> means([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], torch.tensor([[3, 1], [0, 1]]))
    [{'w': tensor([1.])}, {'w': tensor([4.])}]
    """
    numbers = weights.to(torch.float64)
    shares, result = numbers / numbers.sum(1, keepdim=True), [Tree() for _ in numbers]
    for name, leaf in trees[0].items():
        rows = torch.stack([tree[name].flatten() for tree in trees])
        if leaf.is_floating_point():
            pieces = [(shares @ piece.to(torch.float64)).to(leaf.dtype) for piece in torch.split(rows, _COLUMNS, dim=1)]
            averaged = torch.cat(pieces, dim=1)
        else:
            averaged = rows.amax(0).expand(len(shares), -1)
        for made, row in zip(result, averaged, strict=True):
            made[name] = row.reshape(leaf.shape)
    return result


def _leaf_mean(
    sent: list[tuple[Tensor, float, Tensor | None]], before: Tensor | None, total: float, denominator: str
) -> Tensor:
    leaf = sent[0][0]
    if not leaf.is_floating_point():
        return torch.stack([value for value, _, _ in sent]).amax(0)
    above = torch.zeros(leaf.shape, dtype=torch.float64, device=leaf.device)
    if all(mask is None for _, _, mask in sent):
        below: Tensor = torch.tensor(sum(weight for _, weight, _ in sent), dtype=torch.float64, device=leaf.device)
        for value, weight, _ in sent:
            above.add_(value, alpha=weight)
    else:
        below = torch.zeros_like(above)
        for value, weight, mask in sent:
            here = torch.ones_like(leaf) if mask is None else mask.to(leaf.dtype)
            above.add_(torch.where(here > 0, value, torch.zeros_like(value)), alpha=weight)
            below.add_(here, alpha=weight)
    old = torch.zeros_like(above) if before is None else before.to(torch.float64)
    if denominator == "zeros":
        return (above / total).to(leaf.dtype)
    if denominator == "all":
        return ((above + (total - below) * old) / total).to(leaf.dtype)
    return torch.where(below > 0, above / below.clamp_min(torch.finfo(below.dtype).tiny), old).to(leaf.dtype)
