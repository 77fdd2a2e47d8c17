"""FedEM: every client is its own mixture of a few component models that all clients train together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import About, Grad, Method, ModelError, Phase, Refuses, Slots, Tree, option, register
from ..contract.context import ClientContext, RoundContext
from ..contract.parts.draws import draw_like
from ..contract.slots import Slot, buffers_of, private, shared
from ..task.losses import bce, class_axis, mae, mse
from ..task.task import Batch, Scored, Task

MIXTURE = "fedem.mixture"


@register("fedem")
@dataclass(frozen=True)
class FedEM(Method):
    r"""FedEM (Marfoq et al., NeurIPS 2021, Algorithm 1): federated expectation-maximisation.

    Client t has mixture weights :math:`\pi_t` over M component models :math:`\theta_m`. Each time it takes part it
    finds, with the components as received, how much each of them is responsible for each of its samples, its new
    weights, and then trains every component on the samples by their responsibilities,

    .. math:: q(z_i = m) \propto \pi_{tm} e^{-\ell(\theta_m; x_i, y_i)}, \quad
        \pi_{tm} \leftarrow \frac{1}{n_t} \sum_i q(z_i = m), \quad
        \theta_m \leftarrow \arg\min \sum_i q(z_i = m)\, \ell(\theta_m; x_i, y_i).

    The server averages each component over the clients, by their samples. A client predicts with the mixture of the
    components' *probabilities* (for numbers, of their outputs); its outputs are the logarithms of those. A client that
    has never trained has equal weights; an unseen one estimates its weights and leaves the components as they are.

    The components start as draws of the scale of the initial model's parameters: equal ones would stay equal. `spread`
    below 1 keeps them near the initial model, which suits a pre-trained one.

    Run it: ``idiolect run fedem``.
    """

    about = About(
        "A mixture of shared components for every client",
        family="mixtures of models",
        paper="marfoq2021fedem",
        reveals="all trained components",
        stays="the mixture weights",
    )
    refuses = Refuses(
        wrapping="it trains several component models at once, so there is no one federated model",
        other_networks="it averages components of one shape",
    )
    identities = {"fedem(components=1)": "nearly fedavg"}  # predictions are logarithms of mixtures

    components: int = option(3, min=1, help="how many component models there are (M)")
    spread: float = option(1.0, above=0.0, max=1.0, help="how far components start from the initial model; 1 is anew")
    passes: int = option(5, min=1, tuned="never", help="passes in which an unseen client estimates its mixture")

    @property
    def models(self) -> tuple[str, ...]:
        """The components' slots; the first has the name that a single model would have."""
        return ("params", *(f"fedem.{m}" for m in range(1, self.components)))

    @property
    def slots(self) -> Mapping[str, Slot]:
        """All components are shared; the mixture weights stay on the client."""
        components = {model: shared(partial(self.draw, model=model), holds="model") for model in self.models[1:]}
        return {**super().slots, **components, MIXTURE: private(self.even)}

    def draw(self, ctx: RoundContext, model: str) -> Tree:
        """Parameters of the initial ones' mean and scale; those that are all alike (normalisation) stay."""
        return draw_like(ctx.initial["params"], ctx.rng(model), self.spread)

    def even(self, ctx: RoundContext) -> Tree:
        """Equal weights."""
        return {"pi": torch.full((self.components,), 1 / self.components, device=ctx.training.device)}

    def check(self, task: Task) -> None:
        """Responsibilities are for samples, so the loss has to be one per sample."""
        super().check(task)
        if not task.per_sample:
            raise ModelError(
                "fedem shares out single samples between its components, but the loss gives one number for a whole "
                "batch; give a loss that returns one value per sample (reduction='none')"
            )

    def global_model(self, ctx: RoundContext, common: Slots) -> Slots | None:
        """None: several components are no one model."""
        return super().global_model(ctx, common) if self.components == 1 else None

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The components to train and, frozen beside them, as received: those give the responsibilities."""
        start = {f"start.{slot}": work[slot] for model in self.models for slot in (model, buffers_of(model))}
        return {**work, **start, MIXTURE: begin_pass(work[MIXTURE])}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Expectation over all samples, then maximisation."""
        expect = (Phase(self.expect, "expect", slots=(), epochs=1),) if self.components > 1 else ()
        return (*expect, Phase(self.maximize, "train", slots=self.models))

    def expect(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Count responsibilities."""
        losses = self.losses(ctx, work, batch, "start.")
        return {**work, MIXTURE: update_mixture(ctx, work[MIXTURE], losses, batch)}

    def maximize(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Train the components by their responsibilities."""
        losses = self.losses(ctx, work, batch, "start.")
        q, before = responsibilities(work[MIXTURE]["prior"], losses), work["log"]
        for model, shares in zip(self.models, q, strict=True):
            work = ctx.optimize(work, model, self.gradient(ctx, work, model, batch, shares), batch)
        # The components' losses add up to one loss per sample, which is logged once.
        return {**work, "log": {**work["log"], "samples": before["samples"] + batch.weight.sum()}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Of the mixture, only the weights stay."""
        return {**work, MIXTURE: {"pi": work[MIXTURE]["pi"]}}

    def losses(self, ctx: ClientContext, slots: Slots, batch: Batch, prefix: str = "") -> Tensor:
        """The loss of each component on each sample."""
        losses = []
        for model in self.models:
            params, buffers = slots[prefix + model], slots[prefix + buffers_of(model)]
            losses.append(ctx.task.losses(ctx.task.forward(params, buffers, batch.x).outputs, batch.y))
        return torch.stack(losses)

    def gradient(self, ctx: ClientContext, work: Slots, model: str, batch: Batch, shares: Tensor) -> Grad:
        """The gradient of one component's loss, samples weighed by its responsibility for them."""

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees[model], work[buffers_of(model)], batch.x, train=True)
            weighed = ctx.task.losses(out.outputs, batch.y) * shares * batch.weight
            return Scored(weighed.sum() / batch.weight.sum(), *out)

        return ctx.grad(work, model, batch, loss)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """All components and the mixture."""
        slots = [slot for model in self.models for slot in (model, buffers_of(model))]
        return {**{slot: work[slot] for slot in slots}, MIXTURE: begin_pass(work[MIXTURE])}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The mixture of what the components say."""
        outputs = [ctx.task.forward(model[m], model[buffers_of(m)], x).outputs for m in self.models]
        return mix_outputs(ctx.task, model[MIXTURE]["pi"], torch.stack(outputs))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client estimates its mixture."""
        return (Phase(self.estimate, "onboard", slots=(), epochs=self.passes),)

    def estimate(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The mixture after one more batch; the components stay as they are."""
        return {**model, MIXTURE: update_mixture(ctx, model[MIXTURE], self.losses(ctx, model, batch), batch)}

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """Where a wrapper trains on: the mixture, then the components by their responsibilities."""
        losses = self.losses(ctx, model, batch)
        model = self.estimate(ctx, model, batch)
        for name, shares in zip(self.models, responsibilities(model[MIXTURE]["prior"], losses), strict=True):
            state = ctx.training.optimizer.init(model[name])
            fresh = {f"{name}:{key}": value for key, value in state.items()}
            model = ctx.apply({**fresh, **model}, name, self.gradient(ctx, model, name, batch, shares))
        return model

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The client's mixture weights."""
        return {f"pi/{m}": weight for m, weight in enumerate(client[MIXTURE]["pi"])}


def begin_pass(mixture: Tree) -> Tree:
    """The mixture before a pass over the data: its weights, those of before the pass, and an empty sum."""
    pi = mixture["pi"]
    return {"pi": pi, "prior": pi, "sum": torch.zeros_like(pi)}


def responsibilities(prior: Tensor, losses: Tensor) -> Tensor:
    """The E-step: each component's share of each sample, from mixture weights and losses [components, samples].

    >>> responsibilities(torch.tensor([0.5, 0.5]), torch.tensor([[0.0], [3.0]]).log1p()).flatten()
    tensor([0.8000, 0.2000])
    """
    return torch.softmax(prior.log()[:, None] - losses, 0)


def update_mixture(ctx: ClientContext, mixture: Tree, losses: Tensor, batch: Batch) -> Tree:
    """The mixture after one more batch of a pass, whose responsibilities all use the weights from before it."""
    first = ctx.step == 0
    prior = mixture["pi"] if first else mixture["prior"]
    total = (responsibilities(prior, losses) * batch.weight).sum(1) + (0.0 if first else mixture["sum"])
    return {"pi": total / total.sum(), "prior": prior, "sum": total}


def mix_outputs(task: Task, pi: Tensor, outputs: Tensor) -> Tensor:
    """Outputs [components, samples, ...] as one: log-probabilities of the mixed ones, or the mean of numbers."""
    weights = pi.reshape(-1, *[1] * (outputs.ndim - 1))
    if task.loss_fn in (mse, mae) or (task.classes is None and task.loss_fn is not bce):
        return (weights * outputs).sum(0)
    logs = weights.log()
    y = task.example[1][:1].expand(outputs.shape[1], *task.example[1].shape[1:])
    if outputs[0].numel() == y.numel():
        yes = torch.logsumexp(logs + F.logsigmoid(outputs), 0)
        no = torch.logsumexp(logs + F.logsigmoid(-outputs), 0)
        return yes - no
    return torch.logsumexp(logs + outputs.log_softmax(1 + class_axis(outputs[0], y)), 0)
