"""FedCP: a policy splits every sample's features into a global and a personal part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..analysis.discrepancy import discrepancy
from ..contract import About, Batch, ClientContext, ModelError, Output, Phase, Slots, Task, option, register, tree
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.feature_networks import FeatureNets
from ..contract.parts.heads import head_outputs, initial_head
from ..contract.slots import Slot, buffers_of, model_in, shared

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

    Body and policy are averaged, and a global layer that is the mean of :math:`(h_i + h_g) / 2`, from which the own
    layer starts. A client predicts with both layers, the own context and no noise. Run it: ``idiolect run fedcp``.
    """

    about = About(
        "A policy splits features between a personal and a global head",
        family="private layers",
        paper="zhang2023fedcp",
        reveals="the body, the policy, and the mean of own and global output layer",
        stays="the output layer",
        caution="the server sees half of the private output layer, mixed with the global one",
    )
    networks = (POLICY,)
    beside = (POLICY, RECEIVED_HEAD, CONTEXT)

    presets = {"ref": {"lam": 5.0}}

    lam: float = option(
        1.0, min=0.0, tuned="0.1:10:log", help="how strongly features are held near those of the received body"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, the policy and the global output layer."""
        return {**super().slots, HEAD: shared(initial_head)}

    def modules(self, task: Task) -> dict[str, nn.Module]:
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

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The context, and all that is frozen; a newcomer's own output layer is the global one."""
        params = {**work["params"], **work[HEAD]} if ctx.newcomer else work["params"]
        context = F.normalize(params[ctx.task.head_unit.params[0]].sum(0), dim=0)
        frozen = {RECEIVED: params, buffers_of(RECEIVED): work["buffers"], RECEIVED_HEAD: work[HEAD]}
        return {**work, **frozen, "params": params, CONTEXT: {"v": context}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains the model and the policy, with noise."""
        noise = (("gumbel", (-1, 2, feature_size(ctx.task))),)
        return tuple(replace(phase, noise=noise) for phase in super().phases(ctx))

    def penalty(self, ctx: ClientContext, slots: Slots, out: Output, batch: Batch) -> Tensor:
        """How far the features are from those of the received body."""
        received = self.model_output(ctx, model_in(slots, RECEIVED), batch.x).features
        return self.lam * discrepancy(out.features, received, batch.weight, BANDWIDTHS)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the mean of own and global output layer."""
        head = tree.pick(work["params"], work[HEAD])
        return {**work, HEAD: tree.mix(head, work[HEAD], 0.5)}

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """Both output layers, each on its part of the features."""
        out = self.model_output(ctx, slots, x, train)
        seen = out.features * slots[CONTEXT]["v"]
        scores = ctx.nets[POLICY].apply(slots[POLICY], {}, seen).outputs.reshape(x.shape[0], 2, -1)
        if train and "gumbel" in ctx.noise:
            scores = scores + gumbel(ctx.noise["gumbel"])
        personal, common = scores.softmax(1).unbind(1)
        outputs = head_outputs(ctx.task, slots["params"], personal * out.features)
        return out._replace(outputs=outputs + head_outputs(ctx.task, slots[RECEIVED_HEAD], common * out.features))


def gumbel(normal: Tensor) -> Tensor:
    """Standard Gumbel noise from standard normal: -log(-log u), where u is the normal distribution function.

    >>> gumbel(torch.zeros(1))  # the median, -log(log 2)
    tensor([0.3665])
    """
    # In double precision u reaches 0 or 1 only beyond eight standard deviations.
    u = torch.special.ndtr(normal.double())
    noise: Tensor = -torch.log(-torch.log(u))
    return noise.to(normal.dtype)
