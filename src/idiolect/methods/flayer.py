"""FLAYER: own and global head mixed by accuracy, a learning rate per layer, and an upload of what moved most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import analysis
from ..contract import (
    About,
    Batch,
    ClientContext,
    ComposeError,
    Grad,
    Method,
    ModelError,
    Needs,
    OptionError,
    Phase,
    RoundContext,
    Slot,
    Slots,
    Task,
    Tree,
    Wrapper,
    default_inner,
    mask_of,
    option,
    private,
    register,
    scratch,
    tree,
    zero,
)
from ..contract.phase import Step
from ..task.optimizers import Optimizer

HEAD, SCORE = "flayer.head", "flayer.score"
OWN, ACCURACY, RATES, SENT, TALLY = "flayer.own", "flayer.accuracy", "flayer.rates", "flayer.sent", "flayer.tally"


@register("flayer")
@dataclass(frozen=True)
class FLAYER(Wrapper):
    r"""FLAYER (Chen et al., IJCAI 2025) does three things to the layers i = 1 ... L of the federated model.

    `head_mixing`: the last s layers start from the client's own trained ones, as far as these were accurate (eq. 2),

    .. math:: \tilde\theta_k = A_k \theta_k + (1 - A_k) \theta_g,

    where A_k is the accuracy on the client's own training data, 0 before it first trains. The same mixture is the view
    of every client. `layer_rates`: each layer has its own rate (eq. 4), set by its first gradient of every epoch,

    .. math:: \eta_i = \eta \left(1 + \frac{i}{L} \ln\left(1 + \frac{1}{\|g_i\|_2}\right)\right).

    `masking`: of each layer only the share UP_i that moved most is sent (eq. 5 to 9); the server averages every
    coordinate over those who sent it, and one that nobody sent keeps its value,

    .. math:: UP_i = \min(\max(i / L, low), high), \quad UP_L = 1, \quad
        m_j = 1\bigl[|\hat\theta_j - \tilde\theta_j| \text{ among the largest } UP_i \text{ of layer } i\bigr].

    Hand-worked: with A = 0.75, own head 4 and global head 8 training starts at 0.75 * 4 + 0.25 * 8 = 5. In layer 1 of
    L = 2 a gradient of norm 1 makes the rate 1 + ln(2) / 2 = 1.3466 times the run's. Layer 1 sends half of its
    coordinates: if two of them move by 0.1 and -0.3, only the second is sent.

    A normalisation has the depth and the share of the layer before it, but a gradient norm and a mask of its own. What
    the inner method keeps private is neither mixed nor sent, and has the run's rate unless `private_rates` is set.
    The preset `ref` follows the authors' published program where that is sane. That program also takes A_k from test
    data and masks convolutions kernel by kernel and dense layers not at all, which is not repeated here.
    """

    about = About(
        "Own and global head mixed by accuracy, a rate per layer, only what moved most is sent",
        paper="chen2025flayer",
        kind="wrapper",
        reveals="of each layer the coordinates that moved most (the last layer whole), and so also which these are",
        stays=(
            "the accuracy by which own and global head are mixed; statistics of normalisation, unless norm_stats "
            "says otherwise"
        ),
        caution="the trained head is sent: it is averaged, too",
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"acc_source": "train", "private_rates": True},
        "ref": {
            "acc_source": "train",
            "private_rates": True,
            "high": 0.9,
            "head_epochs": 1,
            "zero_based": True,
            "last_rate": 0.2,
        },
    }
    identities: ClassVar[Mapping[str, str]] = {
        "flayer(fedavg, head_mixing=false, layer_rates=false, masking=false)": "fedavg",
        "flayer(fedavg, layers=0, low=1, layer_rates=false)": "fedavg",
    }

    inner: Method = field(default_factory=default_inner)
    layers: int = option(1, min=0, help="how many of the last layers mix own and global values (s)")
    head_mixing: bool = option(True, help="start the head from own and global values, weighed by accuracy")
    layer_rates: bool = option(True, help="give each layer its own learning rate")
    masking: bool = option(True, help="send only what moved most of each layer")
    low: float = option(0.1, above=0.0, max=1.0, help="least share of a layer that is sent")
    high: float = option(1.0, above=0.0, max=1.0, help="largest share of a layer that is sent; the last is sent whole")
    acc_source: str = option(
        "running",
        choices=("running", "train", "holdout"),
        help="accuracy in the last pass of training, or of the trained model on its training data or a part set aside",
    )
    holdout_share: float = option(
        0.2, above=0.0, max=0.5, help="share of the training data that acc_source=holdout uses"
    )
    head_epochs: int = option(0, min=0, help="epochs of the head alone after every mixing, also before predicting")
    lr_floor: float = option(1e-8, above=0.0, help="smaller gradient norms count as this")
    lr_max_mult: float | None = option(None, min=1.0, help="largest multiple of the run's rate; none is no limit")
    per_batch: bool = option(False, help="set the rates anew for every batch instead of every epoch")
    zero_based: bool = option(
        False, help="count depth as (i - 1) / (L - 1), so that the first layer keeps the run's rate"
    )
    last_rate: float | None = option(None, above=0.0, help="the last layer's fixed multiple of the run's rate")
    private_rates: bool = option(False, help="give layers that the inner method keeps private their own rate too")
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
    def needs(self) -> Needs:  # type: ignore[override]
        """Local statistics of normalisation, and the share of the data that the accuracy is measured on."""
        inner = self.inner.needs
        own = self.holdout_share if self.mixes and self.acc_source == "holdout" else 0.0
        return replace(inner, norm_stats="local", holdout=inner.holdout or own)

    @property
    def watches_steps(self) -> bool:  # type: ignore[override]
        """Whether layers have their own learning rates, or answers are counted while training."""
        return self.layer_rates or (self.mixes and self.acc_source == "running") or self.inner.watches_steps

    @property
    def slots(self) -> Mapping[str, Slot]:
        """A client keeps its own head and its accuracy and, for the records, learning rates and shares."""
        inner = self.inner.slots
        missing: Any = {"uploaders": "keep", "all": "before", "zeros": "zero"}[self.denominator]
        own = {
            OWN: private(self.first_head),
            ACCURACY: private(zero("share")),
            TALLY: scratch(zero("right", "samples")),
        }
        return {
            **inner,
            "params": replace(inner["params"], missing=missing),
            **(own if self.mixes else {}),
            **({RATES: private(unit_ones)} if self.layer_rates else {}),
            **({SENT: private(unit_zeros)} if self.masking else {}),
        }

    def first_head(self, ctx: RoundContext) -> Tree:
        """The initial head."""
        return tree.pick(ctx.initial["params"], self.head(ctx))

    def check(self, task: Task) -> None:
        """The head has to exist, and accuracy has to mean something."""
        self.inner.check(task)
        task.head(self.layers)
        if self.mixes and task.classes is None:
            raise ModelError(
                "flayer weighs own and global head by accuracy, which a task without classes does not have; "
                "give head_mixing=false to use its rates and masks alone"
            )

    # -- head (eq. 2) ------------------------------------------------------------------------------

    def head(self, ctx: RoundContext) -> frozenset[str]:
        """What is mixed: the last layers, unless the inner method keeps them private."""
        return ctx.task.head(self.layers) - ctx.private_names if self.mixes else frozenset()

    def mix_head(self, work: Slots) -> Slots:
        """What was received, with the client's own share in its head."""
        if not self.mixes:
            return work
        head = tree.mix(tree.pick(work[OWN], work["params"]), work["params"], work[ACCURACY]["share"])
        return {**work, "params": {**work["params"], **head}}

    def count_right(self, ctx: ClientContext, work: Slots, outputs: Tensor, batch: Batch) -> Slots:
        """Count right answers; every epoch counts anew, so that the last one stays."""
        found = {"right": (ctx.task.correct(outputs, batch.y) * batch.weight).sum(), "samples": batch.weight.sum()}
        return {**work, TALLY: tree.add(found, work[TALLY]) if ctx.step else found}

    def head_phases(self, ctx: ClientContext, step: Step) -> Sequence[Phase]:
        """Epochs of the mixed head alone."""
        part = self.head(ctx)
        return (Phase(step, HEAD, part=part, epochs=self.head_epochs),) if part and self.head_epochs else ()

    # -- rates (eq. 4) -----------------------------------------------------------------------------

    def with_rates(self, ctx: ClientContext) -> ClientContext:
        """A context whose optimiser gives each layer its learning rate."""
        if not self.layer_rates:
            return ctx
        optimizer = LayerWise(base=ctx.training.optimizer, method=self, ctx=ctx)
        return replace(ctx, training=replace(ctx.training, optimizer=optimizer))

    def rate_state(self, work: Slots) -> Slots:
        """The learning rates as state of the optimiser of `params`."""
        return {f"params:{RATES}": work[RATES]} if self.layer_rates else {}

    # -- masks (eq. 5 to 9) ------------------------------------------------------------------------

    def masks(self, ctx: ClientContext, work: Slots, sent: Tree) -> Tree:
        """Of what is sent, the coordinates that moved most; a layer that did not move at all is sent whole."""
        change = tree.sub(tree.pick(work["params"], sent), work["flayer.start"])
        numbers = layer_numbers(ctx.task)
        shares = (*analysis.upload_fractions(max(numbers.values()), self.low, self.high)[:-1], 1.0)
        found: Tree = {}
        for unit in ctx.task.units:
            if names := [name for name in unit.params if name in change]:
                mask = analysis.top_fraction_mask(tree.flatten(change, names), shares[numbers[unit.name] - 1])
                pieces = torch.split(mask, [change[name].numel() for name in names])
                found |= {n: piece.reshape(change[n].shape) for n, piece in zip(names, pieces, strict=True)}
        return found

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
        work = self.inner.prepare(ctx, self.mix_head(work))
        start = {"flayer.start": work["params"]} if self.masking else {}
        return {**work, **self.rate_state(work), **start}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's, and before and after them the head's and the pass that measures accuracy."""
        measured = self.mixes and self.acc_source != "running"
        score = (Phase(self.score, SCORE, slots=(), epochs=1, data=self.acc_source),) if measured else ()
        return (*self.head_phases(ctx, self.step), *self.inner.phases(ctx), *score)

    def score(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """Count the trained model's right answers."""
        return self.count_right(ctx, work, ctx.task.forward(work["params"], work["buffers"], batch.x).outputs, batch)

    def optimizer_step(self, ctx: ClientContext, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float) -> Slots:
        """The inner method's, with the layers' learning rates; its forward pass gives the running accuracy."""
        if slot != "params":
            return self.inner.optimizer_step(ctx, work, slot, grad, batch, lr)
        if self.mixes and self.acc_source == "running":
            work = self.count_right(ctx, work, grad.scored.outputs, batch)
        return self.inner.optimizer_step(self.with_rates(ctx), work, slot, grad, batch, lr)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained head and its accuracy; mask what is sent, never the client's own model."""
        after = self.inner.finish(ctx, work)
        if self.layer_rates:
            after = {**after, RATES: work[f"params:{RATES}"]}
        if self.mixes:
            right, samples = work[TALLY]["right"], work[TALLY]["samples"]
            share = torch.where(samples > 0, right / samples.clamp_min(1), work[ACCURACY]["share"])
            after = {**after, OWN: tree.pick(work["params"], work[OWN]), ACCURACY: {"share": share}}
        if self.masking:
            inner = after.get(mask_of("params"), {})
            masks = self.masks(ctx, work, tree.drop(after.get("params", {}), ctx.private_names))
            masks = {n: mask & inner[n] if n in inner else mask for n, mask in masks.items()}
            after = {**after, SENT: self.sent_shares(ctx, masks)}
            after = {**after, mask_of("params"): {**inner, **masks}} if masks else after
        return after

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """Eq. 2 from the client's own head and the newest global model; with learning rates, should it be trained on.
        Right after training both are the trained head."""
        mixed = work if ctx.just_trained else self.mix_head(work)
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


