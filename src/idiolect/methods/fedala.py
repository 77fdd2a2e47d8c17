"""FedALA: before it trains, each client mixes its own and the global head, element by element, as it has learnt to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import About, Batch, ClientContext, Method, Phase, Slots, Task, Tree, Upload, option, register, tree

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

    One pass is made each time, but several the first time: `start_passes` of them, of which those no longer count that
    come after the mean losses of the last `window` passes have varied by less than `settle` (standard deviation). The
    first time is round 1, and the first round of clients that join later; in round 0 all models are the same, and
    there is nothing to mix. The mixture of a client's own layers with the newest global model is its view.

    Hand-worked: own value 4, global 8, W = 0.75 give 4 + 4 * 0.75 = 7. If the loss has slope 0.05 there, W moves by
    -1 * 0.05 * (8 - 4) to 0.55, and training starts at 4 + 4 * 0.55 = 6.2.
    """

    about = About(
        "Own and global head mixed by learnt weights",
        paper="zhang2023fedala",
        stays="its own last model and the weights by which it takes over the global one",
    )
    identities: ClassVar[dict[str, str]] = {"fedala(rate=0)": "fedavg", "fedala(layers=0)": "fedavg"}

    layers: int = option(1, min=0, help="how many of the last layers are mixed (p)")
    share: float = option(0.8, above=0.0, max=1.0, help="share of the training data that the weights are fitted on (s)")
    rate: float = option(1.0, min=0.0, help="rate of the weights")
    start_passes: int = option(10, min=1, help="passes, at most, of the first time")
    window: int = option(5, min=2, help="the weights have settled if so many passes differ little in their loss")
    settle: float = option(0.1, min=0.0, help="standard deviation of these losses below which they have settled")

    def check(self, task: Task) -> None:
        """The layers have to exist."""
        task.head(self.layers)

    def top(self, ctx: ClientContext) -> frozenset[str]:
        """The parameters that are mixed: the last layers', but for what the run keeps local."""
        return (ctx.task.head(self.layers) & frozenset(ctx.task.names)) - self.kept(ctx)

    def mixed(self, client: Slots, download: Slots) -> Slots:
        """The download with the client's own share in its last layers; weights of one leave it as it is."""
        head = lay(client[OWN], tree.pick(download["params"], client[OWN]), client[WEIGHTS])
        return {**download, "params": {**download["params"], **head}}

    def client_init(self, ctx: ClientContext) -> Slots:
        """The initial layers, and weights of one."""
        own = tree.pick(ctx.initial["params"], self.top(ctx))
        return {**super().client_init(ctx), OWN: own, WEIGHTS: tree.map(torch.ones_like, own)}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The mixture, and all that the weights are fitted with."""
        zero = torch.zeros_like(ctx.samples)
        return {
            **super().begin(ctx, client, self.mixed(client, download)),
            OWN: client[OWN],
            RECEIVED: tree.pick(download["params"], client[OWN]),
            WEIGHTS: client[WEIGHTS],
            WATCH: {
                "loss": zero,
                "samples": zero,
                "means": zero.new_full((self.window,), torch.inf),
                "going": torch.ones_like(zero, dtype=torch.bool),
            },
        }

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """First the weights, from round 1 on; then the model."""
        top = self.top(ctx)
        if not (top and self.rate and ctx.round > 0):
            return (Phase(),)
        passes = self.start_passes if ctx.newcomer or ctx.round == 1 else 1
        return (Phase(MIX, slots=(WEIGHTS,), part=top, epochs=passes, share=self.share, stream=MIX), Phase())

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the weights, then of the model."""
        if ctx.phase.name != MIX:
            return super().step(ctx, work, batch)
        watch = watched(work[WATCH], self.settle) if ctx.step == 0 and ctx.epoch else work[WATCH]
        grad, count = ctx.grad(work, "params", batch), batch.weight.sum()
        slope = tree.map(torch.mul, grad.tree, tree.sub(work[RECEIVED], work[OWN]))
        moved = tree.map(lambda w, s: (w - self.rate * s).clamp(0, 1), work[WEIGHTS], slope)
        weights = tree.map(lambda new, old: torch.where(watch["going"], new, old), moved, work[WEIGHTS])
        sums = {"loss": watch["loss"] + grad.scored.loss * count, "samples": watch["samples"] + count}
        head = lay(work[OWN], work[RECEIVED], weights)
        return {**work, WEIGHTS: weights, WATCH: {**watch, **sums}, "params": {**work["params"], **head}}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the weights and the trained layers."""
        client, upload = super().end(ctx, client, work)
        return {**client, OWN: tree.pick(work["params"], client[OWN]), WEIGHTS: work[WEIGHTS]}, upload

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The mixture with the newest global model."""
        return super().view(ctx, client, self.mixed(client, download))

    def records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The mean weight of the global model."""
        weights = client[WEIGHTS]
        return {"global_share": tree.flatten(weights).mean()} if weights else {}


def lay(own: Tree, received: Tree, weights: Tree) -> Tree:
    """The mixture, written so that weights of one (or zero) give the received (or own) values to the bit."""
    return tree.map(lambda o, r, w: w * r + (1 - w) * o, own, received, weights)


def watched(watch: Tree, settle: float) -> Tree:
    """A pass is over: its mean loss takes the place of the oldest, and when all vary little the fitting ends."""
    zero, mean = torch.zeros_like(watch["loss"]), watch["loss"] / watch["samples"].clamp_min(1)
    means = torch.cat([watch["means"][1:], mean.reshape(1)])
    # Infinite means stand for passes to come; their standard deviation is not a number, so never small.
    return {
        "loss": zero,
        "samples": zero,
        "means": means,
        "going": watch["going"] & ~(means.std(correction=0) < settle),
    }
