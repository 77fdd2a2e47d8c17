"""FedCP: a policy splits every sample's features into a global and a personal part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    Slot,
    Slots,
    Task,
    buffers_of,
    model_in,
    option,
    register,
    shared,
    tree,
)
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.feature_networks import FeatureNets
from ..contract.parts.heads import head_outputs, initial_head
from ..contract.parts.on_features import params_of
from ..task.network import Output

POLICY, HEAD, CONTEXT = "fedcp.policy", "fedcp.head", "fedcp.context"
RECEIVED, RECEIVED_HEAD = "fedcp.received", "fedcp.received_head"
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

    An unseen client trains its own layer, from the global one. Run it: ``idiolect run fedcp``.
    """

    about = About(
        "A policy splits features between a personal and a global output layer",
        paper="zhang2023fedcp",
        reveals="the body, the policy, and the mean of own and global output layer",
        stays="the output layer",
        caution="the server sees half of the private output layer, mixed with the global one",
    )

    lam: float = option(5.0, min=0.0, help="how strongly features are held near those of the received body")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, the policy and the global output layer."""
        return {**super().slots, POLICY: shared(params_of(POLICY)), HEAD: shared(initial_head)}

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The policy: from features, two scores for each."""
        size = feature_size(task)
        return {POLICY: nn.Sequential(nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU())}

    def check(self, task: Task) -> None:
        """The output layer has to have one weight for each class and feature."""
        super().check(task)
        weight = task.net.params[task.head_unit.params[0]]
        if weight.ndim != 2 or weight.shape[1] != feature_size(task):
            raise ModelError(
                f"fedcp sums the columns of the output layer's weight, but that of {task.head_unit.name} has the shape "
                f"{tuple(weight.shape)}; use a model with a linear output layer"
            )

    # -- client ------------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The context, and all that is frozen; a newcomer's own output layer is the global one."""
        params = {**work["params"], **work[HEAD]} if ctx.newcomer else work["params"]
        context = F.normalize(params[ctx.task.head_unit.params[0]].sum(0), dim=0)
        frozen = {RECEIVED: params, buffers_of(RECEIVED): work["buffers"], RECEIVED_HEAD: work[HEAD]}
        return {**work, **frozen, "params": params, CONTEXT: {"v": context}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains the model and the policy."""
        noise = (("gumbel", (-1, 2, feature_size(ctx.task))),)
        return (Phase(self.step, slots=("params", POLICY), noise=noise),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of body, own layer and policy."""
        received = self.model_output(ctx, model_in(work, RECEIVED), batch.x).features

        def loss(trees: Slots) -> Scored:
            out = self.forward(ctx, {**work, **trees}, batch.x, train=True)
            apart = discrepancy(out.features, received, batch.weight)
            return Scored(ctx.task.score(out.outputs, batch) + self.lam * apart, *out)

        return self.optimize_slots(ctx, work, ctx.grad(work, ctx.phase.slots, batch, loss), batch)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the mean of own and global output layer."""
        own = tree.pick(work["params"], work[HEAD])
        return {**work, HEAD: tree.mix(own, work[HEAD], 0.5)}

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """Model, policy, the global output layer as received, and the context."""
        ready = work if CONTEXT in work else self.prepare(ctx, work)
        beside = {POLICY: ready[POLICY], HEAD: ready[RECEIVED_HEAD], CONTEXT: ready[CONTEXT]}
        return {**super().personal_model(ctx, ready), **beside}

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """Both output layers, each on its part of the features."""
        out = self.model_output(ctx, slots, x, train)
        seen = out.features * slots[CONTEXT]["v"]
        scores = ctx.nets[POLICY].apply(slots[POLICY], {}, seen).outputs.reshape(len(x), 2, -1)
        if train and "gumbel" in ctx.noise:
            scores = scores + gumbel(ctx.noise["gumbel"])
        own, common = scores.softmax(1).unbind(1)
        outputs = head_outputs(ctx.task, slots["params"], own * out.features)
        return out._replace(outputs=outputs + head_outputs(ctx.task, slots[HEAD], common * out.features))


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
