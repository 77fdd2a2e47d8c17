"""FedFac: the server finds by factor analysis of the clients' weights which units of a layer are shared."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ...analysis import communalities, shared_units
from ...analysis.factor import Estimator
from ...contract import (
    About,
    ClientContext,
    Download,
    OptionError,
    Phase,
    ServerContext,
    Slots,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ...contract.parts.unit_splits import SplitLayer, SplitUnits


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
        caution="the factor analysis needs them; with onboarding=ensemble unseen clients receive the last participants' personal rows; with schedule=static all clients take part in a set-up round",
    )
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
    def setup_rounds(self) -> int:  # type: ignore[override]
        """One before the static schedule, unless its outcome is known."""
        return int(self.schedule == "static" and math.isfinite(self.tau))

    @property
    def shares_all(self) -> bool:
        return self.tau == -math.inf

    # -- server ------------------------------------------------------------------------------------

    def first_partition(self, ctx: ServerContext, at: int) -> Tensor:
        """Before the first analysis all units are shared, unless none ever is."""
        return super().first_partition(ctx, at) & (self.tau != math.inf)

    def server_init(self, ctx: ServerContext) -> Slots:
        """The model, the partition, and what the next analyses are compared with."""
        server = super().server_init(ctx)
        shared = server["split.shared"]
        return {
            **server,
            "fedfac.before": shared,
            "fedfac.until": {name: torch.zeros_like(rows, dtype=torch.int64) for name, rows in shared.items()},
            "fedfac.communality": {name: torch.zeros_like(rows, dtype=torch.float64) for name, rows in shared.items()},
        }

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model, the partition and, where it matters, until which round each unit was shared."""
        sent = super().download(ctx, server, ids)
        return (
            Download({**sent.shared, "fedfac.until": server["fedfac.until"]}) if self.on_release == "global" else sent
        )

    def welcome(self, ctx: ServerContext, server: Slots, index: int) -> Slots:
        """An unseen client may also get the split layers of the last participants."""
        members = {"fedfac.members": server["fedfac.members"]} if "fedfac.members" in server else {}
        return {**super().welcome(ctx, server, index), **members}

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean of all rows; and which of them are shared from now on."""
        after = server if ctx.round < 0 else super().aggregate(ctx, server, uploads)
        shared, nu = dict(server["split.shared"]), dict(server["fedfac.communality"])
        for layer in self.split(ctx.task) if self.analyses(ctx.round) else ():
            if weights := self.gathered(layer, server, uploads):
                nu[layer.name] = self.communality(ctx, layer, weights)
                shared[layer.name] = shared_units(nu[layer.name], self.tau)
        until = {n: torch.where(rows, ctx.round + 1, server["fedfac.until"][n]) for n, rows in shared.items()}
        after = {**after, "split.shared": shared, "fedfac.before": server["split.shared"]}
        after |= {"fedfac.until": until, "fedfac.communality": nu}
        if self.onboarding == "ensemble" and ctx.round >= 0:
            after["fedfac.members"] = self.members(ctx, after, uploads)
        return after

    def analyses(self, round: int) -> bool:
        """Whether the server analyses what it got in a round."""
        if math.isinf(self.tau):
            return False
        return round < 0 if self.schedule == "static" else round % self.refresh_every == 0

    def gathered(self, layer: SplitLayer, server: Slots, uploads: Mapping[int, Upload]) -> list[Tensor]:
        """The split layer of all who sent it."""
        slot, name = "params" if self.analyse == "weights" else "fedfac.update", layer.weight
        senders = [upload for upload in uploads.values() if name in upload.slots.get(slot, {})]
        found = [received(upload, slot, tree.pick(server["params"], [name]))[name] for upload in senders]
        if len(found) == 1:
            warnings.warn(
                "fedfac: the factor analysis of a round had one client only; raise the participation", stacklevel=2
            )
        return found

    def communality(self, ctx: ServerContext, layer: SplitLayer, weights: Sequence[Tensor]) -> Tensor:
        """nu of each unit: its flattened weights at all clients are one column of Z (figure 4)."""
        if self.estimator == "random":
            drawn = torch.from_numpy(ctx.rng(f"fedfac {layer.name}").random(layer.units))
            return drawn.to(weights[0].device)
        columns = torch.cat([each.flatten(1).T for each in weights])
        estimator = cast(Estimator, self.estimator)
        return communalities(columns, self.kappa, estimator, fewer=self.fewer, iterations=self.iterations)

    def members(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Tree:
        """The split layers of each participant's personal model, stacked."""
        shared = self.shared_rows(ctx, server["split.shared"])
        newest = {slot: tree.pick(server[slot], shared) for slot in ("params", "buffers")}
        whole = {**newest["params"], **newest["buffers"]}
        sent = [
            {n: leaf for slot, held in newest.items() for n, leaf in received(upload, slot, held).items()}
            for upload in uploads.values()
        ]
        return tree.stack([{n: torch.where(shared[n], whole[n], leaf) for n, leaf in each.items()} for each in sent])

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """Per split layer: shared units, the share that did not change sides, and the communalities."""
        records = super().server_records(ctx, server)
        for name, rows in server["split.shared"].items():
            nu = server["fedfac.communality"][name]
            records[f"stable_units/{name}"] = float((rows == server["fedfac.before"][name]).double().mean())
            records |= {f"communality_{what}/{name}": float(getattr(nu, what)()) for what in ("min", "mean", "max")}
        return records

    # -- client ------------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """Its own split layers, and that it has never trained them."""
        never = torch.full((), -1, dtype=torch.int64, device=ctx.samples.device)
        return {**super().client_init(ctx), "fedfac.trained": {"round": never}}

    def own_rows(self, ctx: ClientContext, client: Slots, download: Slots) -> Tree:
        """The personal rows, once trained (with `on_release=global`: trained since they were last shared)."""
        last = client["fedfac.trained"]["round"]
        until = download.get("fedfac.until", tree.zeros_like(download["split.shared"]))
        fresh = self.spread(ctx, tree.map(lambda rounds: last >= rounds, until), last >= 0)
        return tree.map(torch.logical_and, super().own_rows(ctx, client, download), fresh)

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The client's model and, to send updates, where it started."""
        work = super().begin(ctx, client, download)
        return {**work, "fedfac.start": self.weights(ctx, work)} if self.analyse == "updates" else work

    def weights(self, ctx: ClientContext, work: Slots) -> Tree:
        """The weights that are analysed."""
        return tree.pick(work["params"], [layer.weight for layer in self.split(ctx.task)])

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """As usual; in the set-up round for its own number of epochs."""
        return (Phase("pre", epochs=self.pre_epochs),) if ctx.round < 0 else super().phases(ctx)

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the split layers, send all rows. In the set-up round send what is analysed, and keep nothing."""
        after, upload = super().end(ctx, client, work)
        slots = upload.slots
        if ctx.round < 0:
            after, slots = client, {"params": self.weights(ctx, work), "weight": slots["weight"]}
        else:
            after["fedfac.trained"] = {"round": torch.full_like(client["fedfac.trained"]["round"], ctx.round)}
        if self.analyse == "updates":
            slots = {**slots, "fedfac.update": tree.sub(self.weights(ctx, work), work["fedfac.start"])}
        return after, Upload(slots, upload.masks)

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The client's model; for an ensemble also the participants' split layers."""
        view = super().view(ctx, client, download)
        return {**view, **{slot: each for slot, each in download.items() if slot == "fedfac.members"}}

    def predict(self, ctx: ClientContext, view: Slots, x: Tensor) -> Tensor:
        """The model's outputs, or the mean of the members' outputs."""
        if "fedfac.members" not in view:
            return super().predict(ctx, view, x)
        models = (
            {s: {**view[s], **tree.pick(member, view[s])} for s in ("params", "buffers")}
            for member in tree.unstack(view["fedfac.members"])
        )
        return torch.stack([super(FedFac, self).predict(ctx, model, x) for model in models]).mean(0)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its personal rows, or nothing."""
        return super().onboard(ctx) if self.onboarding == "localtrain" else ()


def received(upload: Upload, slot: str, held: Tree) -> Tree:
    """What a client sent of a slot; what it, or a wrapper, held back counts as what the server holds."""
    sent, masks = upload.slots.get(slot, {}), upload.masks.get(slot, {})
    return {
        n: leaf if n not in sent else torch.where(masks[n], sent[n], leaf) if n in masks else sent[n]
        for n, leaf in held.items()
    }
