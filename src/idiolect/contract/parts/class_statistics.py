"""Means of features (or of anything that has rows) class by class: over batches, over a client's data, over clients. A
class without samples has the count 0 and the mean 0, and changes no other mean. All but `merge_means` can be traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import tree
from ...core.errors import ModelError
from ...core.sums import Sums
from ...core.tree import Slots, Tree
from ...task.losses import class_axis
from ...task.task import Batch, Task
from ..context import ClientContext, RoundContext, ServerContext
from ..messages import Uploads
from ..method import Method
from ..slots import Init, Slot, shared


def require_classes(name: str, task: Task) -> int:
    """The number of classes; raises an error where there are none."""
    if task.classes is None:
        raise ModelError(f"{name} treats every class by itself, but this task has none; give a task with classes")
    return task.classes


def shared_labels(ctx: ClientContext, y: Tensor) -> Tensor:
    """A client's labels by the numbers of all clients' classes, which are the same unless it has its own."""
    return ctx.class_numbers[y] if len(ctx.class_numbers) else y


def rows(features: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Features [rows, d], their classes and weights: one row per sample or, where every position of a sample (a pixel,
    a character) has its own class, one per position.

    >>> rows(torch.zeros(2, 3), Batch(torch.zeros(2), torch.tensor([0, 1]), torch.ones(2)))[0].shape
    torch.Size([2, 3])
    """
    y, weight = batch.y, batch.weight
    if y.ndim == 1:
        return features.flatten(1), y, weight
    positions = features.movedim(class_axis(features, y), -1).flatten(0, -2)
    return positions, y.flatten(), weight.reshape(-1, *[1] * (y.ndim - 1)).expand(y.shape).flatten()


def shared_rows(ctx: ClientContext, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The same, with the classes by the numbers of all clients' classes."""
    return rows(features, batch._replace(y=shared_labels(ctx, batch.y)))


def feature_size(task: Task) -> int:
    """How many features enter the last layer: the length of a row."""
    features = task.example_output.features
    x, y = (part[: len(features)].to(features.device) for part in task.example)
    return rows(features, Batch(x, y, torch.ones(len(x), device=x.device)))[0].shape[1]


def class_shares(ctx: ClientContext) -> Tensor:
    """The shares of all clients' classes in the client's training data."""
    shares = ctx.class_counts / ctx.class_counts.sum().clamp_min(1)
    if not len(ctx.class_numbers):
        return shares
    return shares.new_zeros(ctx.task.all_classes or 0).index_add(0, ctx.class_numbers, shares)


def empty(classes: int, size: int, like: Tensor) -> Tree:
    """Means over no samples, or over no clients; `like` is a tensor of the dtype and the device."""
    return {"mean": like.new_zeros(classes, size), "count": like.new_zeros(classes)}


def no_features(ctx: RoundContext) -> Tree:
    """The first value of a slot: means of the features of no sample."""
    return empty(ctx.task.all_classes or 0, feature_size(ctx.task), next(iter(ctx.initial["params"].values())))


def add_rows(means: Mapping[str, Tensor], values: Tensor, y: Tensor, weight: Tensor) -> Tree:
    """The means after some rows more, `values` [rows, d] of the classes `y` [rows].

    >>> one = add_rows(empty(2, 1, torch.ones(1)), torch.tensor([[2.0], [4.0]]), torch.tensor([0, 0]), torch.ones(2))
    >>> add_rows(one, torch.tensor([[9.0]]), torch.tensor([0]), torch.ones(1))
    {'mean': tensor([[5.],
            [0.]]), 'count': tensor([3., 0.])}
    """
    member = (y[:, None] == torch.arange(len(means["count"]), device=y.device)) * weight[:, None].to(values.dtype)
    count = means["count"] + member.sum(0)
    total = means["mean"] * means["count"][:, None] + member.T @ values
    return {"mean": total / count.clamp_min(1)[:, None], "count": count}


def shared_means(slot: str, init: Init) -> Slot:
    """Class means that the server of a method with `ClassMeans` keeps in `slot` and averages, every class by the
    clients' counts of it."""
    return shared(init, weigh=f"{slot}/count")


def global_of(slot: str) -> str:
    """The slot with the class means that a client of a method with `ClassMeans` got.

    >>> global_of("fedpac.prototypes")
    'fedpac.prototypes.global'
    """
    return f"{slot}.global"


@dataclass(frozen=True)
class ClassMeans(Method):
    """A method whose server merges the clients' class means, in all slots that are declared by `shared_means`. While a
    client works, such a slot holds its own means, at first none, and `global_of` the slot those that it got."""

    @property
    def means(self) -> tuple[str, ...]:
        """The slots with class means."""
        return tuple(slot for slot, declared in self.slots.items() if declared.weigh == f"{slot}/count")

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Put what was received aside; nothing of the client's own is measured yet."""
        received = {global_of(slot): work[slot] for slot in self.means}
        return {**work, **received, **{slot: tree.zeros_like(work[slot]) for slot in self.means}}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The means of all that was sent; a class that nobody sent keeps what is known of it."""
        merged = {slot: merge_means(sums[slot], server[slot]) for slot in self.means}
        return {**super().aggregate(ctx, server, sums, each), **merged}


def merge_means(sums: Sums, before: Mapping[str, Tensor]) -> Tree:
    r"""Clients' means as one, and the counts of all; a class that nobody has keeps what was before.

    .. math:: \bar h^c = \sum_i n_i^c \bar h_i^c / \sum_i n_i^c

    >>> one = {"mean": torch.tensor([[2.0], [0.0]]), "count": torch.tensor([1.0, 0.0])}
    >>> other = {"mean": torch.tensor([[6.0], [0.0]]), "count": torch.tensor([3.0, 0.0])}
    >>> sums = Sums.of([(each, each["count"], None) for each in (one, other)])
    >>> merge_means(sums, {"mean": torch.tensor([[0.0], [7.0]]), "count": torch.tensor([9.0, 9.0])})
    {'mean': tensor([[5.],
            [7.]]), 'count': tensor([4., 9.])}
    """
    count = sums.weight["count"].to(before["count"].dtype)
    return {"mean": sums.mean(before)["mean"], "count": torch.where(count > 0, count, before["count"])}


def distance(values: Tensor, y: Tensor, weight: Tensor, means: Mapping[str, Tensor]) -> Tensor:
    r"""The mean squared distance of rows from the means of their classes; an unknown class counts as no distance.

    .. math:: \frac{1}{n} \sum_l \frac{1}{d} \|h_l - \bar h^{y_l}\|^2

    >>> means = {"mean": torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "count": torch.tensor([5.0, 0.0])}
    >>> distance(torch.tensor([[1.0, 3.0], [8.0, 8.0]]), torch.tensor([0, 1]), torch.ones(2), means)
    tensor(1.)
    """
    known = (means["count"] > 0).to(values.dtype)[y] * weight
    return (known * (values - means["mean"][y]).square().mean(1)).sum() / weight.sum()
