"""FedMD: clients with networks of their own teach each other by their scores of public samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract import About, Grad, Method, Needs, Phase, Refuses, Slots, Sums, Tree, option, register
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.messages import Uploads
from ..contract.phase import Step
from ..contract.slots import Slot, mask_of, private, scratch
from ..task.losses import per_sample
from ..task.task import Batch, Scored

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

    The server sees scores of public samples only. An unseen client goes through the set-up and one round.
    Run it: ``idiolect run fedmd``.
    """

    about = About(
        "Own networks that teach each other by scores of public samples",
        family="knowledge instead of models",
        paper="li2019fedmd",
        reveals="class scores on public samples",
        stays="the model",
        caution="needs data that everybody sees",
    )
    needs = Needs(setup_rounds=1, public=True)
    refuses = Refuses(wrapping="its clients share scores of public samples, not a model")
    identities = {"fedmd(public_epochs=0, private_epochs=0, digest_epochs=0)": "local"}

    samples: int = option(5000, min=1, help="public samples scored and digested per round, or all if there are fewer")
    loss: str = option("l1", choices=("l1", "mse"), help="distance of a client's scores from the consensus")
    public_epochs: int = option(5, min=0, help="passes over the public data in the set-up round")
    private_epochs: int | None = option(
        None, min=0, help="passes over the own data in the set-up round; none is the run's local epochs"
    )
    digest_epochs: int = option(1, min=0, help="passes over the consensus per round")
    digest_batch: int = option(256, min=1, help="batch size of scoring and digesting")
    digest_lr: float | None = option(None, above=0.0, help="learning rate of digesting; none is the run's")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """No model is shared; the consensus goes down, and where it is digested, scores go up."""
        slots = {"params": private(holds="model"), CONSENSUS: Slot("server", no_consensus, down=True)}
        if not self.digest_epochs:
            return slots
        return {
            **slots,
            SCORES: Slot("round", self.no_scores, up="sum", weigh="uniform"),
            SEEN: scratch(self.none_seen),
        }

    def no_scores(self, ctx: ClientContext) -> Tree:
        """Room for the scores."""
        return {"scores": blank(ctx, self.samples)}

    def none_seen(self, ctx: ClientContext) -> Tree:
        """Which samples have scores: none."""
        return {"rows": blank(ctx, self.samples).new_zeros(self.samples, dtype=torch.bool)}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Digest and revisit, or the set-up; then score the next round's samples."""
        if ctx.round < 0:
            training = self.first_phases(self.step)
        else:
            training = (*self.digest_phases(self.digest_step), Phase(self.step))
        score = self.on_consensus(self.score, "score", data="next public", slots=())
        return (*training, score) if self.digest_epochs else training

    def first_phases(self, step: Step) -> tuple[Phase, ...]:
        """The set-up: public, then own data."""
        public = Phase(step, "public", data="public", stream="pretrain", epochs=self.public_epochs)
        return (*((public,) if self.public_epochs else ()), Phase(step, "train", epochs=self.private_epochs))

    def digest_phases(self, step: Step, data: str = "public") -> tuple[Phase, ...]:
        """Passes over one round's public samples, always in the same order."""
        return (self.on_consensus(step, "digest", data=data, lr=self.digest_lr),) * self.digest_epochs

    def on_consensus(self, step: Step, name: str, **facts: Any) -> Phase:
        """One pass over the public samples of a round."""
        samples, size = self.samples, self.digest_batch
        return Phase(step, name, stream="digest", epochs=1, samples=samples, batch_size=size, **facts)

    def digest_step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step towards the consensus."""
        grad = self.digest_grad(ctx, work, batch)
        # The training log is about the clients' own data.
        return work if grad is None else {**ctx.optimize(work, "params", grad, batch), "log": work["log"]}

    def digest_grad(self, ctx: ClientContext, work: Slots, batch: Batch) -> Grad | None:
        """The gradient of the distance from the consensus; none where there is no consensus of the batch."""
        at, consensus = ctx.step * self.digest_batch, work[CONSENSUS]
        target = consensus["scores"][at : at + len(batch.x)]
        if len(target) < len(batch.x):
            return None
        # A consensus that is left from an earlier round is of other samples, and teaches nothing.
        fits = (consensus["round"] == ctx.round + (ctx.phase.data == "next public")).to(target.dtype)

        def loss(trees: Slots) -> Scored:
            out = ctx.task.forward(trees["params"], work["buffers"], batch.x, train=True)
            off = out.outputs - target
            errors = per_sample(off.abs() if self.loss == "l1" else off**2)
            return Scored(fits * (errors * batch.weight).sum() / batch.weight.sum(), *out)

        return ctx.grad(work, "params", batch, loss)

    def score(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Write down the scores of a batch, in the order in which they will be digested."""
        outputs = ctx.task.forward(work["params"], work["buffers"], batch.x).outputs.detach()
        at = ctx.step * self.digest_batch

        def put(all_rows: Tensor, new: Tensor) -> Tensor:
            return torch.cat([all_rows[:at], new, all_rows[at + len(new) :]])

        rows = torch.ones_like(batch.weight, dtype=torch.bool)
        scores, seen = put(work[SCORES]["scores"], outputs), put(work[SEEN]["rows"], rows)
        return {**work, SCORES: {"scores": scores}, SEEN: {"rows": seen}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the rows that have scores."""
        if not self.digest_epochs:
            return work
        scores, seen = work[SCORES]["scores"], work[SEEN]["rows"]
        mask = seen.reshape(-1, *[1] * (scores.ndim - 1)).expand(scores.shape)
        return {**work, mask_of(SCORES): {"scores": mask}}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The plain mean of the scores, of as many samples as were scored; they are digested in the next round."""
        mean, weight = sums[SCORES].mean()["scores"], sums[SCORES].weight["scores"]
        seen = (weight > 0).flatten(1).any(1)
        used = torch.tensor(ctx.round + 1, device=mean.device)
        return {**server, CONSENSUS: {"scores": mean[: int(seen.sum())].clone(), "round": used}}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own model; with the consensus, should it be digested."""
        return {**super().personal_model(ctx, work), CONSENSUS: work[CONSENSUS]}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client goes through the set-up, and then through a round with the newest consensus."""
        digest = self.digest_phases(self.adapt_digest_step, data="next public")
        return (*self.first_phases(self.adapt_step), *digest, Phase(self.adapt_step))

    def adapt_digest_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of a copy of the own model towards the consensus."""
        grad = self.digest_grad(ctx, model, batch)
        return model if grad is None else ctx.apply(model, "params", grad)


def no_consensus(ctx: ServerContext) -> Tree:
    """No consensus yet, of no samples."""
    nothing = blank(ctx, 0)
    return {"scores": nothing, "round": torch.tensor(ctx.round - 1, device=nothing.device)}


def blank(ctx: RoundContext, count: int) -> Tensor:
    """Zeros in place of the scores of so many samples."""
    outputs = ctx.task.example_output.outputs
    return outputs.new_zeros(count, *outputs.shape[1:])
