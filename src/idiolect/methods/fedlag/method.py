"""FedLAG: the server finds the layers that clients pull apart, and these become personal."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from ...analysis import count_conflicts, rank_units
from ...contract import About, Method, Needs, Refuses, Sums, Wrapper, default_inner, option, register, tree
from ...contract.context import ClientContext, RoundContext, ServerContext
from ...contract.messages import Uploads
from ...contract.slots import Slot, nothing, private, zero
from ...core.errors import ComposeError, ModelError, OptionError
from ...core.tree import Slots, Tree
from ...task.task import Task
from .layers import choose_by_place
from .scores import (
    BOUND,
    CHANGES,
    CONFLICTS,
    GAIN,
    GAINERS,
    NEEDS_CONFLICT,
    PERSONAL,
    QUIET,
    ROUNDS,
    SCORE,
    add_conflicts,
    add_shared_conflicts,
    count_change,
    count_quiet,
    numbers,
    predict_gains,
    records_of,
)
from .updates import UPDATE, ComparesUpdates, last_of, sends_what_it_trains

OWN, TRAINED = "fedlag.own", "fedlag.trained"


@register("fedlag")
@dataclass(frozen=True)
class FedLAG(ComparesUpdates):
    r"""FedLAG (Nguyen et al., 2024): layers with the most conflicting updates are not overwritten by the average.

    With the update :math:`h_{l,u}` of layer l by client u in a round (eq. 2), the conflict score (eq. 3) is

    .. math:: GC_\xi(l) = \tfrac{1}{2} \sum_u \sum_{v \neq u} 1[\cos(h_{l,u}, h_{l,v}) < \xi].

    The k layers with the most conflicts are personal, :math:`\mathbb{L}_p`: on average over the rounds in which they
    were shared, and as long as they have any (remark 5.4): one among the newest updates, as many as there are clients,
    which with all clients in every round are this round's. The paper counts this round's alone (preset `paper`); but
    clients that keep a layer no longer pull it apart, so that it then loses its place every few rounds, and its values
    with it. `schedule=cumulative` adds up all rounds so far. The server averages all layers; a client starts its
    training and predicts with (eqs. 4 and 5)

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

    `choose` takes the first, middle or last k layers instead, whatever their conflicts, or all: then nothing is
    compared and no update is sent. `preset=then_local` is FedAvg in the warm-up and local training after it. With
    `server_models` the server keeps each client's last model, as the paper has it, and no update is sent either.

    The preset `ref` scores as the authors' published program does. That program never loads the averages after the
    warm-up, which is not repeated here. Run it: ``idiolect run fedlag``.
    """

    about = About(
        "Layers in which clients' updates conflict become personal",
        family="private layers",
        paper="nguyen2024fedlag",
        kind="wrapper",
        reveals=(
            "as the method inside, personal layers included; where the server cannot work out an update from "
            "that, the update too"
        ),
        caution="layers are personal in what they become, not in what is sent: the server has to compare them",
    )
    identities = {"fedlag(fedavg, k=0)": "fedavg"}
    presets = {
        "then_local": {"choose": "all", "attach_norm": "preceding"},
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
    k: int | None = option(
        None, min=0, tuned="null,1,2,3,5", help="most personal layers; none is half of the eligible ones, 1 to 5"
    )
    xi: float = option(-0.1, above=-1.0, max=0.0, tuned="-0.3:0", help="cosine below which two clients conflict")
    warmup: int | None = option(
        None, min=0, tuned="null,0,5,30", help="rounds without personal layers; none is a tenth of the rounds, 1 to 30"
    )
    schedule: str = option(
        "steady",
        choices=("steady", "cumulative", "dynamic", "static"),
        help="choose after every round by the conflicts while shared, all so far, or this round's; or once, by all",
    )
    choose: str = option(
        "conflicts",
        choices=("conflicts", "first", "middle", "last", "all"),
        help="which layers are personal: those in conflict, or always the first, middle or last k, or all",
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
        "none",
        choices=("none", "preceding"),
        help="whether normalisation is personal with the layer before it, or with the first",
    )
    server_models: bool = option(
        False, help="the server keeps each client's last model, instead of being sent updates of personal layers"
    )
    sketch: int | None = option(
        None, min=16, help="compare updates folded to so many numbers per layer; none compares them exactly"
    )
    ema: float = option(0.0, min=0.0, below=1.0, help="share of the old score in a moving average; 0 is off")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema and self.schedule != "dynamic":
            raise OptionError(
                f"fedlag: ema={self.ema} is not allowed with schedule={self.schedule}, which sums the scores over "
                "rounds; leave ema at 0, or use schedule=dynamic"
            )
        if self.server_models and self.choose == "conflicts" and not sends_what_it_trains(self.inner):
            raise ComposeError(
                f"fedlag: server_models=true is not allowed around {self.inner.name}: no server can work out updates "
                "unless clients start from what they get and send what they trained; leave it out"
            )
        inside = self.inner
        while isinstance(inside, Wrapper):
            if isinstance(inside, FedLAG):
                raise ComposeError("fedlag cannot wrap fedlag: both would decide about the same layers; use one")
            inside = inside.inner

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
        if k and k == len(eligible) and self.choose != "all":
            warnings.warn(
                f"fedlag: with k={k} all layers that may become personal ({listing}) can be so at once, which is "
                "local training; choose a smaller k, or a model with more layers",
                stacklevel=2,
            )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """As the inner method, and the models that the server keeps."""
        keeps = self.compares and self.server_models
        return replace(self.inner.needs, server_models=keeps or self.inner.needs.server_models)

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """As the inner method, and what the comparison of single updates rules out."""
        refuses = self.inner.refuses
        if self.k != 0 and self.warmup is None:
            refuses = replace(refuses, more_rounds="its warm-up is a tenth of the rounds")
        refuses = replace(refuses, own_labels=refuses.why_not_own_labels)  # private heads are no layers of its
        if not self.compares:
            return replace(refuses, other_networks="its layers are those of one network")
        reason = "it compares the clients' updates layer by layer"
        return replace(refuses, other_networks=reason, summing=reason)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The server also sees each client's model, and an update where it cannot work that out; a client remembers all
        that may become personal."""
        inner = self.inner.slots
        personal = {OWN: private(self.first_own), TRAINED: private(never)} if self.k != 0 else {}
        compared = {
            "params": replace(inner["params"], up="each"),
            **{slot: Slot("server", self.no_conflicts) for slot in (CONFLICTS, SCORE, QUIET, GAIN, GAINERS)},
            **({ROUNDS: Slot("server", self.no_conflicts)} if self.schedule == "steady" else {}),
            CHANGES: Slot("server", zero("count")),
            BOUND: Slot("server", no_bound),
            UPDATE: Slot("round", nothing, up="each"),
        }
        return {
            **inner,
            PERSONAL: Slot("server", self.none_personal, down=self.k != 0),
            **personal,
            **(compared if self.compares else {}),
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
        return self.pick_own(ctx, ctx.initial)

    def pick_own(self, ctx: RoundContext, model: Slots) -> Tree:
        """What a client must remember of a model: all that may become personal."""
        names = {name for layer in self.units(ctx).values() for name in layer.along}
        return tree.pick({**model["params"], **model["buffers"]}, names)

    def overlay(self, ctx: ClientContext, work: Slots) -> Slots:
        """What was received, with the client's own values on personal layers (eqs. 4 and 5), if it has trained."""
        if PERSONAL not in work:
            return work
        values, personal, trained = work[OWN], work[PERSONAL], work[TRAINED]["before"]
        use = {name: personal[unit] & trained for unit, layer in self.units(ctx).items() for name in layer.along}
        model: Slots = {
            slot: {n: torch.where(use[n], values[n], leaf) if n in use else leaf for n, leaf in work[slot].items()}
            for slot in ("params", "buffers")
            if slot in work
        }
        return {**work, **model}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's start with personal layers, remembered with what the server knows of it."""
        overlaid = self.overlay(ctx, work)
        received = (overlaid if self.server_models else work).get("params", {})
        work = self.inner.prepare(ctx, overlaid)
        return work if ctx.round < 0 or not self.compares else self.remember_start(ctx, received, work)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the trained values; send with the model what the server needs for the scores."""
        after = self.inner.finish(ctx, work)
        if ctx.round < 0:
            return {slot: value for slot, value in after.items() if slot != UPDATE}
        if self.k != 0:
            after = {**after, OWN: self.pick_own(ctx, work), TRAINED: tree.map(torch.ones_like, work[TRAINED])}
        return self.say_update(work, after) if self.compares else after

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The inner method's average of all layers; then the scores, and the choice of personal layers."""
        after = self.inner.aggregate(ctx, server, sums, each)
        if not self.compares:
            return {**after, PERSONAL: self.place(ctx)}
        if self.server_models:
            after |= {last_of(i): tree.pick(up.slots["params"], self.scored_names(ctx)) for i, up in each.items()}
        senders = {i: upload for i, upload in each.items() if UPDATE in upload.slots}
        if len(senders) < 2:
            return after
        angles = self.compare(ctx, server, senders)
        conflicts = {unit: float(count_conflicts(found.cosines, self.xi)) for unit, found in angles.items()}  # eq. 3
        known = {unit for unit, chosen in server[PERSONAL].items() if bool(chosen)}
        if self.schedule == "steady":
            total, rounds = add_shared_conflicts(server[SCORE], server[ROUNDS], conflicts, known)
            score = {unit: each / max(1.0, rounds[unit]) for unit, each in total.items()}
            after[ROUNDS] = numbers(ctx, rounds)
        else:
            score = total = add_conflicts(server[SCORE], conflicts, self.schedule, self.ema)
        quiet = count_quiet(server[QUIET], conflicts, len(senders))
        personal, k = known, self.count(len(score))
        if ctx.round >= self.warmup_of(ctx) and (self.schedule != "static" or not known):
            lasting = self.schedule not in NEEDS_CONFLICT
            ranked = {unit: each if lasting or quiet[unit] < len(ctx.clients) else 0.0 for unit, each in score.items()}
            cosines = {unit: found.cosines for unit, found in angles.items()}
            personal = set(rank_units(ranked, cosines, k, self.tie, self.allow_zero))
        return {
            **after,
            CONFLICTS: numbers(ctx, conflicts),
            SCORE: numbers(ctx, total),
            QUIET: numbers(ctx, quiet),
            PERSONAL: numbers(ctx, {unit: unit in personal for unit in score}),
            CHANGES: {"count": server[CHANGES]["count"] + count_change(ctx, known, personal, self.schedule)},
            **predict_gains(ctx, angles, personal),
        }

    def place(self, ctx: RoundContext) -> Tree:
        """After the warm-up, the layers that are personal by their place."""
        names = list(self.units(ctx))
        chosen = choose_by_place(names, self.choose, self.count(len(names))) if ctx.round >= self.warmup_of(ctx) else ()
        return numbers(ctx, {unit: unit in chosen for unit in names})

    def warmup_of(self, ctx: RoundContext) -> int:
        """The rounds without personal layers."""
        return min(30, max(1, ctx.rounds // 10)) if self.warmup is None else self.warmup

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """Which layers are personal, and what the comparison found."""
        personal = {f"personal/{unit}": float(flag) for unit, flag in server[PERSONAL].items()}
        found = records_of(server) if self.compares else {}
        return {**self.inner.server_records(ctx, server), **personal, **found}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's, with personal layers."""
        return self.inner.personal_model(ctx, self.overlay(ctx, work))


def never(ctx: RoundContext) -> Tree:
    """A client that has not trained yet."""
    return {"before": torch.zeros((), dtype=torch.bool, device=ctx.training.device)}


def no_bound(ctx: RoundContext) -> Tree:
    """No layer is personal, which adds nothing to the bound."""
    return numbers(ctx, {"least": 0.0, "most": 0.0})
