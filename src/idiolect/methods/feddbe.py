"""FedDBE: a private shift of the features takes up what is a client's own, and the shared features lose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..contract import About, Batch, Needs, Output, Phase, Slots, Tree, option, register, tree
from ..contract.context import ClientContext, RoundContext
from ..contract.parts.class_statistics import feature_size
from ..contract.parts.heads import head_outputs
from ..contract.parts.on_features import OnFeatures
from ..contract.slots import Init, Slot, private, scratch, shared

SHIFT, MEAN, RUNNING = "feddbe.shift", "feddbe.mean", "feddbe.running"


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

    The model is averaged; the shift starts at zero and never leaves the client. Run it: ``idiolect run feddbe``.
    """

    about = About(
        "A private shift of features, and shared features without bias",
        family="private layers",
        paper="zhang2023feddbe",
        reveals="the trained model and, once, the mean of its features on the client's data",
        stays="the shift of the features",
    )
    needs = Needs(setup_rounds=1)
    beside = (SHIFT,)
    identities = {"feddbe(kappa=0, shift=false)": "fedavg"}
    presets = {"ref": {"kappa": 50.0}}

    kappa: float = option(
        1.0, min=0.0, tuned="0.1:50:log", help="weight kappa of the pull of the mean features to the global mean"
    )
    mu: float = option(1.0, above=0.0, max=1.0, help="weight of the newest batch in the running mean of features")
    shift: bool = option(True, help="shift the features by a private vector")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model and the global mean; the shift stays, the running mean is new in each round."""
        mean, shift = shared(zero_features("z")), private(zero_features("m"))
        return {**super().slots, MEAN: mean, SHIFT: shift, RUNNING: scratch(zero_features("z", "samples"))}

    @property
    def trained_slots(self) -> tuple[str, ...]:
        """What is trained: the model and, if there is one, the shift."""
        return ("params", SHIFT) if self.shift else ("params",)

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """One phase that trains model and shift; before the first round one epoch of the model alone."""
        if ctx.round < 0:
            return (Phase(self.measure, "measure", epochs=1),)
        return (Phase(self.step, slots=self.trained_slots),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of model and shift on the loss with its pull."""
        grad = self.forward_grad(ctx, work, batch, penalty=self.kappa > 0)
        z = self.running_mean(work, grad.scored.features, batch)
        return {**self.optimize_slots(ctx, work, grad, batch), RUNNING: {**work[RUNNING], "z": z}}

    def penalty(self, ctx: ClientContext, slots: Slots, out: Output, batch: Batch) -> Tensor:
        """The pull of the running mean of features to the global one."""
        apart = self.running_mean(slots, out.features, batch) - slots[MEAN]["z"]
        return self.kappa * (apart.square().mean() / 2)

    def running_mean(self, work: Slots, features: Tensor, batch: Batch) -> Tensor:
        """The running mean of features after a batch more."""
        return (1 - self.mu) * work[RUNNING]["z"] + self.mu * mean(features, batch)

    def measure(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A plain step; its features enter the mean."""
        grad, before, count = ctx.grad(work, "params", batch), work[RUNNING], batch.weight.sum()
        samples = before["samples"] + count
        z = before["z"] + (mean(grad.scored.features, batch) - before["z"]) * (count / samples)
        return {**ctx.optimize(work, "params", grad, batch), RUNNING: {"z": z, "samples": samples}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Before the first round send the mean of the features and nothing else; later all but that."""
        if ctx.round < 0:
            return {MEAN: tree.pick(work[RUNNING], ("z",))}
        return tree.drop(work, {MEAN})

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The output layer on shifted features."""
        out = self.model_output(ctx, slots, x, train)
        if not self.shift:
            return out
        return out._replace(outputs=head_outputs(ctx.task, slots["params"], out.features + slots[SHIFT]["m"]))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains model and shift."""
        return (Phase(self.adapt_step, "onboard", slots=self.trained_slots),)

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """How long the shift is."""
        return {"shift_norm": tree.norm(client[SHIFT])} if self.shift else {}


def zero_features(vector: str, *numbers: str) -> Init:
    """A slot of a feature vector and of numbers, all zero."""

    def zeros(ctx: RoundContext) -> Tree:
        like = next(iter(ctx.initial["params"].values()))
        return {vector: like.new_zeros(feature_size(ctx.task)), **{name: like.new_zeros(()) for name in numbers}}

    return zeros


def mean(features: Tensor, batch: Batch) -> Tensor:
    """The mean over the samples of a batch, without those that fill it up."""
    return (batch.weight / batch.weight.sum()).to(features.dtype) @ features
