"""FedMD: clients with networks of their own teach each other by their scores of public samples."""

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
    Grad,
    Method,
    Needs,
    Phase,
    Refuses,
    Scored,
    ServerContext,
    Slots,
    Task,
    Upload,
    option,
    register,
    tree,
)
from ..task.losses import per_sample

SCORES = "fedmd.scores"
SEEN = "fedmd.seen"
CONSENSUS = "fedmd.consensus"


@register("fedmd")
@dataclass(frozen=True)
class FedMD(Method):
    r"""FedMD (Li and Wang, 2019): no parameters are exchanged, so every client may have its own architecture. Clients
    score random public samples x (logits, no soft-max), the server takes the mean, and before training on its own data
    ("revisit") each client fits it ("digest"; Algorithm 1):

    .. math:: \tilde f(x) = \frac{1}{m} \sum_k f_k(x), \quad \min_{f_k} \frac{1}{C} \sum_c |f_{k,c}(x) - \tilde f_c(x)|.

    In a set-up round clients train on the public data, then on their own, and give the first scores. The scores that a
    client sends at the end of a round are of the samples that all digest in the next, so that a round is one exchange.

    Hand-worked: two clients score a sample (2, 0) and (4, 2). The consensus is (3, 1); the first client's loss is
    (1 + 1) / 2 = 1, and its gradient in the scores (-1/2, -1/2).

    The server sees scores of public samples only. An unseen client goes through the set-up and one round.
    """

    about = About(
        "Own networks that teach each other by scores of public samples",
        paper="li2019fedmd",
        reveals="class scores on public samples",
        stays="the model",
        caution="needs data that everybody sees",
    )
    needs = Needs(setup_rounds=1, public=True)
    refuses = Refuses(wrapping="its clients share scores of public samples, not a model")
    identities: ClassVar[dict[str, str]] = {
        "fedmd(public_epochs=0, private_epochs=0, digest_epochs=0)": "local",
    }

    samples: int = option(5000, min=1, help="public samples scored and digested per round, or all if there are fewer")
    loss: str = option("l1", choices=("l1", "mse"), help="distance of a client's scores from the consensus")
    public_epochs: int = option(5, min=0, help="passes over the public data in the set-up round")
    private_epochs: int | None = option(
        None, min=0, help="passes over the own data in the set-up round; none is the run's local epochs"
    )
    digest_epochs: int = option(1, min=0, help="passes over the consensus per round")
    digest_batch: int = option(256, min=1, help="batch size of scoring and digesting")
    digest_lr: float | None = option(None, above=0.0, help="rate of digesting; none is the run's")

    def private(self, task: Task) -> frozenset[str]:
        """The whole model stays on the client."""
        return frozenset(task.net.params) | frozenset(task.net.buffers)

    # -- server --------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """No consensus yet, of no samples."""
        nothing = blank(ctx, 0)
        return {CONSENSUS: {"scores": nothing, "round": torch.tensor(ctx.round - 1, device=nothing.device)}}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The newest consensus."""
        return Download({CONSENSUS: server[CONSENSUS]})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The plain mean of the scores, of as many samples as were scored; they are digested in the next round."""
        masks = [each.masks[SCORES] for each in uploads.values()]
        mean = tree.mean([each.slots[SCORES] for each in uploads.values()], [1.0] * len(uploads), masks)["scores"]
        seen = torch.stack([mask["scores"].flatten(1).any(1) for mask in masks]).any(0)
        used = torch.tensor(ctx.round + 1, device=mean.device)
        return {CONSENSUS: {"scores": mean[: int(seen.sum())].clone(), "round": used}}

    # -- client --------------------------------------------------------------------------------------

    def first(self) -> tuple[Phase, ...]:
        """The set-up: public, then own data."""
        public = Phase("public", data="public", stream="pretrain", epochs=self.public_epochs)
        return (*((public,) if self.public_epochs else ()), Phase("train", epochs=self.private_epochs))

    def digests(self, ahead: int = 0) -> tuple[Phase, ...]:
        """Passes over one round's public samples, always in the same order."""
        return (
            Phase(
                "digest",
                data="public",
                stream="digest",
                ahead=ahead,
                epochs=1,
                samples=self.samples,
                batch_size=self.digest_batch,
                lr=self.digest_lr,
            ),
        ) * self.digest_epochs

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Digest and revisit, or the set-up; then score the next round's samples."""
        training = self.first() if ctx.round < 0 else (*self.digests(), Phase())
        score = Phase(
            "score",
            slots=(),
            data="public",
            stream="digest",
            ahead=1,
            epochs=1,
            samples=self.samples,
            batch_size=self.digest_batch,
        )
        return (*training, score) if self.digest_epochs else training

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The own model, the consensus, and room for the scores."""
        work = {**super().begin(ctx, client, download), CONSENSUS: download[CONSENSUS]}
        scores = blank(ctx, self.samples)
        return {**work, SCORES: {"scores": scores}, SEEN: {"rows": scores.new_zeros(len(scores), dtype=torch.bool)}}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of training or digesting, or the scores of a batch."""
        if ctx.phase.name == "score":
            return self.score(ctx, work, batch)
        if ctx.phase.name != "digest":
            return super().step(ctx, work, batch)
        grad = self.digest(ctx, work, batch)
        # The training log is about the clients' own data.
        return work if grad is None else {**ctx.descend(work, "params", grad, batch), "log": work["log"]}

    def score(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Write down the scores of a batch, in the order in which they will be digested."""
        found = ctx.task.forward(work["params"], work["buffers"], batch.x).outputs.detach()
        at = ctx.step * self.digest_batch

        def put(held: Tensor, new: Tensor) -> Tensor:
            return torch.cat([held[:at], new, held[at + len(new) :]])

        rows = torch.ones_like(batch.weight, dtype=torch.bool)
        scores, seen = put(work[SCORES]["scores"], found), put(work[SEEN]["rows"], rows)
        return {**work, SCORES: {"scores": scores}, SEEN: {"rows": seen}}

    def digest(self, ctx: ClientContext, work: Slots, batch: Batch) -> Grad | None:
        """The gradient of the distance from the consensus; none where there is no consensus of the batch."""
        at, consensus = ctx.step * self.digest_batch, work[CONSENSUS]
        target = consensus["scores"][at : at + len(batch.x)]
        if len(target) < len(batch.x):
            return None
        # A consensus that is left from an earlier round is of other samples, and teaches nothing.
        fits = (consensus["round"] == ctx.round + ctx.phase.ahead).to(target.dtype)

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees["params"], work["buffers"], batch.x, train=True)
            off = out.outputs - target
            each = per_sample(off.abs() if self.loss == "l1" else off**2)
            return Scored(fits * (each * batch.weight).sum() / batch.weight.sum(), *out)

        return ctx.grad(work, "params", batch, loss)

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the model, send the scores."""
        client, _ = super().end(ctx, client, work)
        if not self.digest_epochs:
            return client, Upload({})
        scores, seen = work[SCORES]["scores"], work[SEEN]["rows"]
        mask = seen.reshape(-1, *[1] * (scores.ndim - 1)).expand(scores.shape)
        return client, Upload({SCORES: work[SCORES]}, {SCORES: {"scores": mask}})

    # -- prediction ----------------------------------------------------------------------------------

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The own model; with the consensus, should it be digested."""
        return {**super().view(ctx, client, download), CONSENSUS: download[CONSENSUS]}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client goes through the set-up, and then through a round with the newest consensus."""
        return (*self.first(), *self.digests(ahead=1), Phase())

    def tune(self, ctx: ClientContext, view: Slots, batch: Batch) -> Slots:
        """A step on a copy of the own model."""
        if ctx.phase.name != "digest":
            return super().tune(ctx, view, batch)
        grad = self.digest(ctx, view, batch)
        return view if grad is None else ctx.move(view, "params", grad, ctx.rate)


def blank(ctx: ClientContext | ServerContext, count: int) -> Tensor:
    """Zeros in place of the scores of so many samples."""
    model = ctx.initial
    x = ctx.task.example[0][:1].to(next(iter(model["params"].values())).device)
    outputs = ctx.task.forward(model["params"], model["buffers"], x).outputs
    return outputs.new_zeros(count, *outputs.shape[1:])
