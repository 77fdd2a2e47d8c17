"""FedDBE: a private shift of the features takes up what is a client's own, and the shared features lose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Needs,
    Phase,
    Scored,
    ServerContext,
    Slots,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.heads import head_outputs
from ..contract.parts.on_features import OnFeatures
from ..task.network import Output

SHIFT = "feddbe.shift"
MEAN = "feddbe.mean"


@register("feddbe")
@dataclass(frozen=True)
class FedDBE(OnFeatures):
    r"""FedDBE (Zhang et al., NeurIPS 2023), the domain bias eliminator on FedAvg. A client predicts with features
    :math:`\varphi(x)` that a private vector :math:`m_i` shifts, :math:`h(\varphi(x) + m_i)`, and trains it together
    with the model on

    .. math:: f_i + \kappa \, \frac{1}{d} \sum_q \tfrac{1}{2} (\bar z_q - \bar z^g_q)^2, \qquad
        \bar z \leftarrow (1 - \mu) \bar z + \mu \, \text{mean}_{x \in B} \, \varphi(x),

    so that the mean of its shared features stays at the global mean :math:`\bar z^g`, and what is its own goes into
    :math:`m_i`. The running mean :math:`\bar z` starts each round at zero, and only the newest batch carries a
    gradient. The global mean is measured once, before the first round: all clients train the initial model for one
    epoch, send the mean of the features that they saw, and forget that model.

    The model is averaged; the shift starts at zero and never leaves the client. An unseen client trains both.

    Hand-worked: features of two samples 1 and 3 have the batch mean 2; with mu = 1, global mean 0.5, kappa = 4 and
    d = 1 the term is 4 (2 - 0.5)^2 / 2 = 4.5, and its slope in each of the two features 4 (2 - 0.5) / 2 = 3.
    """

    about = About(
        "A private shift of features, and shared features without bias",
        paper="zhang2023feddbe",
        reveals="the trained model and, once, the mean of its features on the client's data",
        stays="the shift of the features",
    )
    needs = Needs(setup_rounds=1)
    identities: ClassVar[dict[str, str]] = {"feddbe(kappa=0, shift=false)": "fedavg"}

    kappa: float = option(50.0, min=0.0, help="weight kappa of the pull of the mean features to the global mean")
    mu: float = option(1.0, above=0.0, max=1.0, help="weight of the newest batch in the running mean of features")
    shift: bool = option(True, help="shift the features by a private vector")

    # -- server ------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model; the global mean is not known yet."""
        return {**super().server_init(ctx), MEAN: {"z": no_features(ctx)}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model and the global mean."""
        sent = super().download(ctx, server, ids)
        return sent._replace(shared={**sent.shared, MEAN: server[MEAN]})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean model; before the first round the mean of the features."""
        if ctx.round < 0:
            return {**server, MEAN: self.average(ctx, server[MEAN], uploads, MEAN)}
        return super().aggregate(ctx, server, uploads)

    # -- client ------------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """No shift."""
        return {**super().client_init(ctx), SHIFT: {"m": no_features(ctx)}}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The model, the shift, the global mean and an empty running mean."""
        work = {**super().begin(ctx, client, download), SHIFT: client[SHIFT], MEAN: download[MEAN]}
        running = {"z": torch.zeros_like(download[MEAN]["z"]), "samples": torch.zeros_like(ctx.samples)}
        return {**work, "feddbe.running": running}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """One phase that trains model and shift; before the first round one epoch of the model alone."""
        if ctx.round < 0:
            return (Phase("measure", epochs=1),)
        return (Phase(slots=("params", SHIFT) if self.shift else ("params",)),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of model and shift on the loss with its pull; before the first round a plain one."""
        if ctx.round < 0:
            return self.measured(ctx, work, batch)
        held = work["feddbe.running"]

        def running(out: Output | Scored) -> Tensor:
            return (1 - self.mu) * held["z"] + self.mu * mean(out.features, batch)

        def loss(trees: Slots) -> Scored:
            out = self.forward(ctx, {**work, **trees}, batch.x, train=True)
            plain = ctx.task.score(out.outputs, batch)
            pull = (running(out) - work[MEAN]["z"]).square().mean() / 2 if self.kappa else torch.zeros_like(plain)
            return Scored(plain + self.kappa * pull, *out)

        grad = ctx.grad(work, ctx.phase.slots, batch, loss)
        return {**self.descend(ctx, work, grad, batch), "feddbe.running": {**held, "z": running(grad.scored)}}

    def measured(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A plain step; its features enter the mean."""
        grad, held, count = ctx.grad(work, "params", batch), work["feddbe.running"], batch.weight.sum()
        samples = held["samples"] + count
        z = held["z"] + (mean(grad.scored.features, batch) - held["z"]) * (count / samples)
        return {**ctx.descend(work, "params", grad, batch), "feddbe.running": {"z": z, "samples": samples}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the shift and send the model; before the first round send the mean and keep nothing."""
        if ctx.round < 0:
            return client, Upload({MEAN: tree.pick(work["feddbe.running"], ("z",)), "weight": {"samples": ctx.samples}})
        client, upload = super().end(ctx, client, work)
        return {**client, SHIFT: work[SHIFT]}, upload

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The newest model and the shift."""
        return {**super().view(ctx, client, download), SHIFT: client[SHIFT]}

    def after_local(self, ctx: ClientContext, client: Slots, work: Slots) -> Slots:
        """The trained model and the shift."""
        return {**super().after_local(ctx, client, work), SHIFT: work[SHIFT]}

    def records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """How long the shift is."""
        return {"shift_norm": tree.norm(client[SHIFT])} if self.shift else {}

    # -- prediction --------------------------------------------------------------------------------

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The output layer on shifted features."""
        out = self.features(ctx, slots, x, train)
        if not self.shift:
            return out
        return out._replace(outputs=head_outputs(ctx.task, slots["params"], out.features + slots[SHIFT]["m"]))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains model and shift."""
        return (Phase("onboard", slots=("params", SHIFT) if self.shift else ("params",)),)


def no_features(ctx: ClientContext | ServerContext) -> Tensor:
    """A feature vector of zeros."""
    return next(iter(ctx.initial["params"].values())).new_zeros(feature_size(ctx.task))


def mean(features: Tensor, batch: Batch) -> Tensor:
    """The mean over the samples of a batch, without those that fill it up."""
    return (batch.weight / batch.weight.sum()).to(features.dtype) @ features
