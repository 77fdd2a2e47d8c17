"""FedAF: clients condense their data into a few learned images, on which the server trains the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..contract import About, Method, ModelError, Needs, Phase, Refuses, Slots, Sums, Tree, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.gradients import Autograd, LossFn
from ..contract.messages import Uploads
from ..contract.parts.class_statistics import add_rows, empty, feature_size, require_classes
from ..contract.parts.draws import draw_like
from ..contract.parts.heads import check_head
from ..contract.slots import Slot, mask_of, scratch, shared
from ..core.randomness import generator
from ..task.optimizers import SGD
from ..task.task import Batch, Scored, Task

IMAGES, ALL_IMAGES = "fedaf.images", "fedaf.images.all"
LOGITS, OWN_LOGITS = "fedaf.logits", "fedaf.logits.own"
SOFT = "fedaf.soft"
FEATURES = "fedaf.features"
SAMPLE = "fedaf.sample"


@register("fedaf")
@dataclass(frozen=True)
class FedAF(Method):
    r"""FedAF (Wang et al., CVPR 2024): no models are averaged. Each client learns a few images s of every class that it
    has, so that a network f sees in them what it sees in the client's data, and so that their mean logits u per class
    look like those of all clients, U,

    .. math:: \min_s \sum_c \bigl\|\bar f_c(x) - \bar f_c(s)\bigr\|^2 + \lambda \, SW^2(u(s), U).

    SW is the sliced Wasserstein distance of the classes' logits: both sets are projected to random directions, and
    sorted. f is the received model mixed with a random one that is new in each round,
    :math:`\gamma w + (1 - \gamma) \tilde w`. The clients send images, and of each class the mean logits and soft labels
    R that the received model gives for their data. The server trains the global model on all images,

    .. math:: \min_w \frac{1}{n} \sum_l \ell(w; s_l, y_l) + \mu \, \mathrm{KL}\bigl(R_{y_l} \,\|\, p_w(s_l)\bigr).

    Written from published summaries. Ours are: whole-data means instead of those of batches; one random network per
    round, drawn leaf by leaf with the mean and spread of the initial values; images that start as noise and are learned
    on from round to round; U from the round before, so that a round is one exchange; and all default values.

    All clients predict with the global model. The server sees condensed images, which can resemble data, and counts.
    Run it: ``idiolect run fedaf``.
    """

    about = About(
        "The server trains on images that clients condense from data",
        family="one model for all",
        paper="wang2024fedaf",
        kind="global",
        reveals="condensed images with soft labels, and the mean logits of each class",
        stays="the real images",
        caution="condensed images may resemble real ones",
    )
    needs = Needs(server_training=True)
    refuses = Refuses(
        wrapping="its clients send condensed images, not a model",
        stacking="how many images a client learns depends on the classes that it has",
        other_networks="it works with the features of one network",
        summing="its server trains on every client's images",
    )

    per_class: int = option(10, min=1, tuned="1:50:log", help="images that a client learns of each of its classes")
    steps: int = option(50, min=1, help="steps of learning images per round")
    image_lr: float = option(1.0, above=0.0, tuned="0.1:10:log", help="learning rate of the images")
    mix: float = option(
        0.9, min=0.0, max=1.0, help="share of the received model in the network that images are seen by"
    )
    align: float = option(0.01, min=0.0, tuned="0.001:0.1:log", help="weight of the agreement with all clients' logits")
    directions: int = option(20, min=1, help="random directions of the sliced Wasserstein distance")
    match: float = option(0.1, min=0.0, tuned="0.01:1:log", help="weight of the soft labels in the server's training")
    server_epochs: int = option(5, min=1, help="the server's passes over the images per round")
    server_batch: int = option(64, min=1, help="the server's batch size")
    server_lr: float = option(0.05, above=0.0, help="the server's learning rate")
    server_momentum: float = option(0.9, min=0.0, below=1.0, help="the server's momentum")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model goes down whole, whatever the policy for normalisation, for clients train nothing of it; images
        and means go up."""
        return {
            "params": Slot("server", down=True),
            "buffers": Slot("server", initial_buffers, down=True),
            LOGITS: shared(blank, weigh=f"{LOGITS}/count"),
            OWN_LOGITS: scratch(blank),
            SOFT: Slot("round", blank, up="each", weigh="uniform"),
            FEATURES: scratch(self.no_features),
            IMAGES: Slot("client", self.noise, up="each", weigh="uniform"),
        }

    def no_features(self, ctx: ClientContext) -> Tree:
        """Mean features of no samples."""
        return empty(require_classes(self.name, ctx.task), feature_size(ctx.task), ctx.samples)

    def noise(self, ctx: ClientContext) -> Tree:
        """Images of noise [classes, per_class, ...], other ones for each client."""
        shape = (require_classes(self.name, ctx.task), self.per_class, *ctx.task.example[0].shape[1:])
        noise = generator(ctx.training.seed, "fedaf images", ctx.index).standard_normal(shape, np.float32)
        return {"x": torch.from_numpy(noise).to(ctx.samples.device)}

    def check(self, task: Task) -> None:
        """Images have to be numbers, of classes, with a feature vector."""
        check_head(self.name, task)
        if not task.example[0].is_floating_point() or task.net.call is not None:
            what = "whole numbers" if task.net.call is None else f"several ({task.net.call.layout})"
            raise ModelError(f"fedaf learns inputs by gradient descent, but this task's are {what}; use another method")

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The mixed model, and of the images those of the client's classes."""
        images = work[IMAGES]["x"]
        image_slots = {ALL_IMAGES: {"x": images}, IMAGES: {"x": images[present_classes(ctx.class_counts)]}}
        return {**work, **image_slots, SAMPLE: self.sample(ctx, work["params"])}

    def sample(self, ctx: ClientContext, params: Tree) -> Tree:
        """The received model mixed with a random one, which all clients of a round have in common."""
        random = draw_like(ctx.initial["params"], ctx.rng("fedaf sample"))
        return tree.map(lambda received, drawn: self.mix * received + (1 - self.mix) * drawn, params, random)

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """A look at the data, then steps of the images."""
        return (
            Phase(self.look, "look", slots=(), epochs=1),
            Phase(self.condense, "condense", slots=(IMAGES,), steps=self.steps, lr=self.image_lr),
        )

    def look(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A batch's share of the means."""
        outputs = ctx.task.forward(work["params"], work["buffers"], batch.x).outputs
        features = ctx.task.forward(work[SAMPLE], work["buffers"], batch.x).features
        values = {FEATURES: features, SOFT: outputs.softmax(1), OWN_LOGITS: outputs}
        return {**work, **{slot: add_rows(work[slot], rows, batch.y, batch.weight) for slot, rows in values.items()}}

    def condense(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the images."""
        return ctx.optimize(work, IMAGES, ctx.grad(work, IMAGES, batch, self.image_loss(ctx, work)), batch)

    def image_loss(self, ctx: ClientContext, work: Slots) -> LossFn:
        """The loss of the images: their features' and their logits' distance, over the client's own classes."""
        classes, everyone = present_classes(ctx.class_counts), work[LOGITS]
        here = work[FEATURES]["count"][classes] > 0
        known = (here & (everyone["count"][classes] > 0))[:, None]
        lines = torch.from_numpy(
            ctx.rng("fedaf directions").standard_normal((everyone["mean"].shape[1], self.directions), np.float32)
        ).to(everyone["mean"])
        lines = lines / lines.norm(dim=0)

        def loss(trees: Slots) -> Scored:
            images = trees[IMAGES]["x"]
            seen, out = (
                ctx.task.forward(work[slot], work["buffers"], images.flatten(0, 1)) for slot in (SAMPLE, "params")
            )
            features, logits = (rows.reshape(*images.shape[:2], -1).mean(1) for rows in (seen.features, out.outputs))
            apart = (features - work[FEATURES]["mean"][classes]).square().sum(1)
            # What one side lacks is made equal on both.
            pair = (torch.where(known, rows, 0.0) for rows in (logits, everyone["mean"][classes]))
            a, b = (torch.zeros_like(everyone["mean"]).index_copy(0, classes, rows) for rows in pair)
            return Scored((here * apart).sum() + self.align * sliced_distance(a, b, lines), *out)

        return loss

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the images; send those of the client's classes, and the means."""
        before = work[ALL_IMAGES]["x"]
        images = before.index_copy(0, present_classes(ctx.class_counts), work[IMAGES]["x"])
        mask = torch.zeros_like(before, dtype=torch.bool).index_fill(0, present_classes(work[FEATURES]["count"]), True)
        return {**work, IMAGES: {"x": images}, mask_of(IMAGES): {"x": mask}, LOGITS: work[OWN_LOGITS]}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """Train the model on this round's images; the mean logits are averaged class by class."""
        parts = []
        for upload in each.values():
            classes, soft = present_classes(upload.slots[SOFT]["count"]), upload.slots[SOFT]["mean"]
            y = classes.repeat_interleave(self.per_class)
            parts.append((upload.slots[IMAGES]["x"][classes].flatten(0, 1), y, soft[y]))
        x, y, soft = (torch.cat(column) for column in zip(*parts, strict=True))
        before, count = server[LOGITS], sums[LOGITS].weight["mean"][:, 0].to(x.dtype)
        logits = {**sums[LOGITS].mean(before), "count": torch.where(count > 0, count, before["count"])}
        return {**server, **self.fit(ctx, server, x, y, soft), LOGITS: logits}

    def fit(self, ctx: ServerContext, server: Slots, x: Tensor, y: Tensor, soft: Tensor) -> Slots:
        """The model after the server's passes over images with labels and soft labels."""
        params, buffers, draw = server["params"], server["buffers"], ctx.rng("fedaf server")
        optimizer, autograd = SGD(momentum=self.server_momentum), Autograd()
        state, smallest = optimizer.init(params), 2 if ctx.task.has_batchnorm else 1
        for _ in range(self.server_epochs):
            for chosen in torch.split(torch.from_numpy(draw.permutation(len(x))).to(x.device), self.server_batch):
                if len(chosen) >= smallest:
                    batch = Batch(x[chosen], y[chosen], torch.ones_like(chosen, dtype=x.dtype))
                    loss = self.server_loss(ctx, buffers, batch, soft[chosen])
                    grads, scored = autograd.of_loss(loss, {"params": params})
                    params, state = optimizer.step(params, grads["params"], state, self.server_lr)
                    buffers = scored.buffers
        return {"params": params, "buffers": buffers}

    def server_loss(self, ctx: ServerContext, buffers: Tree, batch: Batch, soft: Tensor) -> LossFn:
        """Cross-entropy, and mu times the divergence from the soft labels."""

        def loss(trees: Slots) -> Scored:
            plain = ctx.task.loss(trees["params"], buffers, batch)
            apart = (torch.xlogy(soft, soft) - soft * plain.outputs.log_softmax(1)).sum(1).mean()
            return plain._replace(loss=plain.loss + self.match * apart)

        return loss


def initial_buffers(ctx: RoundContext) -> Tree:
    """The initial model's buffers."""
    return ctx.initial["buffers"]


def present_classes(counts: Tensor) -> Tensor:
    """The classes that have samples.

    >>> present_classes(torch.tensor([2.0, 0.0, 1.0]))
    tensor([0, 2])
    """
    return counts.nonzero().flatten()


def blank(ctx: RoundContext) -> Tree:
    """Means of the model's outputs over no samples."""
    size = ctx.task.example_output.outputs.shape[1]
    return empty(ctx.task.classes or 0, size, next(iter(ctx.initial["params"].values())))


def sliced_distance(a: Tensor, b: Tensor, lines: Tensor) -> Tensor:
    """The squared sliced Wasserstein distance of two sets of as many points, over the directions in `lines`.

    >>> sliced_distance(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [1.0]]), torch.ones(1, 1))
    tensor(1.)
    """
    return ((a @ lines).sort(0).values - (b @ lines).sort(0).values).square().mean()
