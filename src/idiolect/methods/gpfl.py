"""GPFL: shared class embeddings guide the features, and a valve turns them into global and personal ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..contract import About, Batch, ClientContext, Output, Slots, Task, option, register, tree
from ..contract.parts.class_statistics import class_shares, feature_size, shared_labels
from ..contract.parts.feature_networks import FeatureNets
from ..contract.parts.heads import head_outputs
from ..task.losses import cross_entropy

CLASSES, VALVE, CONDITION, RECEIVED = "gpfl.classes", "gpfl.valve", "gpfl.condition", "gpfl.received"


class Valve(nn.Module):
    """The conditional valve: from a condition, the scale and the shift of every feature, `[2, features]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)) for _ in range(2))

    def forward(self, condition: Tensor) -> Tensor:
        return torch.stack([self.scale(condition), self.shift(condition)])


@register("gpfl")
@dataclass(frozen=True)
class GPFL(FeatureNets):
    r"""GPFL (Zhang et al., ICCV 2023): beside the body the clients share an embedding :math:`e_c` of every class and a
    valve, which turns features f into features for a condition v,

    .. math:: V(f, v) = \mathrm{ReLU}\bigl((1 + \gamma(v)) \odot f + \beta(v)\bigr).

    There are two conditions, fixed from the received embeddings when a round begins: the global one is their mean,
    the personal one :math:`p_i` their mean by the client's class counts. The private output layer h gets the personal
    features; the global ones :math:`f^G` learn to point to, and to be near, the embedding of their class:

    .. math:: \ell\bigl(h(V(f, p_i)), y\bigr) - \log \frac{\exp \cos(f^G, e_y)}{\sum_c \exp \cos(f^G, e_c)}
        + \lambda \|f^G - \hat e_y\|_2,

    with the received embedding :math:`\hat e`. Embeddings and valve have the weight decay mu, and are averaged like the
    body; a client predicts with :math:`h(V(f, p_i))`. Clients may have labels of their own: a class is known by its
    name, and each has an output layer for its own classes. Run it: ``idiolect run gpfl``.
    """

    about = About(
        "Features guided by shared class embeddings, personal by a valve",
        family="private layers",
        paper="zhang2023gpfl",
        reveals="the body, the class embeddings and the valve",
        stays="the head",
    )
    refuses = replace(FeatureNets.refuses, own_labels="")
    networks = (CLASSES, VALVE)
    beside = (VALVE, CONDITION)

    lam: float = option(0.01, min=0.0, help="pull of the global features towards the embedding of their class")
    mu: float = option(0.1, min=0.0, help="weight decay of embeddings and valve")

    def modules(self, task: Task) -> dict[str, nn.Module]:
        size = feature_size(task)
        return {CLASSES: nn.Embedding(task.all_classes or 1, size), VALVE: Valve(size)}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The conditions, by the received embeddings, which are remembered."""
        classes = work[CLASSES]["weight"]
        condition = {"global": classes.mean(0), "personal": class_shares(ctx) @ classes}
        return {**work, CONDITION: condition, RECEIVED: work[CLASSES]}

    def penalty(self, ctx: ClientContext, slots: Slots, out: Output, batch: Batch) -> Tensor:
        """How far the global features are from their classes: in direction, and lambda times in place."""
        common, y = self.valve(ctx, slots, "global", out.features), shared_labels(ctx, batch.y)
        cosines = nn.functional.normalize(common) @ nn.functional.normalize(slots[CLASSES]["weight"]).T
        apart = torch.linalg.vector_norm(common - slots[RECEIVED]["weight"][y], dim=1)
        guided: Tensor = cross_entropy(cosines, y) + self.lam * apart
        return (guided * batch.weight).sum() / batch.weight.sum()

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of everything, with weight decay of embeddings and valve."""
        grad = self.forward_grad(ctx, work, batch)
        decayed = {slot: tree.add(grad.slots[slot], work[slot], self.mu) for slot in self.networks}
        return self.optimize_slots(ctx, work, replace(grad, slots={**grad.slots, **decayed}), batch)

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The output layer on the personal features; `features` are those of the body."""
        out = self.model_output(ctx, slots, x, train)
        personal = self.valve(ctx, slots, "personal", out.features)
        return out._replace(outputs=head_outputs(ctx.task, slots["params"], personal))

    def valve(self, ctx: ClientContext, slots: Slots, condition: str, features: Tensor) -> Tensor:
        """The features for one of the conditions."""
        scale, shift = ctx.nets[VALVE].apply(slots[VALVE], {}, slots[CONDITION][condition]).outputs
        return torch.relu((1 + scale) * features + shift)
