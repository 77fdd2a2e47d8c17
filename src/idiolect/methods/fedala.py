"""FedALA: before it trains, each client mixes its own and the global head, element by element, as it has learnt to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import About, Batch, Method, Phase, Slot, Slots, Task, Tree, option, private, register, tree
from ..contract.context import ClientContext, RoundContext

MIX = "fedala.mix"
OWN, RECEIVED, WEIGHTS, WATCH = "fedala.own", "fedala.received", "fedala.weights", "fedala.watch"


@register("fedala")
@dataclass(frozen=True)
class FedALA(Method):
    r"""FedALA (Zhang et al., AAAI 2023): FedAvg whose clients do not take over the last p layers of the global model,
    but mix them with their own of the last time (all other layers are the global ones),

    .. math:: \hat\theta_i = \theta_i + (\theta_g - \theta_i) \odot W_i, \qquad W_i \in [0, 1].

    The weights W start at one (the global model) and stay with the client. Before it trains, a client fits them on a
    random share of its training data, everything else frozen,

    .. math:: W_i \leftarrow \mathrm{clip}\bigl(W_i - \eta \nabla_{\hat\theta} L(\hat\theta_i) \odot
        (\theta_g - \theta_i), 0, 1\bigr).

    One pass is made each time, but several the first time (round 1, or later a client's first): `start_passes`, less
    those after the mean losses of the last `window` passes vary by less than `settle` (standard deviation). A client
    predicts with the mixture of its own layers and the newest global model. Run it: ``idiolect run fedala``.
    """

    about = About(
        "Own and global head mixed by learnt weights",
        family="mixtures of models",
        paper="zhang2023fedala",
        stays="its own last model and the weights by which it takes over the global one",
    )
    identities = {"fedala(weights_lr=0)": "fedavg", "fedala(layers=0)": "fedavg"}

    layers: int = option(1, min=0, help="how many of the last layers are mixed (p)")
    share: float = option(0.8, above=0.0, max=1.0, help="share of the training data that the weights are fitted on (s)")
    weights_lr: float = option(1.0, min=0.0, help="learning rate of the weights")
    start_passes: int = option(20, min=1, help="passes, at most, of the first time")
    window: int = option(10, min=2, help="the weights have settled if so many passes differ little in their loss")
    settle: float = option(0.1, min=0.0, help="standard deviation of these losses below which they have settled")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model; the last layers as the client trained them last, and their weights, which stay."""
        return {**super().slots, OWN: private(self.initial_layers), WEIGHTS: private(self.ones)}

    def initial_layers(self, ctx: RoundContext) -> Tree:
        """The initial last layers."""
        return tree.pick(ctx.initial["params"], self.mixed_names(ctx))

    def ones(self, ctx: RoundContext) -> Tree:
        """Weights of one, which take over the global layers."""
        return tree.map(torch.ones_like, self.initial_layers(ctx))

    def mixed_names(self, ctx: RoundContext) -> frozenset[str]:
        """The parameters that are mixed: the last layers', but for what the run keeps local."""
        return (ctx.task.head(self.layers) & frozenset(ctx.task.names)) - ctx.private_names

    def check(self, task: Task) -> None:
        task.head(self.layers)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The mixture, and all that the weights are fitted with."""
        zero = torch.zeros_like(ctx.samples)
        means, going = zero.new_full((self.window,), torch.inf), torch.ones_like(zero, dtype=torch.bool)
        watch = {"loss": zero, "samples": zero, "means": means, "going": going}
        return {**work, RECEIVED: tree.pick(work["params"], work[OWN]), WATCH: watch, "params": self.mixture(work)}

    def mixture(self, work: Slots) -> Tree:
        """The received parameters with the client's own share in the last layers."""
        return {**work["params"], **mix(work[OWN], tree.pick(work["params"], work[OWN]), work[WEIGHTS])}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """First the weights, from round 1 on; then the model."""
        names = self.mixed_names(ctx)
        if not (names and self.weights_lr and ctx.round > 0):
            return (Phase(self.step),)
        passes = self.start_passes if ctx.newcomer or ctx.round == 1 else 1
        fit = Phase(self.fit, MIX, slots=(WEIGHTS,), part=names, epochs=passes, samples=self.share, stream=MIX)
        return (fit, Phase(self.step))

    def fit(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the weights."""
        watch = end_pass(work[WATCH], self.settle) if ctx.step == 0 else work[WATCH]
        grad, count = ctx.grad(work, "params", batch), batch.weight.sum()
        of_weights = tree.map(torch.mul, grad.tree, tree.sub(work[RECEIVED], work[OWN]))
        stepped = tree.map(lambda w, g: (w - self.weights_lr * g).clamp(0, 1), work[WEIGHTS], of_weights)
        weights = tree.map(lambda new, old: torch.where(watch["going"], new, old), stepped, work[WEIGHTS])
        sums = {"loss": watch["loss"] + grad.scored.loss * count, "samples": watch["samples"] + count}
        params = {**work["params"], **mix(work[OWN], work[RECEIVED], weights)}
        return {**work, WEIGHTS: weights, WATCH: {**watch, **sums}, "params": params}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained layers, and the weights."""
        return {**work, OWN: tree.pick(work["params"], work[OWN])}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The mixture with the newest global model; right after training, the trained model."""
        model = super().personal_model(ctx, work)
        return model if RECEIVED in work else {**model, "params": self.mixture(work)}

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The mean weight of the global model."""
        weights = client[WEIGHTS]
        return {"global_share": tree.flatten(weights).mean()} if weights else {}


def mix(personal: Tree, received: Tree, weights: Tree) -> Tree:
    """The mixture, written so that weights of one (or zero) give the received (or own) values to the bit."""
    return tree.map(lambda o, r, w: w * r + (1 - w) * o, personal, received, weights)


def end_pass(watch: Tree, settle: float) -> Tree:
    """A pass is over: its mean loss takes the place of the oldest, and when all vary little the fitting ends."""
    zero, mean = torch.zeros_like(watch["loss"]), watch["loss"] / watch["samples"]
    means = torch.cat([watch["means"][1:], mean.reshape(1)])
    # Before the first pass the mean is not a number, nor is then the standard deviation, which so is never small.
    going = watch["going"] & ~(means.std(correction=0) < settle)
    return {"loss": zero, "samples": zero, "means": means, "going": going}
