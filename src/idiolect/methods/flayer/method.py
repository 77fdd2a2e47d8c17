"""FLAYER: own and global head mixed by accuracy, a learning rate per layer, and an upload of what moved most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...contract import About, Grad, Method, Needs, Phase, Slots, Tree, Wrapper, default_inner, option, register, tree
from ...contract.context import ClientContext, OptimizerStep, RoundContext
from ...contract.phase import Step
from ...contract.slots import Slot, just_trained, mask_of, private, scratch, zero
from ...core.errors import ComposeError, ModelError, OptionError
from ...task.task import Batch, Task
from .masks import kernel_masks, layer_masks
from .rates import RATES, LayerWise, RateRule, unit_ones, unit_zeros

HEAD, SCORE = "flayer.head", "flayer.score"
OWN, ACCURACY, SENT, TALLY = "flayer.own", "flayer.accuracy", "flayer.sent", "flayer.tally"
SCORED = "flayer.scored."
OWN_MODEL = ("client", "model")
AUTHORS = {
    "high": 0.9,
    "head_epochs": 1,
    "lr_max_mult": None,
    "zero_based": True,
    "first_rate": 1.0,
    "last_rate": 0.2,
    "masks": "kernel",
}
"""The options of the authors' program."""


@register("flayer")
@dataclass(frozen=True)
class FLAYER(Wrapper):
    r"""FLAYER (Chen et al., IJCAI 2025) does three things to the layers i = 1 ... L of the federated model.

    `head_mixing`: the last s layers start from the client's own trained ones, as far as these were accurate (eq. 2),

    .. math:: \tilde\theta_k = A_k \theta_k + (1 - A_k) \theta_g,

    where A_k is the accuracy on the client's own training data, 0 before it first trains. Every client predicts
    with the same mixture. `layer_rates`: each layer has its own learning rate (eq. 4), set by its first gradient of
    every epoch,

    .. math:: \eta_i = \eta \left(1 + \frac{i}{L} \ln\left(1 + \frac{1}{\|g_i\|_2}\right)\right).

    `masking`: of each layer only the share UP_i that moved most is sent (eq. 5 to 9); the server averages every
    coordinate over those who sent it, and one that nobody sent keeps its value,

    .. math:: UP_i = \min(\max(i / L, low), high), \quad UP_L = 1, \quad
        m_j = 1\bigl[|\hat\theta_j - \tilde\theta_j| \text{ among the largest } UP_i \text{ of layer } i\bigr].

    Hand-worked: with A = 0.75, own head 4 and global head 8 training starts at 0.75 * 4 + 0.25 * 8 = 5. In layer 1 of
    L = 2 a gradient of norm 1 makes the learning rate 1 + ln(2) / 2 = 1.3466 times the run's. Layer 1 sends half of its
    coordinates: if two of them move by 0.1 and -0.3, only the second is sent.

    The formula has no upper end, and a layer with a vanishing gradient would get 19 times the run's learning rate:
    multiples are cut at `lr_max_mult`. A normalisation has the depth and the share of the layer before it, but a
    gradient norm and a mask of its own. What the inner method keeps private is neither mixed nor sent, but has such
    learning rates, too. Where the inner method keeps a model of the client's own beside the shared one (Ditto, FedAMP),
    both are trained with these rates, and the own one's accuracy counts. The shared one's head is mixed; with
    `mixed=own` the own one's is, with the shared one's.

    The preset `paper` sets no limit. `ref` follows the authors' published program (`ref_cnn` for its CNN), but for the
    test data that A_k is taken from there. `resnet` has the paper's two head layers of ResNets.
    Run it: ``idiolect run flayer``.
    """

    about = About(
        "Mixed heads, a learning rate per layer, sparse uploads",
        family="mixtures of models",
        paper="chen2025flayer",
        kind="wrapper",
        reveals="of each layer the coordinates that moved most (the last layer whole), and so also which these are",
        stays=(
            "the accuracy by which own and global head are mixed; statistics of normalisation, unless norm_stats "
            "says otherwise"
        ),
        caution="the trained head is sent: it is averaged, too",
    )
    presets = {
        "paper": {"lr_max_mult": None},
        "resnet": {"layers": 2},
        "ref": AUTHORS,
        "ref_cnn": {**AUTHORS, "rate_factor": 20.0},
    }
    identities = {
        "flayer(fedavg, head_mixing=false, layer_rates=false, masking=false)": "fedavg",
        "flayer(fedavg, layers=0, low=1, layer_rates=false)": "fedavg",
    }

    inner: Method = field(default_factory=default_inner)
    layers: int = option(1, min=0, tuned="1:3", help="how many of the last layers mix own and global values (s)")
    head_mixing: bool = option(True, help="start the head from own and global values, weighed by accuracy")
    mixed: str = option(
        "shared", choices=("shared", "own"), help="whose head is mixed where a client has a model of its own, too"
    )
    layer_rates: bool = option(True, help="give each layer its own learning rate")
    masking: bool = option(True, help="send only what moved most of each layer")
    low: float = option(0.1, above=0.0, max=1.0, tuned="0.05:1", help="least share of a layer that is sent")
    high: float = option(1.0, above=0.0, max=1.0, help="largest share of a layer that is sent; the last is sent whole")
    acc_source: str = option(
        "train",
        choices=("train", "holdout", "running"),
        help="accuracy of the trained model on its training data or a part set aside, or while it is trained",
    )
    holdout_share: float = option(
        0.2, above=0.0, max=0.5, help="share of the training data that acc_source=holdout uses"
    )
    head_epochs: int = option(
        0, min=0, help="epochs of the shared head alone before every training and before predicting"
    )
    lr_floor: float = option(1e-8, above=0.0, help="smaller gradient norms count as this")
    lr_max_mult: float | None = option(
        5.0, min=1.0, tuned="1:20:log", help="largest multiple of the run's learning rate; none is no limit"
    )
    per_batch: bool = option(False, help="set the learning rates anew for every batch instead of every epoch")
    zero_based: bool = option(
        False, help="count depth as (i - 1) / (L - 1), so that the first layer keeps the run's learning rate"
    )
    rate_factor: float = option(1.0, above=0.0, help="factor on every layer's learning rate; the authors' CNN has 20")
    first_rate: float | None = option(None, above=0.0, help="the first layer's fixed multiple of the learning rate")
    last_rate: float | None = option(None, above=0.0, help="the last layer's fixed multiple of the run's learning rate")
    private_rates: bool = option(
        True, help="give layers that the inner method keeps private their own learning rate too"
    )
    masks: str = option(
        "layer",
        choices=("layer", "kernel"),
        help="rank the moves of a whole layer, or those inside of every kernel (then dense weights are sent whole)",
    )
    denominator: str = option(
        "uploaders",
        choices=("uploaders", "all", "zeros"),
        help="what was not sent: left out of the mean, or counted as the global value, or as zero",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise OptionError(f"flayer: low={self.low} and high={self.high} are not allowed; low must not exceed high")
        inside = self.inner
        while isinstance(inside, Wrapper):
            if isinstance(inside, FLAYER):
                raise ComposeError("flayer cannot wrap flayer: both would act on the same layers; use one")
            inside = inside.inner

    @property
    def mixes(self) -> bool:
        """Whether there is a head to mix, and so an accuracy to know."""
        return self.head_mixing and self.layers > 0

    @property
    def own_model(self) -> str | None:
        """The slot with a model of the client's own beside the shared one, if the inner method has one."""
        return next((n for n, s in self.inner.slots.items() if n != "params" and (s.home, s.holds) == OWN_MODEL), None)

    @property
    def mixed_model(self) -> str:
        """The slot with the model whose head is mixed."""
        return (self.own_model if self.mixed == "own" else None) or "params"

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Local statistics of normalisation, and the share of the data that the accuracy is measured on."""
        inner = self.inner.needs
        holdout = self.holdout_share if self.mixes and self.acc_source == "holdout" else 0.0
        return replace(inner, norm_stats="local", holdout=inner.holdout or holdout)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """A client keeps its own head and its accuracy and, for the records, learning rates and shares."""
        inner = self.inner.slots
        missing: Any = {"uploaders": "keep", "all": "before", "zeros": "zero"}[self.denominator]
        head_slots = {ACCURACY: private(zero("share")), TALLY: scratch(zero("right", "samples"))}
        if self.mixed_model == "params":
            head_slots[OWN] = private(self.first_head)
        return {
            **inner,
            "params": replace(inner["params"], missing=missing),
            **(head_slots if self.mixes else {}),
            **({RATES: private(unit_ones)} if self.layer_rates else {}),
            **({SENT: private(unit_zeros)} if self.masking else {}),
        }

    def first_head(self, ctx: RoundContext) -> Tree:
        """The initial head."""
        return tree.pick(ctx.initial["params"], self.shared_head(ctx))

    def check(self, task: Task) -> None:
        """The head has to exist, and accuracy has to mean something."""
        self.inner.check(task)
        task.head(self.layers)
        if self.mixes and task.classes is None:
            raise ModelError(
                "flayer weighs own and global head by accuracy, which a task without classes does not have; "
                "give head_mixing=false to use its learning rates and masks alone"
            )

    # -- head (eq. 2) ------------------------------------------------------------------------------

    def shared_head(self, ctx: RoundContext) -> frozenset[str]:
        """The last layers, but for what the inner method keeps private."""
        return ctx.task.head(self.layers) - ctx.private_names

    def mix_head(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's own share in the head of the model that it trains and predicts with."""
        if not self.mixes:
            return work
        slot = self.mixed_model
        own = work[OWN] if slot == "params" else tree.pick(work[slot], self.shared_head(ctx))
        head = tree.mix(tree.pick(own, work["params"]), work["params"], work[ACCURACY]["share"])
        return {**work, slot: {**work[slot], **head}}

    def count_right(self, ctx: ClientContext, work: Slots, outputs: Tensor, batch: Batch) -> Slots:
        """Count right answers; every epoch counts anew, so that the last one stays."""
        counts = {"right": (ctx.task.correct(outputs, batch.y) * batch.weight).sum(), "samples": batch.weight.sum()}
        return {**work, TALLY: tree.add(counts, work[TALLY]) if ctx.step else counts}

    def head_phases(self, ctx: ClientContext, step: Step) -> Sequence[Phase]:
        """Epochs of the head alone."""
        part = self.shared_head(ctx)
        return (Phase(step, HEAD, part=part, epochs=self.head_epochs),) if part and self.head_epochs else ()

    # -- rates (eq. 4) -----------------------------------------------------------------------------

    @property
    def rate_rule(self) -> RateRule:
        """How eq. 4 is read, from the options."""
        limits = (self.lr_floor, self.lr_max_mult, self.per_batch, self.zero_based)
        return RateRule(*limits, self.rate_factor, self.first_rate, self.last_rate, self.private_rates)

    def with_rates(self, ctx: ClientContext) -> ClientContext:
        """A context whose optimiser gives each layer its learning rate."""
        if not self.layer_rates:
            return ctx
        optimizer = LayerWise(base=ctx.training.optimizer, rule=self.rate_rule, ctx=ctx)
        return replace(ctx, training=replace(ctx.training, optimizer=optimizer))

    def rate_state(self, work: Slots) -> Slots:
        """The learning rates as state of the optimiser of each model that may be trained."""
        return {f"{slot}:{RATES}": work[RATES] for slot in self.rated_slots} if self.layer_rates else {}

    @property
    def rated_slots(self) -> tuple[str, ...]:
        """The slots with a model that layers' learning rates hold for."""
        return ("params",) if self.own_model is None else ("params", self.own_model)

    # -- masks (eq. 5 to 9) ------------------------------------------------------------------------

    def find_masks(self, ctx: ClientContext, work: Slots, sent: Tree) -> Tree:
        """Of what is sent, the coordinates that moved most; a layer that did not move at all is sent whole."""
        change = tree.sub(tree.pick(work["params"], sent), work["flayer.start"])
        if self.masks == "kernel":
            return kernel_masks(change, list(ctx.initial["params"]), self.low, self.high)
        return layer_masks(change, ctx.task, self.low, self.high)

    def sent_shares(self, ctx: ClientContext, masks: Tree) -> Tree:
        """Of each unit, the share of its coordinates that was sent."""
        params, shares = ctx.initial["params"], {}
        for unit in ctx.task.units:
            if unit.params:
                sent = [masks[n].sum() if n in masks else torch.zeros_like(ctx.samples) for n in unit.params]
                shares[unit.name] = torch.stack(sent).sum() / sum(params[n].numel() for n in unit.params)
        return shares

    # -- the client's round ------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Start from the mixed head, and remember where that was."""
        work = self.inner.prepare(ctx, self.mix_head(ctx, work))
        start = {"flayer.start": work["params"]} if self.masking else {}
        return {**work, **self.rate_state(work), **start}

    def counts_steps_of(self, ctx: ClientContext) -> str:
        """The slot that is trained into the model that predicts."""
        own = self.own_model
        return own if own is not None and any(own in phase.slots for phase in self.inner.phases(ctx)) else "params"

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's, and before and after them the head's and the pass that measures accuracy."""
        measured = self.mixes and self.acc_source != "running"
        look = Phase(self.score, SCORE, slots=(), before=self.trained_model, epochs=1, data=self.acc_source)
        score = (look,) if measured else ()
        return (*self.head_phases(ctx, self.step), *self.inner.phases(ctx), *score)

    def trained_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model that predicts, as it is right after training."""
        trained = replace(ctx, newcomer=False)
        model = self.inner.personal_model(trained, {**work, **self.inner.finish(ctx, work)})
        return {**work, **{SCORED + slot: leaves for slot, leaves in model.items()}}

    def score(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Count the trained model's right answers."""
        model = {name.removeprefix(SCORED): work[name] for name in work if name.startswith(SCORED)}
        trained = replace(ctx, newcomer=False)
        return self.count_right(ctx, work, self.inner.predict(trained, model, batch.x), batch)

    @property
    def optimizer_step(self) -> OptimizerStep | None:
        """One of FLAYER's where layers have their own learning rates, or answers are counted while training."""
        acts = self.layer_rates or (self.mixes and self.acc_source == "running")
        return self.rated_step if acts else self.inner.optimizer_step

    def rated_step(self, ctx: ClientContext, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float) -> Slots:
        """The inner method's, with the layers' learning rates; its forward pass gives the running accuracy."""
        if slot not in self.rated_slots:
            return ctx.optimize(work, slot, grad, batch, lr, through=self.inner)
        if self.mixes and self.acc_source == "running" and slot == self.counts_steps_of(ctx):
            work = self.count_right(ctx, work, grad.scored.outputs, batch)
        return self.with_rates(ctx).optimize(work, slot, grad, batch, lr, through=self.inner)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained head and its accuracy; mask what is sent, never the client's own model."""
        after = self.inner.finish(ctx, work)
        if self.layer_rates:
            after = {**after, RATES: work[f"params:{RATES}"]}
        if self.mixes:
            right, samples = work[TALLY]["right"], work[TALLY]["samples"]
            share = torch.where(samples > 0, right / samples.clamp_min(1), work[ACCURACY]["share"])
            own = {OWN: tree.pick(work["params"], work[OWN])} if OWN in work else {}
            after = {**after, **own, ACCURACY: {"share": share}}
        if self.masking:
            inner = after.get(mask_of("params"), {})
            masks = self.find_masks(ctx, work, tree.drop(after.get("params", {}), ctx.private_names))
            masks = {n: mask & inner[n] if n in inner else mask for n, mask in masks.items()}
            after = {**after, SENT: self.sent_shares(ctx, masks)}
            after = {**after, mask_of("params"): {**inner, **masks}} if masks else after
        return after

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """Eq. 2 from the client's own head and the newest global model; with learning rates, should it be trained on.
        Right after training both are the trained head."""
        mixed = work if just_trained(work) else self.mix_head(ctx, work)
        return {**self.inner.personal_model(ctx, mixed), **self.rate_state(work)}

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """The head's own epochs follow every mixing; then the inner method's."""
        return (*self.head_phases(ctx, self.adapt_head), *self.inner.adapt(ctx))

    def adapt_head(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of the head."""
        return self.with_rates(ctx).apply(model, "params", ctx.grad(model, "params", batch))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's, with the layers' learning rates."""
        return tuple(replace(phase, step=self.onboard_step) for phase in self.inner.onboard(ctx))

    def onboard_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The inner method's step of the phase."""
        inner = next(phase for phase in self.inner.onboard(ctx) if phase.name == ctx.phase.name)
        return inner.step(self.with_rates(ctx), model, batch)

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The accuracy A_k, and of each unit the last learning rate's multiple and the share that was sent."""
        named = {"rate": client.get(RATES, {}), "sent": client.get(SENT, {})}
        units = {f"{what}/{unit}": leaf for what, values in named.items() for unit, leaf in values.items()}
        accuracy = {"own_accuracy": client[ACCURACY]["share"]} if self.mixes else {}
        return {**self.inner.client_records(ctx, client), **accuracy, **units}
