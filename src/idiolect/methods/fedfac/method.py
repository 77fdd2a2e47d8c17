"""FedFac: the server finds by factor analysis of the clients' weights which units of a layer are shared."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ...analysis import Factors, analyse_factors, correlation, shared_units
from ...analysis.factor import Estimator
from ...contract import About, Needs, Phase, Slots, Sums, Tree, option, register, tree
from ...contract.context import ClientContext, RoundContext, ServerContext
from ...contract.messages import Download, Uploads
from ...contract.parts.unit_splits import SHARED, SplitLayer, SplitUnits
from ...contract.slots import Slot, nothing, private
from ...core.errors import OptionError
from ...task.task import Task
from .ensemble import MEMBERS, fill_in, member_models, stack_members

BEFORE, UNTIL, COMMUNALITY = "fedfac.before", "fedfac.until", "fedfac.communality"
TRAINED, UPDATE, STEPS = "fedfac.trained", "fedfac.update", "fedfac.steps"


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

    What the server sees: all rows of all participants, personal ones included, as the analysis needs them. An unseen
    client trains its personal rows with everything shared frozen (`localtrain`), uses the participants' mean
    (`average`), or the mean of the outputs of the last round's participants' personal models (`ensemble`), which hands
    it their personal rows. Run it: ``idiolect run fedfac``.
    """

    about = About(
        "FedSplit with the shared units found by factor analysis",
        family="masks and sub-models",
        paper="wang2023fedfac",
        reveals="all rows, personal ones included",
        caution=(
            "the factor analysis needs them; with onboarding=ensemble unseen clients receive the last "
            "participants' personal rows; with schedule=static all clients take part in a set-up round"
        ),
    )
    refuses = replace(SplitUnits.refuses, summing="it analyses the weights of all clients together, unit by unit")
    presets = {
        "paper": {"at_start": True},
        "ref": {"estimator": "eigvec", "fewer": 1, "bias": "all_local"},
    }
    identities = {
        "fedfac(tau=-inf)": "fedavg",
        "fedfac(layers=head, tau=inf)": "fedper",
        "fedfac(layers=[1, 2], tau=inf)": "lgfedavg",
    }

    schedule: str = option("dynamic", choices=("dynamic", "static"), help="analyse again and again, or once at first")
    tau: float | tuple[float, ...] = option(
        0.5,
        min=-math.inf,
        max=math.inf,
        tuned="0.25,0.5,0.75,0.9,inf",
        help="quantile of the communalities from which units are shared; inf: none, -inf: all; or one per layer",
    )
    kappa: float | tuple[float, ...] = option(
        0.85,
        above=0.0,
        max=1.0,
        tuned="0.5,0.75,0.85,0.9,0.95",
        help="share of the variance that the factors explain; or one per layer",
    )
    at_start: bool = option(
        False, help="dynamic: analyse before round 1, too, after a set-up round in which all clients train"
    )
    estimator: str = option(
        "paf", choices=("paf", "pc", "eigvec", "random"), help="of the communalities; random is for ablations"
    )
    fewer: int = option(0, min=0, help="take so many factors fewer, but at least one (the authors' code: 1)")
    iterations: int = option(100, min=1, help="at most so many steps of the estimator paf")
    analyse: str = option("weights", choices=("weights", "updates"), help="what of the clients is analysed")
    refresh_every: int = option(1, min=1, help="dynamic: rounds from one analysis to the next")
    pre_epochs: int | None = option(None, min=1, help="epochs of the set-up round; none: the run's local epochs")
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
        if not self.taus or not all(math.isinf(tau) or 0 <= tau <= 1 for tau in self.taus):
            raise OptionError(
                f"fedfac: tau={self.tau} is not allowed; tau must be a quantile in [0, 1], inf (all units personal) or "
                "-inf (all shared)"
            )

    @property
    def taus(self) -> tuple[float, ...]:
        """The quantiles, one for all split layers or one each."""
        return self.tau if isinstance(self.tau, tuple) else (self.tau,)

    @property
    def kappas(self) -> tuple[float, ...]:
        """The shares of variance, one for all split layers or one each."""
        return self.kappa if isinstance(self.kappa, tuple) else (self.kappa,)

    def check(self, task: Task) -> None:
        """Quantiles and shares of variance have to fit the split layers."""
        super().check(task)
        layers = len(self.split(task))
        for name, values in (("tau", self.taus), ("kappa", self.kappas)):
            if len(values) not in (1, layers):
                raise OptionError(
                    f"fedfac: {name} holds {len(values)} numbers, but {layers} layers are split; give one number, or "
                    "one per layer"
                )

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """A set-up round before the first analysis, unless the outcome is known."""
        early = self.schedule == "static" or self.at_start
        return replace(super().needs, setup_rounds=int(early and any(map(math.isfinite, self.taus))))

    @property
    def shares_all(self) -> bool:
        return set(self.taus) == {-math.inf}

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
            STEPS: Slot("server", self.no_steps),
            TRAINED: private(never_trained),
            **update,
        }

    def first_partition(self, ctx: RoundContext, at: int) -> Tensor:
        """Before the first analysis all units are shared, unless none ever is."""
        return super().first_partition(ctx, at) & (at_layer(self.taus, at) != math.inf)

    def never_shared(self, ctx: RoundContext) -> Tree:
        """Until which round each unit was shared: 0."""
        return tree.map(lambda rows: torch.zeros_like(rows, dtype=torch.int64), self.first_shared(ctx))

    def no_communality(self, ctx: RoundContext) -> Tree:
        """The communalities before the first analysis."""
        return tree.map(lambda rows: torch.zeros_like(rows, dtype=torch.float64), self.first_shared(ctx))

    def no_steps(self, ctx: RoundContext) -> Tree:
        """Per split layer, how many steps the estimator took and whether it converged, before the first analysis."""
        first = torch.zeros(2, dtype=torch.float64, device=ctx.training.device)
        return {layer.name: first for layer in self.split(ctx.task)}

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

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model and the partition; an unseen client may also get the split layers of the last participants."""
        sent = super().download(ctx, server, ids)
        if MEMBERS not in server:
            return sent
        return Download(sent.shared, {i: {MEMBERS: server[MEMBERS]} for i in set(ids) - set(ctx.clients)})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The mean of all rows; and which of them are shared from now on."""
        after = server if ctx.round < 0 else super().aggregate(ctx, server, sums, each)
        shared, nu, steps = dict(server[SHARED]), dict(server[COMMUNALITY]), dict(server[STEPS])
        for at, layer in enumerate(self.split(ctx.task)) if self.analyses(ctx.round) else ():
            tau = at_layer(self.taus, at)
            if math.isfinite(tau) and (weights := self.collect(layer, server, each)):
                found = self.analyse_layer(ctx, at, layer, weights)
                nu[layer.name] = found.communalities
                steps[layer.name] = torch.tensor([found.steps, found.converged]).to(steps[layer.name])
                shared[layer.name] = shared_units(nu[layer.name], tau)
        until = {n: torch.where(rows, ctx.round + 1, server[UNTIL][n]) for n, rows in shared.items()}
        after = {**after, SHARED: shared, BEFORE: server[SHARED], UNTIL: until, COMMUNALITY: nu, STEPS: steps}
        if self.onboarding == "ensemble" and ctx.round >= 0:
            after[MEMBERS] = stack_members(self.shared_rows(ctx, after[SHARED]), after, each)
        return after

    def analyses(self, round: int) -> bool:
        """Whether the server analyses what it got in a round."""
        return round < 0 or (self.schedule == "dynamic" and round % self.refresh_every == 0)

    def collect(self, layer: SplitLayer, server: Slots, each: Uploads) -> list[Tensor]:
        """The split layer of all who sent it."""
        slot, name = "params" if self.analyse == "weights" else UPDATE, layer.weight
        senders = [upload for upload in each.values() if name in upload.slots.get(slot, {})]
        weights = [fill_in(upload, slot, tree.pick(server["params"], [name]))[name] for upload in senders]
        if len(weights) == 1:
            warnings.warn(
                "fedfac: the factor analysis of a round had one client only; raise the participation", stacklevel=2
            )
        return weights

    def analyse_layer(self, ctx: ServerContext, at: int, layer: SplitLayer, weights: Sequence[Tensor]) -> Factors:
        """nu of each unit: its flattened weights at all clients are one column of Z (figure 4)."""
        if self.estimator == "random":
            drawn = torch.from_numpy(ctx.rng(f"fedfac {layer.name}").random(layer.units))
            return Factors(drawn.to(weights[0].device), 0, 0, True)
        columns = torch.cat([weight.flatten(1).T for weight in weights])
        estimator = cast(Estimator, self.estimator)
        kappa = at_layer(self.kappas, at)
        found = analyse_factors(correlation(columns), kappa, estimator, fewer=self.fewer, iterations=self.iterations)
        if not found.converged:
            warnings.warn(
                f"fedfac: the factor iteration of layer {layer.name!r} did not converge in {self.iterations} steps, "
                "its communalities are those of the last; allow more iterations, or use estimator=pc",
                stacklevel=2,
            )
        return found

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """Per split layer: shared units, the share that did not change sides, and the communalities."""
        records = super().server_records(ctx, server)
        for name, rows in server[SHARED].items():
            nu = server[COMMUNALITY][name]
            records[f"stable_units/{name}"] = float((rows == server[BEFORE][name]).double().mean())
            taken, converged = server[STEPS][name].tolist()
            records |= {f"factor_steps/{name}": taken, f"factor_converged/{name}": converged}
            records |= {f"communality_{what}/{name}": float(getattr(nu, what)()) for what in ("min", "mean", "max")}
        return records

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's model; for an ensemble also the participants' split layers."""
        members = {MEMBERS: work[MEMBERS]} if MEMBERS in work else {}
        return {**super().personal_model(ctx, work), **members}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The model's outputs, or the mean of the members' outputs."""
        if MEMBERS not in model:
            return super().predict(ctx, model, x)
        predict = super().predict
        return torch.stack([predict(ctx, one, x) for one in member_models(model)]).mean(0)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its personal rows, or nothing."""
        return super().onboard(ctx) if self.onboarding == "localtrain" else ()


def at_layer(values: tuple[float, ...], at: int) -> float:
    """The value of the `at`-th split layer; a single one holds for all."""
    return values[at] if len(values) > 1 else values[0]


def never_trained(ctx: RoundContext) -> Tree:
    """The last round in which a client trained: none."""
    return {"round": torch.full((), -1, dtype=torch.int64, device=ctx.training.device)}
