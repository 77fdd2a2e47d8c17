"""FedMask: the weights are frozen; clients learn, prune and share binary masks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

SCORES = "fedmask.scores"
KEPT = "fedmask.kept"
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
    own. (What overlaps, and that the mean decides by majority, is this library's reading of the paper.) Biases and
    normalisation are frozen too. Nothing but masks, running statistics and the sample count leaves a client.
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
    lr: float | None = option(None, above=0.0, help="rate of the scores; none is the run's")
    overlap: int = option(2, min=1, help="how many clients must have kept a weight for the server to decide about it")

    # -- masks ---------------------------------------------------------------------------------------

    def masked(self, task: Task) -> tuple[str, ...]:
        """The tensors that have masks: the weights of the last layers."""
        head = task.head(self.layers)
        return tuple(n for n, leaf in task.net.params.items() if n in head and n not in task.norms and leaf.ndim > 1)

    def check(self, task: Task) -> None:
        """The layers must exist."""
        self.masked(task)

    def private(self, task: Task) -> frozenset[str]:
        """No parameter is ever sent: the weights never change."""
        return frozenset(task.net.params)

    def model(self, ctx: ClientContext, scores: Tree, kept: Tree) -> Tree:
        """The frozen weights under the binary mask, differentiable straight through."""
        return {
            **ctx.initial["params"],
            **{n: ctx.initial["params"][n] * binary(s, kept[n]) for n, s in scores.items()},
        }

    def prune(self, scores: Tree) -> Tree:
        """Which weights stay: in each tensor those with the highest scores; of equal scores the lower index."""
        found: Tree = {}
        for name, leaf in scores.items():
            count = math.ceil((1 - self.sparsity) * leaf.numel() - 1e-9)
            order = leaf.reshape(-1).round(decimals=DECIMALS).argsort(descending=True, stable=True)
            found[name] = (order.argsort() < count).reshape(leaf.shape)
        return found

    # -- server --------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """Nothing is decided: all means are 1/2."""
        means = {n: torch.full_like(ctx.initial["params"][n], 0.5) for n in self.masked(ctx.task)}
        return {"fedmask.mean": means, "buffers": ctx.initial["buffers"]}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """Two bits per weight: whether the server decided about it, and how."""
        mean = server["fedmask.mean"]
        return Download(
            {
                "fedmask.decided": tree.map(lambda p: p != 0.5, mean),
                "fedmask.on": tree.map(lambda p: p > 0.5, mean),
                "buffers": tree.drop(server["buffers"], self.kept(ctx)),
            }
        )

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean bit of each weight over those who kept it, if they are enough."""
        before, masks = server["fedmask.mean"], [each.masks["fedmask.bits"] for each in uploads.values()]
        bits = [tree.map(lambda b, p: b.to(p.dtype), each.slots["fedmask.bits"], before) for each in uploads.values()]
        mean = tree.mean(bits, ctx.weights(uploads), masks, before)
        enough = {n: torch.stack([mask[n] for mask in masks]).sum(0) >= self.overlap for n in before}
        return {
            "fedmask.mean": tree.map(torch.where, enough, mean, before),
            "buffers": self.average(ctx, server["buffers"], uploads, "buffers"),
        }

    # -- client --------------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """Equal scores, nothing pruned, and the buffers that stay private."""
        weights = tree.pick(ctx.initial["params"], self.masked(ctx.task))
        own = tree.pick(ctx.initial["buffers"], self.kept(ctx))
        return {
            SCORES: tree.map(lambda leaf: torch.full_like(leaf, self.start), weights),
            KEPT: tree.map(lambda leaf: torch.ones_like(leaf, dtype=torch.bool), weights),
            **({"private": own} if own else {}),
        }

    def assemble(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The client's mask with what the server decided, and the model that it gives."""

        def heed(score: Tensor, kept: Tensor, decided: Tensor, on: Tensor) -> Tensor:
            return torch.where(decided & kept, torch.where(on, score.abs(), -score.abs()), score)

        scores = tree.map(heed, client[SCORES], client[KEPT], download["fedmask.decided"], download["fedmask.on"])
        buffers = {**download["buffers"], **client.get("private", {})}
        return {
            "params": self.model(ctx, scores, client[KEPT]),
            "buffers": {n: buffers[n] for n in ctx.initial["buffers"]},
            SCORES: scores,
            KEPT: client[KEPT],
        }

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """A pass before the pruning, the first time; then training."""
        training = (Phase("train", slots=(SCORES,), lr=self.lr),)
        return (*self.first(ctx), *training)

    def first(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """The pass that shows a newcomer what to prune."""
        return (Phase("probe", slots=(SCORES,), epochs=1, lr=self.lr),) if ctx.newcomer and self.sparsity else ()

    def enter(self, ctx: ClientContext, work: Slots) -> Slots:
        """A newcomer prunes after its first pass."""
        return {**work, KEPT: self.prune(work[SCORES])} if self.first(ctx) and ctx.phase.name == "train" else work

    def grad(self, ctx: ClientContext, work: Slots, batch: Batch) -> Grad:
        """The gradient of the scores, straight through the mask."""

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(self.model(ctx, trees[SCORES], work[KEPT]), work["buffers"], batch)

        return ctx.grad(work, SCORES, batch, loss)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the scores."""
        grad = self.grad(ctx, work, batch)
        return {**ctx.descend(work, SCORES, grad, batch), "buffers": grad.scored.buffers}

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep scores and structure; send the bits of what was not pruned."""
        own = tree.pick(work["buffers"], self.kept(ctx))
        after = {**client, SCORES: work[SCORES], KEPT: work[KEPT], **({"private": own} if own else {})}
        bits = tree.map(lambda s: s > 0, work[SCORES])
        shared = tree.drop(work["buffers"], self.kept(ctx))
        slots = {"fedmask.bits": bits, "buffers": shared, "weight": {"samples": ctx.samples}}
        return after, Upload(slots, {"fedmask.bits": work[KEPT]})

    # -- prediction ----------------------------------------------------------------------------------

    def after_local(self, ctx: ClientContext, client: Slots, work: Slots) -> Slots:
        """The model under the trained mask."""
        return {**work, "params": self.model(ctx, work[SCORES], work[KEPT])}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client does what a newcomer does: a pass, pruning, training."""
        return self.phases(ctx)

    def tune(self, ctx: ClientContext, view: Slots, batch: Batch) -> Slots:
        """A step of the scores of a copy, whatever the phase calls them; or the statistics of the masked model."""
        if ctx.phase.name == "stats":
            return super().tune(ctx, view, batch)
        if ctx.phase.name == "train" and ctx.epoch == ctx.step == 0:
            view = self.enter(ctx, view)
        fresh = {f"{SCORES}:{key}": each for key, each in ctx.optimizer.init(view[SCORES]).items()}
        grad = self.grad(ctx, view, batch)
        moved = ctx.move({**fresh, **view}, SCORES, grad, ctx.phase.lr or self.lr or ctx.lr)
        return {**moved, "params": self.model(ctx, moved[SCORES], moved[KEPT]), "buffers": grad.scored.buffers}

    def records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the masked weights that is on."""
        on = [((score > 0) & client[KEPT][n]).sum() for n, score in client[SCORES].items()]
        return {"on": torch.stack(on).sum() / tree.size(client[SCORES])}


def binary(score: Tensor, kept: Tensor) -> Tensor:
    """The mask of scores, 0 where pruned; its gradient is that of their sigmoid.

    >>> binary(torch.tensor([0.2, -0.2, 3.0]), torch.tensor([True, True, False]))
    tensor([1., 0., 0.])
    """
    soft = score.sigmoid()
    hard = (score > 0).to(score.dtype)
    return torch.where(kept, hard + (soft - soft.detach()), 0.0)
