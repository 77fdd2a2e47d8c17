"""FedFac: the server finds by factor analysis of the clients' weights which units of a layer are shared."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ...analysis import communalities, shared_units
from ...analysis.factor import Estimator
from ...contract import (
    About,
    ClientContext,
    Download,
    Needs,
    OptionError,
    Phase,
    RoundContext,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Tree,
    Upload,
    nothing,
    option,
    private,
    register,
    tree,
)
from ...contract.parts.unit_splits import SHARED, SplitLayer, SplitUnits

BEFORE, UNTIL, COMMUNALITY = "fedfac.before", "fedfac.until", "fedfac.communality"
TRAINED, UPDATE, MEMBERS = "fedfac.trained", "fedfac.update", "fedfac.members"


@register("fedfac")
@dataclass(frozen=True)
class FedFac(SplitUnits):
    r"""FedFac (Wang, Tang and Li, section 4): FedSplit with a partition that the server finds.

    For each split layer, column j of Z holds the incoming weights of unit j at all participants, one after another.
    With G factors, enough for the share `kappa` of the variance of the standardised columns (eq. 6),

    .. math:: R = A A^\top + \Psi, \qquad \nu_j = \sum_{m \le G} a_{jm}^2, \qquad
        j \text{ is shared} \iff \nu_j \ge \text{quantile}_\tau(\nu).

    `dynamic` (Algorithm 2) analyses the weights after every `refresh_every`-th round; before the first analysis, after
    round 0, all units are shared. `static` (Algorithm 1) analyses once, after a set-up round in which all clients train
    for `pre_epochs`; its models are then discarded. Shared rows take the weighted mean of the clients' values. Whoever
    has not trained yet takes the participants' mean of the personal rows.

    Hand-worked: two clients of equal size send a layer of two units with rows (1, 3) and (2, 2), and (3, 5) and (4, 0).
    The server holds their means, (2, 4) and (3, 1). If the analysis shares the first unit, both clients continue with
    (2, 4) there, and with their own (2, 2) and (4, 0) in the second; a newcomer starts it from (3, 1).

    What the server sees: all rows of all participants, personal ones included, as the analysis needs them.
    An unseen client trains its personal rows with everything shared frozen (`localtrain`), uses the participants' mean
    (`average`), or the mean of the outputs of the last round's participants' personal models (`ensemble`), which
    hands it their personal rows.
    """

    about = About(
        "FedSplit with the shared units found by factor analysis",
        paper="wang2023fedfac",
        reveals="all rows, personal ones included",
        caution=(
            "the factor analysis needs them; with onboarding=ensemble unseen clients receive the last "
            "participants' personal rows; with schedule=static all clients take part in a set-up round"
        ),
    )
    refuses = replace(SplitUnits.refuses, summing="it analyses the weights of all clients together, unit by unit")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "ref": {"estimator": "eigvec", "fewer": 1, "bias": "all_local"},
    }
    identities: ClassVar[Mapping[str, str]] = {
        "fedfac(tau=-inf)": "fedavg",
        "fedfac(layers=head, tau=inf)": "fedper",
    }

    schedule: str = option("dynamic", choices=("dynamic", "static"), help="analyse again and again, or once at first")
    tau: float = option(
        0.5,
        min=-math.inf,
        max=math.inf,
        help="quantile of the communalities from which units are shared; inf: none, -inf: all",
    )
    kappa: float = option(0.85, above=0.0, max=1.0, help="share of the variance that the factors explain")
    estimator: str = option(
        "paf", choices=("paf", "pc", "eigvec", "random"), help="of the communalities; random is for ablations"
    )
    fewer: int = option(0, min=0, help="take so many factors fewer, but at least one (the authors' code: 1)")
    iterations: int = option(100, min=1, help="at most so many steps of the estimator paf")
    analyse: str = option("weights", choices=("weights", "updates"), help="what of the clients is analysed")
    refresh_every: int = option(1, min=1, help="dynamic: rounds from one analysis to the next")
    pre_epochs: int | None = option(
        None, min=1, help="static: epochs of the set-up round; none: the run's local epochs"
    )
    on_release: str = option(
        "own",
        choices=("own", "global"),
        help="a row that has become personal continues from the client's last one, or from the server's newest",
    )
    onboarding: str = option(
        "localtrain", choices=("localtrain", "ensemble", "average"), help="what unseen clients do for personal rows"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isinf(self.tau) or 0 <= self.tau <= 1):
            raise OptionError(
                f"fedfac: tau={self.tau} is not allowed; tau must be a quantile in [0, 1], inf (all units personal) or "
                "-inf (all shared)"
            )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """A set-up round before the static schedule, unless its outcome is known."""
        return replace(super().needs, setup_rounds=int(self.schedule == "static" and math.isfinite(self.tau)))

    @property
    def shares_all(self) -> bool:
        return self.tau == -math.inf

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The server sees each client's rows, and keeps what the next analyses are compared with."""
        split = super().slots
        update = {UPDATE: Slot("round", nothing, up="each")} if self.analyse == "updates" else {}
        return {
            **split,
            "params": replace(split["params"], up="each"),
            BEFORE: Slot("server", self.first_shared),
            UNTIL: Slot("server", self.never_shared, down=self.on_release == "global"),
            COMMUNALITY: Slot("server", self.no_communality),
            TRAINED: private(never_trained),
            **update,
        }

    def first_partition(self, ctx: RoundContext, at: int) -> Tensor:
        """Before the first analysis all units are shared, unless none ever is."""
        return super().first_partition(ctx, at) & (self.tau != math.inf)

    def never_shared(self, ctx: RoundContext) -> Tree:
        """Until which round each unit was shared: 0."""
        return tree.map(lambda rows: torch.zeros_like(rows, dtype=torch.int64), self.first_shared(ctx))

    def no_communality(self, ctx: RoundContext) -> Tree:
        """The communalities before the first analysis."""
        return tree.map(lambda rows: torch.zeros_like(rows, dtype=torch.float64), self.first_shared(ctx))

    # -- client ------------------------------------------------------------------------------------

    def own_rows(self, ctx: ClientContext, work: Slots) -> Tree:
        """The personal rows, once trained (with `on_release=global`: trained since they were last shared)."""
        last = work[TRAINED]["round"]
        until = work.get(UNTIL, tree.zeros_like(work[SHARED]))
        fresh = self.spread(ctx, tree.map(lambda rounds: last >= rounds, until), last >= 0)
        return tree.map(torch.logical_and, super().own_rows(ctx, work), fresh)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's model and, to send updates, where it started."""
        work = super().prepare(ctx, work)
        return {**work, "fedfac.start": self.weights(ctx, work)} if self.analyse == "updates" else work

    def weights(self, ctx: ClientContext, work: Slots) -> Tree:
        """The weights that are analysed."""
        return tree.pick(work["params"], [layer.weight for layer in self.split(ctx.task)])

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """As usual; in the set-up round for its own number of epochs."""
        return (Phase(self.step, "pre", epochs=self.pre_epochs),) if ctx.round < 0 else super().phases(ctx)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the split layers, send all rows. In the set-up round send what is analysed, and keep nothing."""
        weights = self.weights(ctx, work)
        update = {UPDATE: tree.sub(weights, work["fedfac.start"])} if self.analyse == "updates" else {}
        if ctx.round < 0:
            return {"params": weights, **update}
        trained = {"round": torch.full_like(work[TRAINED]["round"], ctx.round)}
        return {**super().finish(ctx, work), TRAINED: trained, **update}

    # -- server ------------------------------------------------------------------------------------

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model and the partition; an unseen client may also get the split layers of the last participants."""
        sent = super().download(ctx, server, ids)
        if MEMBERS not in server:
            return sent
        return Download(sent.shared, {i: {MEMBERS: server[MEMBERS]} for i in set(ids) - set(ctx.clients)})

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """The mean of all rows; and which of them are shared from now on."""
        after = server if ctx.round < 0 else super().aggregate(ctx, server, sums, each)
        shared, nu = dict(server[SHARED]), dict(server[COMMUNALITY])
        for layer in self.split(ctx.task) if self.analyses(ctx.round) else ():
            if weights := self.collect(layer, server, each):
                nu[layer.name] = self.communality(ctx, layer, weights)
                shared[layer.name] = shared_units(nu[layer.name], self.tau)
        until = {n: torch.where(rows, ctx.round + 1, server[UNTIL][n]) for n, rows in shared.items()}
        after = {**after, SHARED: shared, BEFORE: server[SHARED], UNTIL: until, COMMUNALITY: nu}
        if self.onboarding == "ensemble" and ctx.round >= 0:
            after[MEMBERS] = self.members(ctx, after, each)
        return after

    def analyses(self, round: int) -> bool:
        """Whether the server analyses what it got in a round."""
        if math.isinf(self.tau):
            return False
        return round < 0 if self.schedule == "static" else round % self.refresh_every == 0

    def collect(self, layer: SplitLayer, server: Slots, each: Mapping[int, Upload]) -> list[Tensor]:
        """The split layer of all who sent it."""
        slot, name = "params" if self.analyse == "weights" else UPDATE, layer.weight
        senders = [upload for upload in each.values() if name in upload.slots.get(slot, {})]
        weights = [received(upload, slot, tree.pick(server["params"], [name]))[name] for upload in senders]
        if len(weights) == 1:
            warnings.warn(
                "fedfac: the factor analysis of a round had one client only; raise the participation", stacklevel=2
            )
        return weights

    def communality(self, ctx: ServerContext, layer: SplitLayer, weights: Sequence[Tensor]) -> Tensor:
        """nu of each unit: its flattened weights at all clients are one column of Z (figure 4)."""
        if self.estimator == "random":
            drawn = torch.from_numpy(ctx.rng(f"fedfac {layer.name}").random(layer.units))
            return drawn.to(weights[0].device)
        columns = torch.cat([weight.flatten(1).T for weight in weights])
        estimator = cast(Estimator, self.estimator)
        return communalities(columns, self.kappa, estimator, fewer=self.fewer, iterations=self.iterations)

    def members(self, ctx: ServerContext, server: Slots, each: Mapping[int, Upload]) -> Tree:
        """The split layers of each participant's personal model, stacked."""
        shared = self.shared_rows(ctx, server[SHARED])
        newest = {slot: tree.pick(server[slot], shared) for slot in ("params", "buffers")}
        whole = {**newest["params"], **newest["buffers"]}
        sent = [
            {n: leaf for slot, known in newest.items() for n, leaf in received(upload, slot, known).items()}
            for upload in each.values()
        ]
        return tree.stack([{n: torch.where(shared[n], whole[n], leaf) for n, leaf in rows.items()} for rows in sent])

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """Per split layer: shared units, the share that did not change sides, and the communalities."""
        records = super().server_records(ctx, server)
        for name, rows in server[SHARED].items():
            nu = server[COMMUNALITY][name]
            records[f"stable_units/{name}"] = float((rows == server[BEFORE][name]).double().mean())
            records |= {f"communality_{what}/{name}": float(getattr(nu, what)()) for what in ("min", "mean", "max")}
        return records

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's model; for an ensemble also the participants' split layers."""
        members = {MEMBERS: work[MEMBERS]} if MEMBERS in work else {}
        return {**super().personal_model(ctx, work), **members}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The model's outputs, or the mean of the members' outputs."""
        if MEMBERS not in model:
            return super().predict(ctx, model, x)
        models = (
            {s: {**model[s], **tree.pick(member, model[s])} for s in ("params", "buffers")}
            for member in tree.unstack(model[MEMBERS])
        )
        return torch.stack([super(FedFac, self).predict(ctx, one, x) for one in models]).mean(0)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its personal rows, or nothing."""
        return super().onboard(ctx) if self.onboarding == "localtrain" else ()


def never_trained(ctx: RoundContext) -> Tree:
    """The last round in which a client trained: none."""
    return {"round": torch.full((), -1, dtype=torch.int64, device=ctx.training.device)}


def received(upload: Upload, slot: str, held: Tree) -> Tree:
    """What a client sent of a slot; what it, or a wrapper, held back counts as what the server holds."""
    sent, masks = upload.slots.get(slot, {}), upload.masks.get(slot, {})
    return {
        n: leaf if n not in sent else torch.where(masks[n], sent[n], leaf) if n in masks else sent[n]
        for n, leaf in held.items()
    }
