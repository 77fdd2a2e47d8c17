"""FedMask: the weights are frozen; clients learn, prune and share binary masks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Grad,
    Method,
    Phase,
    Refuses,
    RoundContext,
    Scored,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Task,
    Tree,
    Upload,
    mask_of,
    option,
    private,
    register,
    shared,
    tree,
)
from ..contract.phase import Step

SCORES, KEPT = "fedmask.scores", "fedmask.kept"
BITS, VOTES = "fedmask.bits", "fedmask.votes"
MEAN, DECIDED, ON = "fedmask.mean", "fedmask.decided", "fedmask.on"
DECIMALS = 5
"""Scores that agree to so many decimals are equal, so that round-off chooses no weights."""


@register("fedmask")
@dataclass(frozen=True)
class FedMask(Method):
    r"""FedMask (Li et al., SenSys 2021): all clients have the same frozen weights w. Each learns a score s per weight
    of the last layers, and predicts with a binary mask of them,

    .. math:: \theta = w \odot m, \quad m = [\sigma(s) > 1/2],

    learnt straight through: the gradient of m is taken as that of :math:`\sigma(s)`. After a first pass a client prunes
    once: the share `sparsity` of weights with the lowest scores is off for good, which gives it a structure of its own.
    It sends its mask as bits. Where the structures of two or more clients overlap, the server averages their bits, and
    a mean above (below) 1/2 turns the weight on (off) for all who have it; all else stays personal.

    Hand-worked: three clients keep weights {1, 2}, {1, 2} and {1, 3}, with the bits (1, 0), (0, 0) and (1, 1). Weight 1
    is in three structures, its mean 2/3 turns it on for all; weight 2 is in two, its mean 0 turns it off; weight 3 is
    in one, and stays as it is.

    The sign of a score that the server turns changes, its size does not; at a mean of exactly 1/2 clients keep their
    own. (What overlaps, and that the mean decides by majority, is our reading of the paper.) Biases and
    normalisation are frozen too. Nothing but masks, running statistics and the sample count leaves a client.
    Run it: ``idiolect run fedmask``.
    """

    about = About(
        "Personal binary masks of frozen weights, averaged where they overlap",
        paper="li2021fedmask",
        reveals="one bit per weight of the masked layers",
        stays="scores of the mask",
        caution="weights never change, so the bits are all there is to know",
    )
    refuses = Refuses(
        wrapping="its clients share masks of frozen weights, not a model that is trained",
        other_networks="it compares masks of the same weights",
    )

    layers: int = option(1, min=1, help="how many of the last layers have masks")
    sparsity: float = option(0.5, min=0.0, below=1.0, help="share of each masked tensor that is pruned")
    start: float = option(0.01, above=0.0, help="score of every weight before training; above 0 all are on")
    lr: float | None = option(None, above=0.0, help="learning rate of the scores; none is the run's")
    overlap: int = option(2, min=1, help="how many clients must have kept a weight for the server to decide about it")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Scores and structure stay; bits go up, and with them of the model its running statistics only, since weights
        never change. Votes take no place in a message: `summand` fills them in, to count who kept a weight."""
        return {
            "params": shared(nothing, holds="model"),
            MEAN: Slot("server", self.undecided),
            SCORES: private(self.first_scores),
            KEPT: private(self.all_kept),
            BITS: Slot("round", nothing, up="sum"),
            VOTES: Slot("round", nothing, up="sum", weigh="uniform"),
        }

    def masked(self, ctx: RoundContext) -> Tree:
        """The tensors that have masks: the weights of the last layers."""
        return tree.pick(ctx.initial["params"], mask_names(ctx.task, self.layers))

    def undecided(self, ctx: ServerContext) -> Tree:
        """Nothing is decided: all means are 1/2."""
        return tree.map(lambda leaf: torch.full_like(leaf, 0.5), self.masked(ctx))

    def first_scores(self, ctx: ClientContext) -> Tree:
        """Equal scores."""
        return tree.map(lambda leaf: torch.full_like(leaf, self.start), self.masked(ctx))

    def all_kept(self, ctx: ClientContext) -> Tree:
        """Nothing is pruned."""
        return tree.map(lambda leaf: torch.ones_like(leaf, dtype=torch.bool), self.masked(ctx))

    def check(self, task: Task) -> None:
        """The layers must exist."""
        mask_names(task, self.layers)

    # -- client --------------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's scores with what the server decided."""

        def heed(score: Tensor, kept: Tensor, decided: Tensor, on: Tensor) -> Tensor:
            return torch.where(decided & kept, torch.where(on, score.abs(), -score.abs()), score)

        scores = tree.map(heed, work[SCORES], work[KEPT], work[DECIDED], work[ON])
        return {**{slot: work[slot] for slot in work if slot not in (DECIDED, ON)}, SCORES: scores}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """A pass before the pruning, the first time; then training."""
        return self.learn(ctx, self.step)

    def learn(self, ctx: ClientContext, step: Step) -> tuple[Phase, ...]:
        """The phases of a mask: a newcomer first makes the pass that shows it what to prune."""
        if not (ctx.newcomer and self.sparsity):
            return (Phase(step, slots=(SCORES,), lr=self.lr),)
        probe = Phase(step, "probe", slots=(SCORES,), epochs=1, lr=self.lr)
        return (probe, Phase(step, slots=(SCORES,), lr=self.lr, before=self.prune))

    def prune(self, ctx: ClientContext, work: Slots) -> Slots:
        """Which weights stay: in each tensor those with the highest scores; of equal scores the lower index."""
        kept: Tree = {}
        for name, leaf in work[SCORES].items():
            count = math.ceil((1 - self.sparsity) * leaf.numel() - 1e-9)
            order = leaf.reshape(-1).round(decimals=DECIMALS).argsort(descending=True, stable=True)
            kept[name] = (order.argsort() < count).reshape(leaf.shape)
        return {**work, KEPT: kept}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the scores."""
        grad = self.grad(ctx, work, batch)
        return {**ctx.optimize(work, SCORES, grad, batch), "buffers": grad.scored.buffers}

    def grad(self, ctx: ClientContext, work: Slots, batch: Batch) -> Grad:
        """The gradient of the scores, straight through the mask."""

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(apply_mask(ctx, trees[SCORES], work[KEPT]), work["buffers"], batch)

        return ctx.grad(work, SCORES, batch, loss)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the bits of what was not pruned."""
        return {**work, BITS: tree.map(lambda s: s > 0, work[SCORES]), mask_of(BITS): work[KEPT]}

    # -- server --------------------------------------------------------------------------------------

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """Two bits per weight: whether the server decided about it, and how; and running statistics."""
        statistics, mean = super().download(ctx, server, ids).shared, server[MEAN]
        decided, on = tree.map(lambda p: p != 0.5, mean), tree.map(lambda p: p > 0.5, mean)
        return Download({**statistics, DECIDED: decided, ON: on})

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """Bits as numbers, which have a mean; and a vote for every weight that the client kept."""
        bits = tree.map(lambda p, bit: bit.to(p.dtype), server[MEAN], upload.slots[BITS])
        votes = tree.map(lambda p, kept: kept.to(p.dtype), server[MEAN], upload.masks[BITS])
        return replace(upload, slots={**upload.slots, BITS: bits, VOTES: votes})

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """The mean bit of each weight over those who kept it, if they are enough."""
        enough = tree.map(lambda votes: votes >= self.overlap, sums[VOTES].total)
        mean = tree.map(torch.where, enough, sums[BITS].mean(server[MEAN]), server[MEAN])
        return {**super().aggregate(ctx, server, sums, each), MEAN: mean}

    # -- prediction ----------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model under the client's mask: with what the server decided, or as trained."""
        work = self.prepare(ctx, work) if DECIDED in work else work
        params = apply_mask(ctx, work[SCORES], work[KEPT])
        return {"params": params, "buffers": work["buffers"], SCORES: work[SCORES], KEPT: work[KEPT]}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client does what a newcomer does: a pass, pruning, training."""
        return self.learn(ctx, self.adapt_step)

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of the scores of a copy, also in phases that know of `params` only."""
        fresh = {f"{SCORES}:{key}": state for key, state in ctx.training.optimizer.init(model[SCORES]).items()}
        grad = self.grad(ctx, model, batch)
        after = ctx.apply({**fresh, **model}, SCORES, grad, ctx.phase.lr or self.lr or ctx.lr)
        return {**after, "params": apply_mask(ctx, after[SCORES], after[KEPT]), "buffers": grad.scored.buffers}

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the masked weights that is on."""
        on = [((score > 0) & client[KEPT][n]).sum() for n, score in client[SCORES].items()]
        return {"on": torch.stack(on).sum() / tree.size(client[SCORES])}


def nothing(ctx: RoundContext) -> Tree:
    """A slot without leaves."""
    return {}


def mask_names(task: Task, layers: int) -> tuple[str, ...]:
    """The names of the weights of the last layers."""
    head = task.head(layers)
    return tuple(n for n, leaf in task.net.params.items() if n in head and n not in task.norms and leaf.ndim > 1)


def apply_mask(ctx: ClientContext, scores: Tree, kept: Tree) -> Tree:
    """The frozen weights under the binary mask, differentiable straight through."""
    frozen = ctx.initial["params"]
    return {**frozen, **{n: frozen[n] * binary(s, kept[n]) for n, s in scores.items()}}


def binary(score: Tensor, kept: Tensor) -> Tensor:
    """The mask of scores, 0 where pruned; its gradient is that of their sigmoid.

    >>> binary(torch.tensor([0.2, -0.2, 3.0]), torch.tensor([True, True, False]))
    tensor([1., 0., 0.])
    """
    soft = score.sigmoid()
    hard = (score > 0).to(score.dtype)
    return torch.where(kept, hard + (soft - soft.detach()), 0.0)