def unit_ones(ctx: RoundContext) -> Tree:
    """A one for every unit."""
    one = torch.ones((), device=ctx.training.device)
    return {unit.name: one for unit in ctx.task.units if unit.params}


def unit_zeros(ctx: RoundContext) -> Tree:
    """A zero for every unit."""
    return tree.map(torch.zeros_like, unit_ones(ctx))


@dataclass(frozen=True, kw_only=True)
class LayerWise(Optimizer):
    """The run's optimiser with a rate per unit, which is part of its state."""

    base: Optimizer
    method: FLAYER
    ctx: ClientContext

    def step(
        self, params: Tree, grads: Tree, state: Slots, lr: float, rates: Mapping[str, Tensor] | None = None
    ) -> tuple[Tree, Slots]:
        """A step with the units' rates, measured at the first batch of an epoch; slots but `params` have none."""
        if RATES not in state:
            return self.base.step(params, grads, state, lr, rates)
        rated = grads if self.method.private_rates else tree.drop(grads, self.ctx.private_names)
        units = {unit.name: each for unit in self.ctx.task.units if (each := tree.pick(rated, unit.params))}
        held = state[RATES]
        if units and (self.ctx.step == 0 or self.method.per_batch):
            held = {**held, **self.measured(units)}
        given = rates or {}
        own = {n: held[unit] * given.get(n, 1.0) for unit, each in units.items() for n in each}
        rest = {key: each for key, each in state.items() if key != RATES}
        moved, rest = self.base.step(params, grads, rest, lr, {**given, **own})
        return moved, {**rest, RATES: held}

    def measured(self, grads: Mapping[str, Tree]) -> Tree:
        """Eq. 4 for the units that have gradients."""
        method, numbers = self.method, layer_numbers(self.ctx.task)
        last, first = max(numbers.values()), int(method.zero_based)
        depth = [(numbers[unit] - first) / max(1, last - first) for unit in grads]
        norms = [tree.norm(each).to(self.ctx.samples.dtype) for each in grads.values()]
        found = analysis.layer_rates(1.0, norms, method.lr_floor, method.lr_max_mult, depth)
        fixed = method.last_rate
        return {
            unit: rate if fixed is None or numbers[unit] < last else torch.full_like(rate, fixed)
            for unit, rate in zip(grads, found, strict=True)
        }


def layer_numbers(task: Task) -> dict[str, int]:
    """The layer i = 1 ... L of each unit; a normalisation belongs to the layer before it, or else to the first.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    >>> layer_numbers(Task(model, (torch.zeros(2, 2), torch.tensor([0, 1])), classes=2))
    {'0': 1, '1': 1, '2': 2}
    """
    numbers, layer = {}, 0
    for unit in task.units:
        if unit.params:
            layer += not unit.is_norm
            numbers[unit.name] = max(1, layer)
    return numbers
