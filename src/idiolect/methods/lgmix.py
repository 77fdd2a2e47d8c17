"""LG-Mix: every client follows a mixture of its own update and the averaged one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..analysis import ratio_of_traces, trace
from ..contract import About, Method, Refuses, Slots, Sums, Tree, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.messages import Download, Uploads
from ..contract.slots import Slot, initial_buffers, nothing, private, scratch, slot_of, zero
from ..core.errors import ModelError
from ..task.task import Batch, Task

# A centred trace below this share of the raw one is round-off of float32 features: nothing varies.
NO_SPREAD = 1e-12


OWN, SEEN, RATIO = "lgmix.own", "lgmix.seen", "lgmix.ratio"
TRACE, DELTA, AFTER = "lgmix.trace", "lgmix.delta", "lgmix.after"
PART, PARTS, FOLLOWED, COUNT = "lgmix.part", "lgmix.parts", "lgmix.followed", "lgmix.count"
MEAN = "lgmix.mean"


@register("lgmix", "lg-mix")
@dataclass(frozen=True)
class LGMix(Method):
    r"""LG-Mix (Jiang et al., ICLR 2024): a client never returns to the global model u. From its own model w_c it
    measures its update, rewinds, and follows a mixture of that update and of the averaged one (eq. 1 and 2),

    .. math::
        \Delta w_c = w_c(t, K) - w_c(t), \quad \Delta u(t) = \textstyle\sum_c p_c \Delta w_c, \quad
        w_c(t+1) = w_c(t) + \lambda_c \Delta w_c + (1 - \lambda_c) \Delta u(t),

    where :math:`\lambda_c` is the mean over the client's rounds of the share of the local model in the two models'
    feature traces on its own data (eq. 5 and 6), taken batch by batch while it trains,

    .. math:: \lambda = \frac{T_c}{T_c + T}, \quad T_c = \sum_i \|h_c(x_i)\|^2, \quad T = \sum_i \|h(x_i)\|^2.

    An absent client has :math:`\Delta w_c = 0`. As its ratio then stays what it was, all global updates since its last
    round, that round's included, are applied at once when the newest u is known: with :math:`u^s` the global model of
    that round, w_c = w_c(s) + lambda Delta w_c + (1 - lambda) (u - u^s). A client without history uses u.

    Hand-worked: two clients of equal size start from 0 and train to 2 and to 4, so u = 3. The first client's features
    have squared length 4 under its own model and 1 under u: lambda = 4 / 5, and it moves to 0.8 * 2 + 0.2 * 3 = 2.2.
    If u then moves to 8 without it, it moves to 2.2 + 0.2 * 5 = 3.2.

    Running statistics are mixed like parameters; batch counters are copied from u, which takes the largest. A mixed
    running variance may fall below zero: it is kept so, and cut at zero where the model is used. What the run keeps
    local (`norm_stats=local`, `norm_affine=local`) is neither mixed nor sent. With several local epochs the traces add
    up over all of them, and `centered` subtracts the mean over all of them. Run it: ``idiolect run lgmix``.
    """

    about = About(
        "Own and average update mixed by the ratio of feature traces",
        family="mixtures of models",
        paper="jiang2024lgmix",
        reveals="the update of the client's own model",
        stays="the mixing ratios",
        caution=(
            "all own models start alike, so whoever keeps all updates knows a client's model up to one number, "
            "the ratio, per round it took part in; with missed=ignore the server keeps a model per client; with "
            "newcomers=mean clients also send what makes up their own model, to be summed"
        ),
    )
    presets = {"paper": {"include_newest": False}, "ref": {"centered": True, "feature_mode": "mixed"}}
    identities = {"lgmix(fixed=1)": "local", "lgmix(fixed=0)": "nearly fedavg"}

    centered: bool = option(False, tuned="false,true", help="subtract the mean feature (the trace of the covariance)")
    history: bool = option(True, tuned="true,false", help="use the mean of all ratios so far; else the newest")
    include_newest: bool = option(True, help="the mean includes this round's ratio; else it does from the next one on")
    newcomers: str = option(
        "global",
        choices=("global", "mean"),
        help="unseen clients get the global model, or the mean of all personal ones",
    )
    missed: str = option(
        "lazy", choices=("lazy", "ignore"), help="global updates of missed rounds: followed, or left out"
    )
    feature_mode: str = option(
        "train",
        choices=("train", "eval", "mixed"),
        help="mode of both models when features are taken; mixed is train for the own one, eval for the global one",
    )
    pool: str = option(
        "mean", choices=("mean", "sum"), help="dense features: averaged over positions, or every position counts"
    )
    server_lr: float = option(1.0, above=0.0, help="server's learning rate, by which the averaged update is multiplied")
    fixed: float | None = option(None, min=0.0, max=1.0, help="use this ratio instead of measuring one")

    def check(self, task: Task) -> None:
        """The ratio is measured on the features, and centring needs to know how many there are."""
        super().check(task)
        if self.fixed is None:
            task.require_features(self.name)
        if self.centered:
            width(task)

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """There is no model to wrap; to leave out missed updates the server has to know who sent one."""
        return Refuses(
            wrapping="its clients never start from the global model, so there is none to act on",
            other_networks="newcomers=mean averages the models of one network" if self.newcomers == "mean" else "",
            summing="it keeps the model that each client's last round led to" if self.missed == "ignore" else "",
        )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The server's u goes down, updates come up; a client keeps its own model, the u it last trained beside and its
        ratios."""
        return {
            "params": Slot("server", down=True, holds="parameters"),
            "buffers": Slot("server", initial_buffers, down=True, holds="parameters"),
            OWN: private(first_own),
            SEEN: private(first_seen),
            RATIO: private(zero("sum", "count", "newest")),
            TRACE: scratch(self.no_trace),
            DELTA: Slot("round", nothing, up="each" if self.missed == "ignore" else "sum", holds="parameters"),
            **({PART: Slot("round", nothing, up="sum", weigh="uniform")} if self.newcomers == "mean" else {}),
        }

    def no_trace(self, ctx: RoundContext) -> Tree:
        """Empty sums: of squared features per model and, to centre them, of features and of samples."""
        zero = torch.zeros((), dtype=torch.float64, device=ctx.training.device)
        if not self.centered:
            return {"local": zero, "global": zero}
        none = zero.expand(width(ctx.task)).clone()
        return {"local": zero, "global": zero, "local.sum": none, "global.sum": none, "samples": zero}

    def ratio(self, work: Slots) -> Tensor:
        """lambda: the mean of the ratios so far, or the newest; of one ratio alone, that one."""
        ratio = work[RATIO]
        if not self.history:
            return ratio["newest"]
        if self.include_newest:
            return ratio["sum"] / ratio["count"]
        earlier = (ratio["sum"] - ratio["newest"]) / (ratio["count"] - 1).clamp_min(1)
        return torch.where(ratio["count"] > 1, earlier, ratio["newest"])

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Train the own model, never u; u stands beside it for its features."""
        model, now = self.model_now(ctx, work), join(work)
        start = join(model)
        reference = part(ctx, {**start, **now})
        return {
            **work,
            **model,
            "lgmix.start": start,
            SEEN: tree.pick(now, work[SEEN]),
            "lgmix.global": reference["params"],
            "lgmix.global.buffers": reference["buffers"],
            **({PARTS: self.part_of(work, ctx.newcomer)} if self.newcomers == "mean" else {}),
        }

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the own model; both models' features on the batch enter the sums (Algorithm 1, line 6)."""
        before, grad = work, ctx.grad(work, "params", batch)
        work = ctx.optimize(work, "params", grad, batch)
        if self.fixed is not None:
            return work
        train, sums = self.feature_mode == "train", dict(work[TRACE])
        reference = ctx.task.forward(work["lgmix.global"], work["lgmix.global.buffers"], batch.x, train)
        own = (
            ctx.task.forward(before["params"], before["buffers"], batch.x)
            if self.feature_mode == "eval"
            else grad.scored
        )
        for model, features in (("local", own.features), ("global", reference.features)):
            h, weight = self.rows(ctx, features, batch.weight)
            sums[model] = sums[model] + trace(h, weight)
            if self.centered:
                sums[f"{model}.sum"] = sums[f"{model}.sum"] + weight @ h
        if self.centered:
            sums["samples"] = sums["samples"] + weight.sum()
        return {**work, TRACE: sums}

    def rows(self, ctx: ClientContext, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Features as rows and the rows' weights: a row per sample, with `pool=sum` a row per position."""
        h, weight = features.to(torch.float64), weight.to(torch.float64)
        if h.ndim == 2:
            return h, weight
        if hasattr(head(ctx.task), "in_channels"):
            h = h.movedim(1, -1)  # a convolution has its channels second, a linear layer last
        h = h.flatten(1, -2)
        if self.pool == "mean":
            return h.mean(1), weight
        return h.flatten(0, 1), weight[:, None].expand(h.shape[:2]).flatten()

    def measure_ratio(self, ctx: ClientContext, sums: Tree, ratios: Tree) -> Tensor:
        """This round's ratio (eq. 6): 0.5 where no feature is active, the mean so far (or 0.5) if not finite."""
        if self.fixed is not None:
            return torch.full_like(ratios["newest"], self.fixed)
        before = torch.where(ratios["count"] > 0, ratios["sum"] / ratios["count"].clamp_min(1), 0.5)
        local, global_ = (self.spread(ctx, sums, m) if self.centered else sums[m] for m in ("local", "global"))
        return ratio_of_traces(local, global_, before.to(local.dtype)).to(before.dtype)

    @staticmethod
    def spread(ctx: ClientContext, sums: Tree, model: str) -> Tensor:
        """The trace of centred features, sum |h|^2 - n |mean h|^2; one sample alone has none."""
        spread = sums[model] - sums[f"{model}.sum"].square().sum() / sums["samples"]
        return torch.where((ctx.samples < 2) | (spread <= NO_SPREAD * sums[model]), 0.0, spread)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Rewind to w_c + lambda delta, which becomes equation 2 once u has moved; send delta."""
        start, trained, seen, ratios = work["lgmix.start"], join(work), work[SEEN], work[RATIO]
        newest = self.measure_ratio(ctx, work[TRACE], ratios)
        after = {
            SEEN: seen,
            RATIO: {"sum": ratios["sum"] + newest, "count": ratios["count"] + 1, "newest": newest},
            DELTA: {n: leaf - start[n] if n in seen else leaf for n, leaf in trained.items()},
            "lgmix.trained": trained,
        }
        # Written as a mixture of models, so that ratios 0 and 1 give the start and the end to the bit.
        own = {**trained, **tree.mix(tree.pick(trained, seen), start, self.ratio(after))}
        if self.newcomers == "mean":
            after[PART] = tree.sub(self.part_of({**after, OWN: own}), work[PARTS])
        return {**after, OWN: own}

    def part_of(self, client: Slots, newcomer: bool = False) -> Tree:
        """What the server holds of a client so as to know the sum of all w_c = part + followed * u, whatever u becomes;
        of a newcomer nothing. With `missed=ignore` w_c stays where its last round led, so it is held whole."""
        own, seen, followed = client[OWN], client[SEEN], 1 - self.ratio(client)
        after = client.get(AFTER, {})
        part = {n: own[n] + followed * ((after[n] if after else 0) - seen[n]) for n in seen}
        held = {**part, FOLLOWED: torch.zeros_like(followed) if after else followed, COUNT: torch.ones_like(followed)}
        return tree.zeros_like(held) if newcomer else held

    # -- server: u, moved by the averaged updates --------------------------------------------------

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """u(t+1) = u(t) + server_lr * sum of p_c delta_c (Algorithm 1, line 8)."""
        after = dict(server)
        for m in range(len(ctx.tasks)):
            if slot_of(DELTA, m) not in sums:
                continue
            moves = sums[slot_of(DELTA, m)].mean()
            for slot in ("params", "buffers"):
                after[slot_of(slot, m)] = self.move(server[slot_of(slot, m)], moves)
            if self.missed == "ignore":
                now = tree.pick(join({s: after[slot_of(s, m)] for s in ("params", "buffers")}), moves)
                here = [i for i in each if ctx.network_of.get(i, 0) == m]
                after |= {f"lgmix.after@{i}": now for i in here}
        if PART in sums:
            change = sums[PART].total
            held = tree.add(server.get(PARTS, tree.zeros_like(change)), change)
            if self.missed == "ignore":
                held = {**held, **follow(held, join(after)), FOLLOWED: torch.zeros_like(held[FOLLOWED])}
            after[PARTS] = held
        return after

    def move(self, leaves: Tree, moves: Tree) -> Tree:
        """The global model after its move; whole numbers are no updates and are taken over."""
        return {
            n: leaf if n not in moves else leaf + self.server_lr * moves[n] if leaf.is_floating_point() else moves[n]
            for n, leaf in leaves.items()
        }

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """u; to leave out missed updates a client also needs the u that its own last round led to."""
        sent = super().download(ctx, server, ids)
        known = [i for i in ids if f"lgmix.after@{i}" in server]
        extra = {i: {**sent.each.get(i, {}), AFTER: server[f"lgmix.after@{i}"]} for i in known}
        if PARTS in server:  # the mean of all personal models (appendix C.3)
            held, now = server[PARTS], join(server)
            mean = {n: (leaf / held[COUNT]).to(now[n].dtype) for n, leaf in follow(held, now).items()}
            extra |= {i: {**sent.each.get(i, {}), MEAN: mean} for i in set(ids) - set(ctx.clients)}
        return Download(sent.shared, {**sent.each, **extra})

    def model_now(self, ctx: ClientContext, work: Slots) -> Slots:
        """w_c by equation 2, from the own part that `finish` stored and all that u has moved since."""
        personal, seen, now = work[OWN], work[SEEN], work.get(AFTER, join(work))
        if ctx.newcomer:
            return part(ctx, {**personal, **now, **work.get(MEAN, {})})
        followed = 1 - self.ratio(work)
        return part(ctx, {**personal, **now, **{n: personal[n] + followed * (now[n] - seen[n]) for n in seen}})

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """Equation 2; right after training, the model as trained."""
        return split(ctx, work["lgmix.trained"]) if "lgmix.trained" in work else self.model_now(ctx, work)

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The mean of the client's ratios and the newest one."""
        ratios = client[RATIO]
        return {"lambda": ratios["sum"] / ratios["count"], "lambda_newest": ratios["newest"]}


def first_own(ctx: RoundContext) -> Tree:
    """The own model before the first round."""
    return join(ctx.initial)


def first_seen(ctx: RoundContext) -> Tree:
    """What is mixed of the model: numbers that are shared."""
    shared = tree.drop(join(ctx.initial), ctx.private_names)
    return {name: leaf for name, leaf in shared.items() if leaf.is_floating_point()}


def follow(held: Tree, now: Tree) -> Tree:
    """The sum of all personal models, from what the server holds of them and the newest u."""
    return {n: leaf + held[FOLLOWED] * now[n] for n, leaf in held.items() if n not in (FOLLOWED, COUNT)}


def head(task: Task) -> nn.Module:
    """The last layer itself."""
    modules: dict[str, nn.Module] = dict(task.net.module.named_modules())
    return modules.get(task.head_unit.name, task.net.module)


def width(task: Task) -> int:
    """How many features enter the last layer."""
    layer = head(task)
    for name in ("in_features", "in_channels"):
        if isinstance(count := getattr(layer, name, None), int):
            return count
    raise ModelError(
        f"lgmix: centered=true needs the number of features that enter the last layer {task.head_unit.name!r}, but a "
        f"{type(layer).__name__} does not say it; give it an attribute in_features, or use centered=false"
    )


def join(slots: Mapping[str, Tree]) -> Tree:
    """A model's parameters and buffers as one tree."""
    return {**slots["params"], **slots["buffers"]}


def split(ctx: ClientContext, model: Tree) -> Slots:
    """The inverse of `join`."""
    return {slot: {n: model[n] for n in names} for slot, names in ctx.initial.items()}


def part(ctx: ClientContext, model: Tree) -> Slots:
    """The inverse of `join`, with running variances cut at zero."""
    cut = {n: model[n].clamp_min(0) for n in ctx.task.stat_momentum if n.endswith("running_var")}
    return split(ctx, {**model, **cut})
