"""GPFL: shared class embeddings guide the features, and a valve turns them into global and personal ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract import About, Batch, ClientContext, Phase, Scored, Slot, Slots, Task, option, register, shared, tree
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.feature_networks import FeatureNets
from ..contract.parts.heads import head_outputs
from ..contract.parts.on_features import params_of
from ..task.losses import cross_entropy
from ..task.network import Output

CLASSES, VALVE = "gpfl.classes", "gpfl.valve"
CONDITION, RECEIVED = "gpfl.condition", "gpfl.received"


class Valve(nn.Module):
    """The conditional valve: from a condition, the scale and the shift of every feature, `[2, features]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)) for _ in range(2))

    def forward(self, condition: Tensor) -> Tensor:
        """Scale and shift."""
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

    with the received embedding :math:`\hat e`. Embeddings and valve have the weight decay mu. Body, embeddings and
    valve are averaged; a client predicts with :math:`h(V(f, p_i))`.

    Hand-worked: scale 1, shift -1: the features (2, 0) become ReLU(2 x 2 - 1, -1) = (3, 0). With the embeddings (1, 0)
    and (0, 2) the cosines are 1 and 0, so for class 0 the second term is log(1 + exp(-1)) = 0.313, and the third
    lambda |(3, 0) - (1, 0)| = 2 lambda.

    An unseen client trains its output layer. The server sees no class counts. Run it: ``idiolect run gpfl``.
    """

    about = About(
        "Features guided by shared class embeddings, made personal by a valve",
        paper="zhang2023gpfl",
        reveals="the body, the class embeddings and the valve",
        stays="the head",
    )

    lam: float = option(0.01, min=0.0, help="pull of the global features towards the embedding of their class")
    mu: float = option(0.1, min=0.0, help="weight decay of embeddings and valve")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, the embeddings of the classes and the valve."""
        return {**super().slots, CLASSES: shared(params_of(CLASSES)), VALVE: shared(params_of(VALVE))}

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The embeddings of the classes, and the valve."""
        size = feature_size(task)
        return {CLASSES: nn.Embedding(task.classes or 1, size), VALVE: Valve(size)}

    # -- client ------------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The conditions, by the received embeddings, which are remembered."""
        classes = work[CLASSES]["weight"]
        shares = ctx.class_counts / ctx.class_counts.sum().clamp_min(1)
        condition = {"global": classes.mean(0), "personal": shares @ classes}
        return {**work, CONDITION: condition, RECEIVED: work[CLASSES]}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains everything."""
        return (Phase(self.step, slots=("params", CLASSES, VALVE)),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One step of everything on the sum of the three terms."""

        def loss(trees: Slots) -> Scored:
            slots = {**work, **trees}
            out = self.forward(ctx, slots, batch.x, train=True)
            guided = self.guidance(ctx, slots, out.features, batch.y)
            extra = (guided * batch.weight).sum() / batch.weight.sum()
            return Scored(ctx.task.score(out.outputs, batch) + extra, *out)

        grad = ctx.grad(work, ctx.phase.slots, batch, loss)
        decayed = {slot: tree.add(grad.slots[slot], work[slot], self.mu) for slot in (CLASSES, VALVE)}
        return self.optimize_slots(ctx, work, replace(grad, slots={**grad.slots, **decayed}), batch)

    def guidance(self, ctx: ClientContext, slots: Slots, features: Tensor, y: Tensor) -> Tensor:
        """Per sample, how far its global features are from their class: in direction, and lambda times in place."""
        common = self.valve(ctx, slots, "global", features)
        cosines = F.normalize(common) @ F.normalize(slots[CLASSES]["weight"]).T
        apart: Tensor = torch.linalg.vector_norm(common - slots[RECEIVED]["weight"][y], dim=1)
        return cross_entropy(cosines, y) + self.lam * apart

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """Model, valve and condition."""
        ready = work if CONDITION in work else self.prepare(ctx, work)
        return {**super().personal_model(ctx, ready), VALVE: ready[VALVE], CONDITION: ready[CONDITION]}

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The output layer on the personal features; `features` are those of the body."""
        out = self.model_output(ctx, slots, x, train)
        personal = self.valve(ctx, slots, "personal", out.features)
        return out._replace(outputs=head_outputs(ctx.task, slots["params"], personal))

    def valve(self, ctx: ClientContext, slots: Slots, condition: str, features: Tensor) -> Tensor:
        """The features for one of the conditions."""
        scale, shift = ctx.nets[VALVE].apply(slots[VALVE], {}, slots[CONDITION][condition]).outputs
        return torch.relu((1 + scale) * features + shift)
