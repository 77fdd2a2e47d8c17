"""FedCP: a policy splits every sample's features into a global and a personal part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract import (
    About,
    Batch,
    ClientContext,
    ModelError,
    Phase,
    Scored,
    ServerContext,
    Slots,
    Task,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.feature_networks import FeatureNets
from ..contract.parts.heads import head_outputs
from ..task.network import Output

POLICY = "fedcp.policy"
HEAD = "fedcp.head"
CONTEXT = "fedcp.context"
FROZEN = "fedcp.frozen"
BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


@register("fedcp")
@dataclass(frozen=True)
class FedCP(FeatureNets):
    r"""FedCP (Zhang et al., KDD 2023): a shared policy network looks at a sample's features f and at the client's
    context v, the normalised column sum of its own output layer, and gives each feature a personal share r (a soft-max
    of two, with Gumbel noise in training). Own and global output layer get a part each:

    .. math:: h_i(r \odot f) + h_g((1 - r) \odot f), \quad (r, 1 - r) = \mathrm{softmax}(\pi(f \odot v) + \text{noise}).

    A client trains body, own layer and policy; the global layer is frozen, and so is the body :math:`f_g` as it was
    received, near which the features are held:

    .. math:: \ell + \lambda \, \mathrm{MMD}^2(f, f_g), \quad
        k(a, b) = \sum_s \exp\bigl(-\|a - b\|^2 / 2 s\bigr), \; s \in \{10, 15, 20, 50\}.

    Body and policy are averaged, and a global layer that is the mean of :math:`(h_i + h_g) / 2`. The own layer starts
    from the global one. A client predicts with both layers, the own context and no noise.

    Hand-worked: one feature f = 4, scores (ln 3, 0), so r = 3/4; layers 2 x and 10 x without bias: the output is
    2 x 3 + 10 x 1 = 16. The client sends (2 + 10) / 2 = 6 as its global layer.

    An unseen client trains its own layer, from the global one.
    """

    about = About(
        "A policy splits features between a personal and a global output layer",
        paper="zhang2023fedcp",
        reveals="the body, the policy, and the mean of own and global output layer",
        stays="the output layer",
        caution="the server sees half of the private output layer, mixed with the global one",
    )
    beside: ClassVar[tuple[str, ...]] = (POLICY, HEAD)

    lam: float = option(5.0, min=0.0, help="how strongly features are held near those of the received body")

    def check(self, task: Task) -> None:
        """The output layer has to have one weight for each class and feature."""
        super().check(task)
        weight = task.net.params[layer(task)[0]]
        if weight.ndim != 2 or weight.shape[1] != feature_size(task):
            raise ModelError(
                f"fedcp sums the columns of the output layer's weight, but that of {task.head_unit.name} has the shape "
                f"{tuple(weight.shape)}; use a model with a linear output layer"
            )

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The policy: from features, two scores for each."""
        size = feature_size(task)
        return {POLICY: nn.Sequential(nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU())}

    def first(self, ctx: ServerContext, slot: str) -> Tree:
        """The policy network; the global output layer is the model's own."""
        return super().first(ctx, slot) if slot == POLICY else tree.pick(ctx.initial["params"], layer(ctx.task))

    def assemble(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The model with the own output layer, what is shared beside it, and the context."""
        if ctx.newcomer:
            client = {**client, "private": {**client["private"], **download[HEAD]}}
        model = super().assemble(ctx, client, download)
        weights = model["params"][layer(ctx.task)[0]]
        return {**model, CONTEXT: {"v": F.normalize(weights.sum(0), dim=0)}}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """Remember the received body."""
        work = super().begin(ctx, client, download)
        return {**work, FROZEN: work["params"], f"{FROZEN}.buffers": work["buffers"]}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains the model and the policy."""
        noise = (("gumbel", (-1, 2, feature_size(ctx.task))),)
        return (Phase(slots=("params", POLICY), noise=noise),)

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """Both output layers, each on its part of the features."""
        out = self.features(ctx, slots, x, train)
        seen = out.features * slots[CONTEXT]["v"]
        scores = ctx.nets[POLICY].apply(slots[POLICY], {}, seen).outputs.reshape(len(x), 2, -1)
        if train and "gumbel" in ctx.noise:
            scores = scores + gumbel(ctx.noise["gumbel"])
        own, common = scores.softmax(1).unbind(1)
        outputs = head_outputs(ctx.task, slots["params"], own * out.features)
        return out._replace(outputs=outputs + head_outputs(ctx.task, slots[HEAD], common * out.features))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of body, own layer and policy."""
        frozen = ctx.task.forward(work[FROZEN], work[f"{FROZEN}.buffers"], batch.x).features

        def loss(trees: Slots) -> Scored:
            out = self.forward(ctx, {**work, **trees}, batch.x, train=True)
            apart = discrepancy(out.features, frozen, batch.weight)
            return Scored(ctx.task.score(out.outputs, batch) + self.lam * apart, *out)

        return self.descend(ctx, work, ctx.grad(work, ctx.phase.slots, batch, loss), batch)

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the own output layer, send its mean with the global one."""
        own = tree.pick(work["params"], work[HEAD])
        return super().end(ctx, client, {**work, HEAD: tree.mix(own, work[HEAD], 0.5)})

    def after_local(self, ctx: ClientContext, client: Slots, work: Slots) -> Slots:
        """All that predicts, as trained."""
        return {slot: work[slot] for slot in ("params", "buffers", POLICY, HEAD, CONTEXT)}


def layer(task: Task) -> tuple[str, ...]:
    """The names of the output layer's parameters, its weight first."""
    return task.head_unit.params


def gumbel(normal: Tensor) -> Tensor:
    """Standard Gumbel noise from standard normal: -log(-log u), where u is the normal distribution function.

    >>> gumbel(torch.zeros(1))  # the median, -log(log 2)
    tensor([0.3665])
    """
    # In double precision u reaches 0 or 1 only beyond eight standard deviations.
    u = torch.special.ndtr(normal.double())
    noise: Tensor = -torch.log(-torch.log(u))
    return noise.to(normal.dtype)


def discrepancy(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    r"""The squared maximum mean discrepancy of two weighted samples in the same order, as a biased estimate.

    .. math:: \sum_{l, m} p_l p_m \bigl(k(a_l, a_m) + k(b_l, b_m) - 2 k(a_l, b_m)\bigr)

    >>> discrepancy(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1))
    tensor(0.)
    """

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        square = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
        return torch.stack([torch.exp(-square / (2 * each)) for each in BANDWIDTHS]).sum(0)

    share = weight / weight.sum()
    return share @ (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)) @ share
