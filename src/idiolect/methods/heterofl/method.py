"""HeteroFL: clients of different strength train narrower and wider versions of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...contract import About, Method, Needs, Refuses, Slots, Sums, Tree, option, register, tree
from ...contract.context import ClientContext, ServerContext
from ...contract.gradients import LossFn
from ...contract.messages import Download, Upload, Uploads
from ...contract.parts.slices import check_slices, cut, hidden_params, pad, paste, scale_stats, slice_shapes
from ...contract.slots import Slot, just_trained, nothing
from ...core.errors import OptionError
from ...task.task import Batch, Scored, Task

SLICE, CLASSES = "heterofl.slice", "heterofl.classes"


@register("heterofl")
@dataclass(frozen=True)
class HeteroFL(Method):
    r"""HeteroFL (Diao et al., ICLR 2021): client i of width :math:`r_i` holds the leading :math:`\lceil r_i c \rceil`
    of the c channels (or units) of every hidden layer, inputs to match, and all outputs. The server averages each
    coordinate over the clients that hold it (section 3); what nobody holds keeps its value:

    .. math:: W_q = \frac{1}{|\{i : q \in W_i\}|} \sum_{i : q \in W_i} W_{i,q}.

    While training, a hidden layer's output is divided by :math:`r_i` (the scaler), which here scales the layer's weight
    and bias; a slice predicts with the same scaler, the whole model (`evaluate=global`) without. Logits of classes that
    the client has no samples of are set to zero, in training and in prediction, and its rows for them are left out of
    the average. All clients count alike.

    Hand-worked: four hidden units, widths 1 and 1/2. The wide client trains a unit's weights (0, 0, 0, 0) to
    (2, 2, 2, 2), the narrow one its two to (4, 6): the mean is (3, 4, 2, 2).

    Normalisation uses the batch's own statistics in training; before predicting, each client computes those of its
    model from its own training data (`norm_stats=recompute`). Fine-tuning and unseen clients train the model that
    predicts, scaled weights and all.
    The server sees the slices and which classes each client has. Run it: ``idiolect run heterofl``.
    """

    about = About(
        "Clients hold as many channels of one model as they can afford",
        family="masks and sub-models",
        paper="diao2021heterofl",
        reveals="a slice of the model, and one bit per class that says whether the client has it",
        caution="the server learns which classes a client has",
    )
    needs = Needs(norm_stats="recompute")
    refuses = Refuses(
        wrapping="its clients hold slices of different widths, not one model of one shape",
        other_networks="it cuts all clients' networks, of the widths in `rates`, out of one",
    )
    identities = {
        "heterofl(rates=1, scaler=false, mask=false, weighted=true)": "fedavg",
        "heterofl(rates=1, mask=false, weighted=true, evaluate=global)": "fedavg",
    }

    rates: float | tuple[float, ...] = option(
        (1.0, 0.5),
        above=0.0,
        max=1.0,
        tuned="budget",
        help="clients' widths; of a list, clients take their values in turn",
    )
    scaler: bool = option(True, help="divide the outputs of hidden layers by the width while training")
    mask: bool = option(True, help="set logits of absent classes to zero, and average a class over those who have it")
    weighted: bool = option(False, help="weigh clients by their samples instead of alike")
    evaluate: str = option("own", choices=("own", "global"), help="predict with the own slice, or with the whole model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths or not all(type(width) in (int, float) for width in self.widths):
            raise OptionError(
                f"heterofl: rates={self.rates!r} is not allowed; rates must be a number in (0, 1] or a list of such"
            )

    @property
    def widths(self) -> tuple[float, ...]:
        """The widths that occur."""
        return self.rates if isinstance(self.rates, tuple) else (self.rates,)

    def variant(self, index: int) -> float:
        """The client's width."""
        return self.widths[index % len(self.widths)]

    def check(self, task: Task) -> None:
        """Every width must give a model that computes."""
        super().check(task)
        for width in dict.fromkeys(self.widths):
            check_slices(task, width)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model goes down in slices; up come a slice and the classes that the client has."""
        weigh = "run" if self.weighted else "uniform"
        classes = {CLASSES: Slot("round", nothing, up="sum", weigh=weigh)} if self.mask else {}
        model = Slot("server", down=True, holds="model")
        return {"params": model, SLICE: Slot("round", nothing, up="sum", weigh=weigh), **classes}

    def cut_model(self, task: Task, width: float, slots: Slots) -> Slots:
        """Slots of the model, cut to a width; what is cut already stays."""
        shapes = slice_shapes(task, width)
        return {slot: {n: cut(leaf, shapes[n]) for n, leaf in slots[slot].items()} for slot in ("params", "buffers")}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's slice."""
        return {**work, **self.cut_model(ctx.task, ctx.variant, work)}

    def loss(self, ctx: ClientContext, buffers: Tree, batch: Batch, width: float) -> LossFn:
        """The masked loss of a model whose hidden layers are scaled by 1 / width."""
        frozen = ctx.task.frozen(ctx.phase.part)

        def value(trees: Slots) -> Scored:
            params, stats = scale_hidden(ctx.task, trees["params"], width), scale_stats(ctx.task, buffers, 1 / width)
            out = ctx.task.net.apply(params, stats, batch.x, True, frozen)
            out = out._replace(buffers=scale_stats(ctx.task, out.buffers, width))
            return Scored(ctx.task.score(self.mask_outputs(out.outputs, self.held_classes(ctx)), batch), *out)

        return value

    def scale_model(self, ctx: ClientContext, model: Slots) -> Slots:
        """A slice with the scaler in its weights, and running statistics to match."""
        width = ctx.variant if self.scaler else 1.0
        stats = scale_stats(ctx.task, model["buffers"], 1 / width)
        return {"params": scale_hidden(ctx.task, model["params"], width), "buffers": stats}

    def held_classes(self, ctx: ClientContext) -> Tensor:
        """Which classes the client has samples of; all, where nothing is known of them."""
        return (ctx.class_counts > 0) | (ctx.class_counts.sum() == 0)

    def mask_outputs(self, outputs: Tensor, held: Tensor) -> Tensor:
        """Outputs with zeros for classes that the client has no samples of."""
        axis = class_axis_of(outputs, len(held))
        if not self.mask or axis is None:
            return outputs
        return outputs * held.to(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1 - axis))

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the masked loss of the scaled slice."""
        loss = self.loss(ctx, work["buffers"], batch, ctx.variant if self.scaler else 1.0)
        return ctx.optimize(work, "params", ctx.grad(work, "params", batch, loss), batch)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Send the slice and which classes the client has."""
        trained = tree.drop({**work["params"], **work["buffers"]}, ctx.private_names)
        if not trained:
            return {slot: leaves for slot, leaves in work.items() if slot not in (SLICE, CLASSES)}
        return {**work, SLICE: trained, **({CLASSES: {"held": ctx.class_counts > 0}} if self.mask else {})}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """To each client its slice; the whole model to all, where that predicts."""
        sent = super().download(ctx, server, ids).shared
        if self.evaluate == "global":
            return Download(sent)
        return Download({}, {i: self.cut_model(ctx.task, self.variant(i), sent) for i in ids})

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """A slice in the shape of the whole model, with a mask; of the output rows only those of classes it has."""
        whole, head = {**server["params"], **server["buffers"]}, frozenset(ctx.task.head_unit.params)
        classes = upload.slots.get(CLASSES, {}).get("held")
        padded = {n: pad(leaf, whole[n]) for n, leaf in upload.slots[SLICE].items()}
        masks = {n: by_class(mask, classes) if n in head else mask for n, (_, mask) in padded.items()}
        return Upload({**upload.slots, SLICE: {n: leaf for n, (leaf, _) in padded.items()}}, {SLICE: masks})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """Each coordinate's mean over those who hold it; a class's row over those who have the class."""
        after = sums[SLICE].mean({**server["params"], **server["buffers"]})
        return {**server, **{slot: tree.pick(after, server[slot]) for slot in ("params", "buffers")}}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's slice of the newest model, scaled as in training, or all of it with what the client keeps
        private over it; and the classes that it has, where it predicts no others."""
        held = {CLASSES: {"held": self.held_classes(ctx)}} if self.mask and len(ctx.class_counts) else {}
        if self.evaluate == "own" or just_trained(work):
            return {**self.scale_model(ctx, self.cut_model(ctx.task, ctx.variant, work)), **held}
        whole = {
            slot: {n: paste(work[slot][n], leaf) for n, leaf in leaves.items()} for slot, leaves in ctx.initial.items()
        }
        return {**whole, **held}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The outputs, zeros for absent classes."""
        outputs = super().predict(ctx, model, x)
        return self.mask_outputs(outputs, model[CLASSES]["held"]) if CLASSES in model else outputs

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step on the masked loss of the model that predicts, as it is."""
        return ctx.apply(
            model, "params", ctx.grad(model, "params", batch, self.loss(ctx, model["buffers"], batch, 1.0))
        )

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The client's width."""
        return {"width": torch.tensor(float(ctx.variant))}


def scale_hidden(task: Task, params: Tree, width: float) -> Tree:
    """The scaler: weights and biases of hidden layers divided by the width."""
    hidden = hidden_params(task) if width != 1 else frozenset[str]()
    return {n: leaf / width if n in hidden else leaf for n, leaf in params.items()}


def by_class(mask: Tensor, classes: Tensor | None) -> Tensor:
    """A mask of output rows without those of classes that the client does not have."""
    if classes is None or len(classes) != len(mask):
        return mask
    return mask & classes.reshape(-1, *[1] * (mask.ndim - 1))


def class_axis_of(outputs: Tensor, classes: int) -> int | None:
    """The axis that runs over classes: 1, or the last; None where there is none, as for numbers or a single logit."""
    likely = (axis for axis in (1, outputs.ndim - 1) if 0 < axis < outputs.ndim)
    return next((axis for axis in likely if outputs.shape[axis] == classes), None)
