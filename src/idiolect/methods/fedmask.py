"""FedMask: the weights are frozen; clients learn, prune and share binary masks of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..contract import About, Grad, Method, Phase, Refuses, Slots, Sums, Tree, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.messages import Download, Upload, Uploads
from ..contract.phase import Step
from ..contract.slots import Slot, mask_of, nothing, private, shared, zero
from ..task.task import Batch, Scored, Task

SCORES, KEPT = "fedmask.scores", "fedmask.kept"
BITS, VOTES, CHANGED = "fedmask.bits", "fedmask.votes", "fedmask.changed"
MEAN, DECIDED, ON = "fedmask.mean", "fedmask.decided", "fedmask.on"
RATE = 100.0
"""By how much the gradient of a score is smaller than that of a weight: it has the factors w and a sigmoid's slope."""
BEFORE = "fedmask.before"
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
    It sends its mask as bits. Where the structures of two or more clients overlap, the server averages their bits; if
    the share `agree` of them says on (off), the weight is on (off) for all who have it. All else stays personal.

    The sign of a score that the server turns changes, its size does not. (What overlaps, and what agreement is, is our
    reading of the paper; `agree=0.5` is a majority.) With `combine=scores` clients send their scores instead, and have
    their mean where structures overlap. By default all weights of a layer have one size, the root of 2 / inputs, and
    the sign of the drawn ones, and biases are zero; `weights=drawn` takes them as they are, drawn or pre-trained.
    Biases and normalisation are frozen too. Nothing but masks (or scores), running statistics and the sample count
    leaves a client. Run it: ``idiolect run fedmask``.
    """

    about = About(
        "Personal masks of frozen weights, averaged where they overlap",
        family="masks and sub-models",
        paper="li2021fedmask",
        reveals="one bit per weight of the masked layers (with combine=scores its score), and how many bits changed",
        stays="scores of the mask",
        caution="weights never change, so the bits are all there is to know",
    )
    refuses = Refuses(
        wrapping="its clients share masks of frozen weights, not a model that is trained",
        other_networks="it compares masks of the same weights",
    )

    presets = {"paper": {"layers": 1, "weights": "drawn", "agree": 0.5}}

    layers: int | None = option(None, min=1, help="how many of the last layers have masks; none is all")
    sparsity: float = option(0.5, min=0.0, below=1.0, tuned="never", help="share of each masked tensor that is pruned")
    start: float = option(0.01, above=0.0, help="score of every weight before training; above 0 all are on")
    lr: float | None = option(None, above=0.0, help="learning rate of the scores; none is 100 times the run's")
    weights: str = option("signed", choices=("signed", "drawn"), help="frozen weights: of one size, or as drawn")
    overlap: int = option(2, min=1, help="how many clients must have kept a weight for the server to decide about it")
    combine: str = option("votes", choices=("votes", "scores"), help="what the server averages where masks overlap")
    agree: float = option(0.9, min=0.5, max=1.0, help="share of votes from which the server decides; 0.5 is a majority")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Scores and structure stay; bits go up, or scores, and with them of the model its running statistics only,
        since weights never change. Votes take no place in a message: `summand` fills them in, to count who kept a
        weight."""
        return {
            "params": shared(nothing, holds="model"),
            MEAN: Slot("server", self.undecided),
            SCORES: private(self.first_scores),
            KEPT: private(self.all_kept),
            BITS: Slot("round", nothing, up="sum"),
            CHANGED: Slot("round", zero("bits"), up="sum", weigh="uniform"),
            VOTES: Slot("round", nothing, up="sum", weigh="uniform"),
        }

    def pick_masked(self, ctx: RoundContext) -> Tree:
        """The tensors that have masks: the weights of the last layers."""
        return tree.pick(ctx.initial["params"], mask_names(ctx.task, self.layers))

    def undecided(self, ctx: ServerContext) -> Tree:
        """Nothing is decided: all mean bits are 1/2, all mean scores 0."""
        nothing = 0.5 if self.combine == "votes" else 0.0
        return tree.map(lambda leaf: torch.full_like(leaf, nothing), self.pick_masked(ctx))

    def first_scores(self, ctx: ClientContext) -> Tree:
        """Equal scores."""
        return tree.map(lambda leaf: torch.full_like(leaf, self.start), self.pick_masked(ctx))

    def all_kept(self, ctx: ClientContext) -> Tree:
        """Nothing is pruned."""
        return tree.map(lambda leaf: torch.ones_like(leaf, dtype=torch.bool), self.pick_masked(ctx))

    def check(self, task: Task) -> None:
        """The layers must exist."""
        mask_names(task, self.layers)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's scores with what the server decided."""

        def heed(score: Tensor, stays: Tensor, decided: Tensor, on: Tensor) -> Tensor:
            turned = torch.where(on, score.abs(), -score.abs()) if self.combine == "votes" else on
            return torch.where(decided & stays, turned, score)

        scores = tree.map(heed, work[SCORES], work[KEPT], work[DECIDED], work[ON])
        rest = {slot: work[slot] for slot in work if slot not in (DECIDED, ON)}
        return {**rest, SCORES: scores, BEFORE: tree.map(lambda s: s > 0, scores)}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """A pass before the pruning, the first time; then training."""
        return self.learn(ctx, self.step)

    def learn(self, ctx: ClientContext, step: Step) -> tuple[Phase, ...]:
        """The phases of a mask: a newcomer first makes the pass that shows it what to prune."""
        lr = self.score_lr(ctx)
        if not (ctx.newcomer and self.sparsity):
            return (Phase(step, slots=(SCORES,), lr=lr),)
        probe = Phase(step, "probe", slots=(SCORES,), epochs=1, lr=lr)
        return (probe, Phase(step, slots=(SCORES,), lr=lr, before=self.prune))

    def score_lr(self, ctx: ClientContext) -> float:
        """The learning rate of the scores, before the schedule."""
        return RATE * ctx.training.lr if self.lr is None else self.lr

    def prune(self, ctx: ClientContext, work: Slots) -> Slots:
        """Which weights stay: in each tensor those with the highest scores; of equal scores the lower index."""
        stays: Tree = {}
        for name, leaf in work[SCORES].items():
            count = math.ceil((1 - self.sparsity) * leaf.numel() - 1e-9)
            order = leaf.reshape(-1).round(decimals=DECIMALS).argsort(descending=True, stable=True)
            stays[name] = (order.argsort() < count).reshape(leaf.shape)
        return {**work, KEPT: stays}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the scores."""
        grad = self.grad(ctx, work, batch)
        return {**ctx.optimize(work, SCORES, grad, batch), "buffers": grad.scored.buffers}

    def grad(self, ctx: ClientContext, work: Slots, batch: Batch) -> Grad:
        """The gradient of the scores, straight through the mask."""

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(self.apply_mask(ctx, trees[SCORES], work[KEPT]), work["buffers"], batch)

        return ctx.grad(work, SCORES, batch, loss)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the bits, or scores, of what was not pruned, and how many bits changed."""
        bits, stays = tree.map(lambda s: s > 0, work[SCORES]), work[KEPT]
        changed = [((bit != work[BEFORE][n]) & stays[n]).sum() for n, bit in bits.items()]
        sent = {BITS: bits if self.combine == "votes" else work[SCORES], mask_of(BITS): stays}
        return {**work, **sent, CHANGED: {"bits": torch.stack(changed).sum().to(ctx.samples.dtype)}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """Whether the server decided about a weight, and how: two bits, or a bit and the score; and running
        statistics."""
        statistics, mean = super().download(ctx, server, ids).shared, server[MEAN]
        if self.combine == "scores":
            return Download({**statistics, DECIDED: tree.map(lambda p: p != 0, mean), ON: mean})
        on, off = (tree.map(partial(self.agrees, says=says), mean) for says in (1, 0))
        return Download({**statistics, DECIDED: tree.map(torch.logical_or, on, off), ON: on})

    def agrees(self, mean: Tensor, says: int) -> Tensor:
        """Where enough clients say on (1) or off (0); a tie decides nothing."""
        share = mean if says else 1 - mean
        return (share >= self.agree - 1e-6) & (share > 0.5)

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """Bits as numbers, which have a mean; and a vote for every weight that the client kept."""
        bits = tree.map(lambda p, bit: bit.to(p.dtype), server[MEAN], upload.slots[BITS])
        votes = tree.map(lambda p, mask: mask.to(p.dtype), server[MEAN], upload.masks[BITS])
        return replace(upload, slots={**upload.slots, BITS: bits, VOTES: votes})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean bit, or score, of each weight over those who kept it, if they are enough."""
        enough = tree.map(lambda votes: votes >= self.overlap, sums[VOTES].total)
        mean = tree.map(torch.where, enough, sums[BITS].mean(server[MEAN]), server[MEAN])
        if not float(sums[CHANGED].total["bits"]):
            warnings.warn(
                f"fedmask: in round {ctx.round + 1} no bit of any client's mask changed, so nothing was learnt; raise "
                "lr, the learning rate of the scores (or the run's)",
                stacklevel=2,
            )
        return {**super().aggregate(ctx, server, sums, each), MEAN: mean}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model under the client's mask: with what the server decided, or as trained."""
        work = self.prepare(ctx, work) if DECIDED in work else work
        params = self.apply_mask(ctx, work[SCORES], work[KEPT])
        return {"params": params, "buffers": work["buffers"], SCORES: work[SCORES], KEPT: work[KEPT]}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client does what a newcomer does: a pass, pruning, training."""
        return self.learn(ctx, self.adapt_step)

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of the scores of a copy, also in phases that know of `params` only."""
        lr = ctx.lr if ctx.phase.lr else ctx.scheduled(self.score_lr(ctx))
        fresh = {f"{SCORES}:{key}": state for key, state in ctx.training.optimizer.init(model[SCORES]).items()}
        grad = self.grad(ctx, model, batch)
        after = ctx.apply({**fresh, **model}, SCORES, grad, lr)
        return {**after, "params": self.apply_mask(ctx, after[SCORES], after[KEPT]), "buffers": grad.scored.buffers}

    def frozen(self, ctx: RoundContext) -> Tree:
        """The frozen model: with weights of one size and biases of zero, or as it was drawn."""
        drawn = ctx.initial["params"]
        if self.weights == "drawn":
            return drawn
        layers = tree.drop(drawn, ctx.task.norms)
        sized = {n: one_size(leaf) for n, leaf in layers.items() if leaf.ndim > 1}
        biases = {n: torch.zeros_like(leaf) for n, leaf in layers.items() if n.rpartition(".")[2].startswith("bias")}
        return {**drawn, **sized, **biases}

    def apply_mask(self, ctx: RoundContext, scores: Tree, stays: Tree) -> Tree:
        """The frozen weights under the binary mask, differentiable straight through."""
        frozen = self.frozen(ctx)
        return {**frozen, **{n: frozen[n] * binary(s, stays[n]) for n, s in scores.items()}}

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the masked weights that is on."""
        on = [((score > 0) & client[KEPT][n]).sum() for n, score in client[SCORES].items()]
        return {"on": torch.stack(on).sum() / tree.size(client[SCORES])}


def mask_names(task: Task, layers: int | None) -> tuple[str, ...]:
    """The names of the weights of the last layers, or of all."""
    head = frozenset(task.names) if layers is None else task.head(layers)
    return tuple(n for n, leaf in task.net.params.items() if n in head and n not in task.norms and leaf.ndim > 1)


def one_size(weights: Tensor) -> Tensor:
    """Weights of one size, the root of 2 / inputs (He et al., ICCV 2015), with the signs of the given ones.

    >>> one_size(torch.tensor([[0.3, -0.1]]))
    tensor([[ 1., -1.]])
    """
    return torch.where(weights < 0, -1.0, 1.0).to(weights.dtype) * math.sqrt(2 / weights[0].numel())


def binary(score: Tensor, stays: Tensor) -> Tensor:
    """The mask of scores, 0 where pruned; its gradient is that of their sigmoid.

    >>> binary(torch.tensor([0.2, -0.2, 3.0]), torch.tensor([True, True, False]))
    tensor([1., 0., 0.])
    """
    soft = score.sigmoid()
    hard = (score > 0).to(score.dtype)
    return torch.where(stays, hard + (soft - soft.detach()), 0.0)
