"""FedAF: clients condense their data into a few learned images, on which the server trains the global model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Method,
    ModelError,
    Needs,
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
)
from ..contract.context import LossFn, autograd
from ..contract.parts.class_statistics import added, empty, feature_size, merged, require_classes
from ..contract.parts.heads import check_head
from ..core.randomness import generator
from ..task.optimizers import SGD

IMAGES = "fedaf.images"
LOGITS = "fedaf.logits"
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

    Hand-worked: mean features 3 of a class, and images with features 0 and 4, so 2 on average: the first term is 1,
    its slope in each image's feature -2 / 2 = -1. Logits {0, 2} and {3, 1} on a line are 0 to 1 and 2 to 3: SW^2 = 1.

    All clients predict with the global model. The server sees condensed images, which can resemble data, and counts.
    """

    about = About(
        "The server trains on images into which clients condense their data",
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
    )

    per_class: int = option(10, min=1, help="images that a client learns of each of its classes")
    steps: int = option(50, min=1, help="steps of learning images per round")
    image_lr: float = option(1.0, above=0.0, help="rate of learning images")
    mix: float = option(
        0.9, min=0.0, max=1.0, help="share of the received model in the network that images are seen by"
    )
    align: float = option(0.01, min=0.0, help="weight of the agreement with all clients' logits")
    directions: int = option(20, min=1, help="random directions of the sliced Wasserstein distance")
    match: float = option(0.1, min=0.0, help="weight of the soft labels in the server's training")
    server_epochs: int = option(5, min=1, help="the server's passes over the images per round")
    server_batch: int = option(64, min=1, help="the server's batch size")
    server_lr: float = option(0.05, above=0.0, help="the server's rate")
    server_momentum: float = option(0.9, min=0.0, below=1.0, help="the server's momentum")

    def check(self, task: Task) -> None:
        """Images have to be numbers, of classes, with a feature vector."""
        check_head(self.name, task)
        if not task.example[0].is_floating_point():
            raise ModelError(
                "fedaf learns inputs by gradient descent, but this task's are whole numbers; use another method"
            )

    def kept(self, ctx: ClientContext | ServerContext) -> frozenset[str]:
        """Clients train nothing of the model, so they keep nothing of it."""
        return frozenset()

    # -- server ----------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, and mean logits of no class."""
        return {**super().server_init(ctx), LOGITS: blank(ctx)}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model, and all clients' mean logits."""
        return Download({slot: server[slot] for slot in ("params", "buffers", LOGITS)})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """Train the model on this round's images; the mean logits are averaged class by class."""
        parts = []
        for each in uploads.values():
            own, soft = present(each.slots[SOFT]["count"]), each.slots[SOFT]["mean"]
            y = own.repeat_interleave(self.per_class)
            parts.append((each.slots[IMAGES]["x"][own].flatten(0, 1), y, soft[y]))
        x, y, soft = (torch.cat(column) for column in zip(*parts, strict=True))
        logits = merged([each.slots[LOGITS] for each in uploads.values()], server[LOGITS])
        return {**server, **self.fitted(ctx, server, x, y, soft), LOGITS: logits}

    def fitted(self, ctx: ServerContext, server: Slots, x: Tensor, y: Tensor, soft: Tensor) -> Slots:
        """The model after the server's passes over images with labels and soft labels."""
        params, buffers, draw = server["params"], server["buffers"], ctx.rng("fedaf server")
        optimizer = SGD(momentum=self.server_momentum)
        state, smallest = optimizer.init(params), 2 if ctx.task.has_batchnorm else 1
        for _ in range(self.server_epochs):
            for chosen in torch.split(torch.from_numpy(draw.permutation(len(x))).to(x.device), self.server_batch):
                if len(chosen) >= smallest:
                    batch = Batch(x[chosen], y[chosen], torch.ones_like(chosen, dtype=x.dtype))
                    grads, scored = autograd(self.server_loss(ctx, buffers, batch, soft[chosen]), {"params": params})
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

    # -- client ----------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """Images of noise [classes, per_class, ...], other ones for each client."""
        shape = (require_classes(self.name, ctx.task), self.per_class, *ctx.task.example[0].shape[1:])
        noise = generator(ctx.seed, "fedaf images", ctx.index).standard_normal(shape, np.float32)
        return {IMAGES: {"x": torch.from_numpy(noise).to(ctx.samples.device)}}

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The received model, the mixed one, the images of the client's classes, and room for its data's means."""
        work = super().begin(ctx, client, download)
        features = empty(require_classes(self.name, ctx.task), feature_size(ctx.task), ctx.samples)
        own = {FEATURES: features, SOFT: blank(ctx), f"{LOGITS}.own": blank(ctx)}
        return {
            **work,
            **own,
            SAMPLE: self.sample(ctx, work["params"]),
            LOGITS: download[LOGITS],
            IMAGES: {"x": client[IMAGES]["x"][present(ctx.counts)]},
        }

    def sample(self, ctx: ClientContext, params: Tree) -> Tree:
        """The received model mixed with a random one, which all clients of a round have in common."""
        draw, mixed = ctx.rng("fedaf sample"), {}
        for name, leaf in ctx.initial["params"].items():
            noise = torch.from_numpy(draw.standard_normal(tuple(leaf.shape), np.float32)).to(leaf.device)
            random = leaf.mean() + leaf.std(correction=0) * noise
            mixed[name] = self.mix * params[name] + (1 - self.mix) * random
        return mixed

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """A look at the data, then steps of the images."""
        return (
            Phase("look", slots=(), epochs=1),
            Phase("condense", slots=(IMAGES,), steps=self.steps, lr=self.image_lr),
        )

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A batch's share of the means, or a step of the images."""
        if ctx.phase.name == "condense":
            return ctx.descend(work, IMAGES, ctx.grad(work, IMAGES, batch, self.condensed(ctx, work)), batch)
        outputs = ctx.task.forward(work["params"], work["buffers"], batch.x).outputs
        features = ctx.task.forward(work[SAMPLE], work["buffers"], batch.x).features
        values = {FEATURES: features, SOFT: outputs.softmax(1), f"{LOGITS}.own": outputs}
        means = {slot: added(work[slot], each, batch.y, batch.weight) for slot, each in values.items()}
        return {**work, **means}

    def condensed(self, ctx: ClientContext, work: Slots) -> LossFn:
        """The loss of the images: their features' and their logits' distance, over the client's own classes."""
        own, everyone = present(ctx.counts), work[LOGITS]
        here = work[FEATURES]["count"][own] > 0
        known = (here & (everyone["count"][own] > 0))[:, None]
        lines = torch.from_numpy(
            ctx.rng("fedaf directions").standard_normal((everyone["mean"].shape[1], self.directions), np.float32)
        ).to(everyone["mean"])
        lines = lines / lines.norm(dim=0)

        def loss(trees: Slots) -> Scored:
            images = trees[IMAGES]["x"]
            seen, out = (
                ctx.task.forward(work[slot], work["buffers"], images.flatten(0, 1)) for slot in (SAMPLE, "params")
            )
            features, logits = (each.reshape(*images.shape[:2], -1).mean(1) for each in (seen.features, out.outputs))
            apart = (features - work[FEATURES]["mean"][own]).square().sum(1)
            # What one side lacks is made equal on both.
            pair = (torch.where(known, each, 0.0) for each in (logits, everyone["mean"][own]))
            a, b = (torch.zeros_like(everyone["mean"]).index_copy(0, own, each) for each in pair)
            return Scored((here * apart).sum() + self.align * sliced(a, b, lines), *out)

        return loss

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the images; send those of the client's classes, and the means."""
        before = client[IMAGES]["x"]
        images = {IMAGES: {"x": before.index_copy(0, present(ctx.counts), work[IMAGES]["x"])}}
        mask = torch.zeros_like(before, dtype=torch.bool).index_fill(0, present(work[FEATURES]["count"]), True)
        slots = {**images, LOGITS: work[f"{LOGITS}.own"], SOFT: work[SOFT]}
        return {**client, **images}, Upload(slots, {IMAGES: {"x": mask}})


def present(counts: Tensor) -> Tensor:
    """The classes that have samples.

    >>> present(torch.tensor([2.0, 0.0, 1.0]))
    tensor([0, 2])
    """
    return counts.nonzero().flatten()


def blank(ctx: ClientContext | ServerContext) -> Tree:
    """Means of the model's outputs over no samples."""
    model = ctx.initial
    like = next(iter(model["params"].values()))
    outputs = ctx.task.forward(model["params"], model["buffers"], ctx.task.example[0][:1].to(like.device)).outputs
    return empty(ctx.task.classes or 0, outputs.shape[1], like)


def sliced(a: Tensor, b: Tensor, lines: Tensor) -> Tensor:
    """The squared sliced Wasserstein distance of two sets of as many points, over the directions in `lines`.

    >>> sliced(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [1.0]]), torch.ones(1, 1))
    tensor(1.)
    """
    return ((a @ lines).sort(0).values - (b @ lines).sort(0).values).square().mean()
