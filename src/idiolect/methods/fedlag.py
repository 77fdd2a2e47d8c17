"""FedLAG: the server finds the layers that clients pull apart, and these become personal."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..analysis import cosine_matrix, count_conflicts, rank_units, sketch
from ..contract import (
    About,
    Batch,
    ClientContext,
    ComposeError,
    Grad,
    Method,
    ModelError,
    OptionError,
    Phase,
    Refuses,
    RoundContext,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Task,
    Tree,
    Upload,
    Wrapper,
    default_inner,
    mask_of,
    nothing,
    option,
    private,
    register,
    tree,
)

OWN, TRAINED, START, GRAD, UPDATE = "fedlag.own", "fedlag.trained", "fedlag.start", "fedlag.grad", "fedlag.update"
CONFLICTS, SCORE, PERSONAL = "fedlag.conflicts", "fedlag.score", "fedlag.personal"


class LayerUnit(NamedTuple):
    """What is scored and becomes personal together: parameters, and all names that go along with them."""

    params: tuple[str, ...]
    along: tuple[str, ...]


@register("fedlag")
@dataclass(frozen=True)
class FedLAG(Wrapper):
    r"""FedLAG (Nguyen et al., 2024): layers with the most conflicting updates are not overwritten by the average.

    With the update :math:`h_{l,u}` of layer l by client u in a round (eq. 2), the conflict score (eq. 3) is

    .. math:: GC_\xi(l) = \tfrac{1}{2} \sum_u \sum_{v \neq u} 1[\cos(h_{l,u}, h_{l,v}) < \xi].

    The k layers with the highest scores above zero are personal, :math:`\mathbb{L}_p`. The server averages all
    layers; a client starts its training and predicts with (eqs. 4 and 5)

    .. math:: \theta_{l,u} = \text{its own last value if } l \in \mathbb{L}_p, \text{ else the average.}

    A client that has never trained uses the average everywhere. Normalisation layers, and layers that the inner
    method keeps private, are never chosen.

    The clients upload the model. The server works out their updates from it, but for tensors of which it cannot:
    their start is not what it sent (personal layers, a mixed head), or the upload is not the trained value or
    hides coordinates of it. Of those, and of all under a further wrapper around FedLAG that acts on the model, the
    clients also send the update, before any mask.

    Hand-worked: three clients of equal size move layer A from 0 to 1, 1, -1 and layer B from 0 to 1, 2, 3. In A the
    third client conflicts with the first and with the second, so GC(A) = 2 and GC(B) = 0, and with k = 1 only A is
    personal. The averages are A = 1/3 and B = 2, and the clients hold (1, 2), (1, 2) and (-1, 2).

    The preset `ref` scores as the authors' published program does. That program never loads the averages after the
    warm-up, which is not repeated here.
    """

    about = About(
        "Layers in which clients' updates conflict become personal",
        paper="nguyen2024fedlag",
        kind="wrapper",
        reveals=(
            "as the method inside, personal layers included; where the server cannot work out an update from "
            "that, the update too"
        ),
        caution="layers are personal in what they become, not in what is sent: the server has to compare them",
    )
    identities: ClassVar[dict[str, str]] = {"fedlag(fedavg, k=0)": "fedavg"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"xi": -0.1, "schedule": "dynamic", "signal": "update", "granularity": "module"},
        "ref": {
            "k": 2,
            "xi": 0.0,
            "schedule": "static",
            "signal": "last_grad",
            "granularity": "tensor",
            "tie": "first",
            "allow_zero": True,
        },
    }

    inner: Method = field(default_factory=default_inner)
    k: int | None = option(None, min=0, help="most personal layers; none is half of the eligible ones, 1 to 5")
    xi: float = option(-0.1, above=-1.0, max=0.0, help="cosine below which two clients conflict")
    warmup: int | None = option(
        None, min=0, help="rounds without personal layers; none is half of the rounds, at most 30"
    )
    schedule: str = option(
        "dynamic", choices=("dynamic", "static"), help="choose after every round, or once, by the sum of the scores"
    )
    signal: str = option(
        "update", choices=("update", "last_grad"), help="compare updates, or the gradients of the last batch"
    )
    granularity: str = option(
        "module", choices=("module", "tensor", "block"), help="a layer is a module, a tensor or a top-level block"
    )
    tie: Literal["last", "first"] = option(
        "last", choices=("last", "first"), help="which of two equal layers is chosen"
    )
    allow_zero: bool = option(False, help="choose k layers even if they have no conflict")
    attach_norm: str = option(
        "none", choices=("none", "preceding"), help="whether normalisation is personal with the layer before it"
    )
    sketch: int | None = option(
        None, min=16, help="compare updates folded to so many numbers per layer; none compares them exactly"
    )
    ema: float = option(0.0, min=0.0, below=1.0, help="share of the old score in a moving average; 0 is off")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema and self.schedule == "static":
            raise OptionError(
                f"fedlag: ema={self.ema} is not allowed with schedule=static, which sums the scores over rounds; "
                "leave ema at 0, or use schedule=dynamic"
            )
        inside = self.inner
        while isinstance(inside, Wrapper):
            if isinstance(inside, FedLAG):
                raise ComposeError("fedlag cannot wrap fedlag: both would decide about the same layers; use one")
            inside = inside.inner

    # -- layers ----------------------------------------------------------------------------------

    def units(self, ctx: RoundContext) -> dict[str, LayerUnit]:
        """The layers that may become personal, in the order of the network."""
        return self.divide(ctx.task, ctx.private_names)

    def divide(self, task: Task, kept: frozenset[str]) -> dict[str, LayerUnit]:
        """The model without normalisation and without what is `kept`, as layers of the chosen granularity."""
        found: dict[str, LayerUnit] = {}
        last = ""
        for unit in task.units:
            params = tuple(name for name in unit.params if name not in kept)
            rest = tuple(name for name in unit.buffers if name not in kept)
            if unit.is_norm:
                if last and self.attach_norm == "preceding":
                    found[last] = LayerUnit(found[last].params, found[last].along + params + rest)
                continue
            last = ""
            parts = [(name,) for name in params] if self.granularity == "tensor" else [params] if params else []
            # With single tensors, buffers and normalisation go with the first tensor of their module.
            for part in parts:
                key = {"module": unit.name, "tensor": part[0], "block": unit.name.partition(".")[0]}[self.granularity]
                before = found.get(key, LayerUnit((), ()))
                found[key] = LayerUnit(before.params + part, before.along + part + rest)
                last, rest = last or key, ()
        return found

    def count(self, eligible: int) -> int:
        """How many of the eligible layers may be personal."""
        return min(eligible, max(1, min(5, eligible // 2))) if self.k is None else self.k

    def check(self, task: Task) -> None:
        """Compare k with the model's layers."""
        self.inner.check(task)
        eligible = self.divide(task, self.inner.private_names(task))
        k, listing = self.count(len(eligible)), ", ".join(eligible)
        if not eligible and self.k != 0:
            raise ModelError(
                f"fedlag finds no layer to choose from: apart from normalisation, {self.inner.name} keeps all of the "
                f"model private; keep fewer layers private, or use {self.inner.name} alone"
            )
        if k > len(eligible):
            raise OptionError(
                f"fedlag: k={k} is not allowed; only {len(eligible)} layers may become personal ({listing}), so k "
                f"must lie in [0, {len(eligible)}]"
            )
        if k and k == len(eligible):
            warnings.warn(
                f"fedlag: with k={k} all layers that may become personal ({listing}) can be so at once, which is "
                "local training; choose a smaller k, or a model with more layers",
                stacklevel=2,
            )

    # -- slots -----------------------------------------------------------------------------------

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """As the inner method, and what the comparison of single updates rules out."""
        reason = "it compares the clients' updates layer by layer"
        return replace(self.inner.refuses, other_networks=reason, summing=reason)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The server also sees each client's model, and an update where it cannot work that out; a client remembers all
        that may become personal."""
        inner = self.inner.slots
        own = {OWN: private(self.first_own), TRAINED: private(never)} if self.k != 0 else {}
        return {
            **inner,
            "params": replace(inner["params"], up="each"),
            CONFLICTS: Slot("server", self.no_conflicts),
            SCORE: Slot("server", self.no_conflicts),
            PERSONAL: Slot("server", self.none_personal, down=self.k != 0),
            **own,
            UPDATE: Slot("round", nothing, up="each"),
        }

    def no_conflicts(self, ctx: RoundContext) -> Tree:
        """No layer has a conflict yet."""
        return numbers(ctx, dict.fromkeys(self.units(ctx), 0.0))

    def none_personal(self, ctx: RoundContext) -> Tree:
        """No layer is personal yet."""
        if self.k != 0 and self.warmup is not None and self.warmup >= ctx.rounds:
            warnings.warn(
                f"fedlag: the warm-up of {self.warmup} rounds does not end within the run's {ctx.rounds}, so no layer "
                "becomes personal; choose a shorter warm-up or more rounds",
                stacklevel=2,
            )
        return numbers(ctx, dict.fromkeys(self.units(ctx), False))

    def first_own(self, ctx: RoundContext) -> Tree:
        """No values of its own yet; their place is held by the initial ones."""
        return self.own(ctx, ctx.initial)

    def own(self, ctx: RoundContext, model: Slots) -> Tree:
        """What a client must remember of a model: all that may become personal."""
        names = {name for layer in self.units(ctx).values() for name in layer.along}
        return tree.pick({**model["params"], **model["buffers"]}, names)

    # -- client ----------------------------------------------------------------------------------

    @property
    def watches_steps(self) -> bool:  # type: ignore[override]
        """Whether gradients are compared, or the inner method watches."""
        return self.signal == "last_grad" or self.inner.watches_steps

    def overlay(self, ctx: ClientContext, work: Slots) -> Slots:
        """What was received, with the client's own values on personal layers (eqs. 4 and 5), if it has trained."""
        if PERSONAL not in work:
            return work
        own, personal, trained = work[OWN], work[PERSONAL], work[TRAINED]["before"]
        use = {name: personal[unit] & trained for unit, layer in self.units(ctx).items() for name in layer.along}
        model: Slots = {
            slot: {n: torch.where(use[n], own[n], leaf) if n in use else leaf for n, leaf in work[slot].items()}
            for slot in ("params", "buffers")
            if slot in work
        }
        return {**work, **model}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's start with personal layers, remembered with what the server knows of it."""
        received = work.get("params", {})
        work = self.inner.prepare(ctx, self.overlay(ctx, work))
        if ctx.round < 0:
            return work
        start = tree.pick(work["params"], [name for layer in self.units(ctx).values() for name in layer.params])
        if self.signal == "last_grad":
            return {**work, GRAD: tree.zeros_like(start)}
        known = {} if self.covered(ctx) else tree.pick(received, start)
        return {**work, START: start, "fedlag.received": known}

    def covered(self, ctx: ClientContext) -> bool:
        """Whether a wrapper around this one may change the model between here and the server."""
        outside = ctx.method
        while outside is not self and isinstance(outside, Wrapper):
            if outside.touches_model:
                return True
            outside = outside.inner
        return False

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's; one that changes `params` before their training (mixing, alignment) moves their start."""
        phases = list(self.inner.phases(ctx))
        first = first_training(phases)
        if first is not None and (first > 0 or phases[first].before is not None):
            phases[first] = replace(phases[first], before=self.start_here)
        return phases

    def start_here(self, ctx: ClientContext, work: Slots) -> Slots:
        """What the inner method does before the first phase that trains `params`; there the update starts."""
        phases = self.inner.phases(ctx)
        before = phases[first_training(phases) or 0].before
        work = work if before is None else before(ctx, work)
        return {**work, START: tree.pick(work["params"], work[START])} if START in work else work

    def optimizer_step(self, ctx: ClientContext, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float) -> Slots:
        """Keep the gradient of the model's last step, if gradients are compared."""
        work = self.inner.optimizer_step(ctx, work, slot, grad, batch, lr)
        if slot != "params" or GRAD not in work:
            return work
        return {**work, GRAD: {**work[GRAD], **tree.pick(grad.slots[slot], work[GRAD])}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained values; send with the model what the server needs for the scores."""
        after = self.inner.finish(ctx, work)
        if ctx.round < 0:
            return {slot: value for slot, value in after.items() if slot != UPDATE}
        if self.k != 0:
            after = {**after, OWN: self.own(ctx, work), TRAINED: tree.map(torch.ones_like, work[TRAINED])}
        if self.signal == "last_grad":
            return {**after, UPDATE: work[GRAD]}
        update = tree.sub(tree.pick(work["params"], work[START]), work[START])  # eq. 2
        needed = {name: unknown(name, work, after).expand_as(leaf) for name, leaf in update.items()}
        return {**after, UPDATE: update, mask_of(UPDATE): needed}

    # -- server ----------------------------------------------------------------------------------

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """The inner method's average of all layers; then the scores, and the choice of personal layers."""
        after = self.inner.aggregate(ctx, server, sums, each)
        senders = {i: upload for i, upload in each.items() if UPDATE in upload.slots}
        if not senders:
            return after
        cosines = self.cosines(ctx, server, senders)
        conflicts = {unit: float(count_conflicts(matrix, self.xi)) for unit, matrix in cosines.items()}  # eq. 3
        before = {unit: float(score) for unit, score in server[SCORE].items()}
        if self.schedule == "dynamic":
            score = {unit: self.ema * before[unit] + (1 - self.ema) * count for unit, count in conflicts.items()}
        else:
            score = {unit: before[unit] + count for unit, count in conflicts.items()}
        personal = {unit for unit, chosen in server[PERSONAL].items() if bool(chosen)}
        warmup = min(30, ctx.rounds // 2) if self.warmup is None else self.warmup
        if ctx.round >= warmup and (self.schedule == "dynamic" or not personal):
            personal = set(rank_units(score, cosines, self.count(len(score)), self.tie, self.allow_zero))
        return {
            **after,
            CONFLICTS: numbers(ctx, conflicts),
            SCORE: numbers(ctx, score),
            PERSONAL: numbers(ctx, {unit: unit in personal for unit in score}),
        }

    def cosines(self, ctx: ServerContext, server: Slots, each: Mapping[int, Upload]) -> dict[str, Tensor]:
        """For each layer, the cosines between the updates of every two clients."""
        sent, found = self.inner.download(ctx, server, tuple(each)), {}
        for unit, layer in self.units(ctx).items():
            rows = (update_of(layer.params, upload, sent.of(i)) for i, upload in each.items())
            # A common length changes no angle, but spares the squares of huge and of tiny updates.
            scaled = (row / row.abs().amax().clamp_min(torch.finfo(row.dtype).tiny) for row in rows)
            found[unit] = cosine_matrix([row if self.sketch is None else sketch(row, self.sketch) for row in scaled])
        return found

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The conflicts of every layer, and whether it is personal."""
        conflicts = {f"conflicts/{unit}": float(each) for unit, each in server[CONFLICTS].items()}
        personal = {f"personal/{unit}": float(each) for unit, each in server[PERSONAL].items()}
        return {**self.inner.server_records(ctx, server), **conflicts, **personal}

    # -- prediction ------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's, with personal layers."""
        return self.inner.personal_model(ctx, self.overlay(ctx, work))


def first_training(phases: Sequence[Phase]) -> int | None:
    """The position of the first phase that trains `params`."""
    return next((at for at, phase in enumerate(phases) if "params" in phase.slots), None)


def never(ctx: RoundContext) -> Tree:
    """A client that has not trained yet."""
    return {"before": torch.zeros((), dtype=torch.bool, device=ctx.training.device)}


def numbers(ctx: RoundContext, values: Mapping[str, float]) -> Tree:
    """Numbers, or booleans, as leaves."""
    device = next(iter(ctx.initial["params"].values())).device
    kinds = {True: torch.bool, False: torch.float64}
    return {n: torch.tensor(v, dtype=kinds[isinstance(v, bool)], device=device) for n, v in values.items()}


def unknown(name: str, work: Slots, after: Slots) -> Tensor:
    """Whether the server cannot work out the update of one leaf from what it sent and what it gets."""
    sent, mask = after.get("params", {}).get(name), after.get(mask_of("params"), {}).get(name)
    other = differ(work[START][name], work["fedlag.received"].get(name)) | differ(work["params"][name], sent)
    return other if mask is None else other | ~mask.all()


def differ(a: Tensor, b: Tensor | None) -> Tensor:
    """Whether two leaves differ anywhere; yes if there is only one."""
    return torch.ones_like(a, dtype=torch.bool).any() if b is None else (a != b).any()


def update_of(names: Sequence[str], upload: Upload, sent: Slots) -> Tensor:
    """One client's update of one layer (or its gradient): as it says, or else the upload minus what was sent."""
    said, masks = upload.slots[UPDATE], upload.masks.get(UPDATE, {})
    leaves = {
        name: said[name]
        if name not in masks or bool(masks[name].all())
        else upload.slots["params"][name] - sent["params"][name]
        for name in names
    }
    return tree.flatten(leaves)
