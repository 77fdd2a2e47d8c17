"""APPLE: every client learns which of all clients' core models, and how much of each, make up its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Needs,
    Phase,
    Refuses,
    ServerContext,
    Slots,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ..contract.parts.collection import Collection

# More than any other reason to ask for a core.
NEVER_SEEN = 1e4


@register("apple")
@dataclass(frozen=True)
class APPLE(Collection):
    r"""APPLE (Luo and Wu, IJCAI 2022): adaptive personalized cross-silo federated learning.

    Client i predicts with the personal model :math:`w_i^{(p)} = \sum_j p_{ij} w_j^{(c)}` of all clients' core models.
    It trains its own core and its directed relations :math:`p_i` (any numbers) to minimise

    .. math:: F_i(w_i^{(p)}) + \lambda(r) \frac{\mu}{2} \|p_i - p_0\|^2, \quad p_0 = (n_1, \dots, n_N) / n.

    With the loss gradient g at the personal model, the core moves along :math:`p_{ii}\, g` and the relations along
    :math:`\langle g, w_j^{(c)} \rangle + \lambda(r) \mu (p_{ij} - p_{0j})`. :math:`\lambda(r)` falls from 1 to 0 within
    the share `until` of the rounds. Only the core is sent. All cores are known from the start: they begin alike, and
    before the first round each client tells the server its number of samples.

    With many clients :math:`p_{ii}` is small at first, and so are the core's steps: choose a larger rate than for other
    methods, a larger `core_rate`, or `prior=own`, with which each client starts from its own core alone.

    `cap` limits how many cores are sent to a client each round. It asks for those that it has never seen, then for
    random ones, with odds of `base` to the power of :math:`|p_{ij}|`, and keeps the others as it last saw them.

    Hand-worked: cores 1 and 3, p = (0.5, 0.25), p_0 = (0.5, 0.5), mu = 0.4, first round: the personal model of the
    first client is 0.5 + 0.75 = 1.25. With loss gradient 2 there its core moves along 0.5 * 2 = 1 and its relations
    along 2 * 1 = 2 and 2 * 3 + 0.4 (0.25 - 0.5) = 5.9.
    """

    about = About(
        "Learned mixtures of all clients' core models",
        paper="luo2022apple",
        reveals="the core model; under a cap, which cores it asks for; and its number of samples",
        stays="the relations",
        caution="all clients receive all cores, or those they ask for",
    )
    needs = Needs(setup_rounds=1)
    refuses = Refuses(wrapping="its clients train a core beside all others' cores, so there is no one federated model")
    identities: ClassVar[dict[str, str]] = {"apple(prior=own, lr_p=0)": "local"}

    lr_p: float | None = option(None, min=0.0, help="rate of the relations; none is a tenth of the run's")
    core_rate: float = option(1.0, above=0.0, help="multiple of the run's rate for the core, whose gradient has p_ii")
    mu: float = option(0.1, min=0.0, help="pull of the relations towards their prior")
    until: float = option(0.1, min=0.0, max=1.0, help="share of the rounds after which the pull is zero")
    fading: str = option("cosine", choices=("cosine", "exponential"), help="how the pull falls until then")
    prior: str = option("samples", choices=("samples", "own"), help="first relations: all by samples, or the own core")
    cap: int | None = option(None, min=1, help="most cores that a client gets each round; none is all")
    base: float = option(100.0, min=1.0, help="how much likelier, under a cap, cores of high relation are asked for")

    # -- server ------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """Nobody has told its number of samples yet."""
        device = next(iter(ctx.initial["params"].values())).device
        return {**super().server_init(ctx), "apple.samples": {"n": torch.zeros(len(ctx.clients), device=device)}}

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The new cores, numbers of samples and requests."""
        trained = {i: each for i, each in uploads.items() if "params" in each.slots}
        after = super().aggregate(ctx, server, trained)
        places = torch.tensor([ctx.clients.index(i) for i in uploads], device=server["apple.samples"]["n"].device)
        told = torch.stack([each.weight for each in uploads.values()])
        after["apple.samples"] = {"n": server["apple.samples"]["n"].index_copy(0, places, told)}
        asked = {i: each.slots["apple.request"] for i, each in trained.items() if "apple.request" in each.slots}
        return {**after, **{f"apple.request@{i}": each for i, each in asked.items()}}

    def core(self, ctx: ServerContext, server: Slots, client: int) -> Tree:
        """A client's core; before it first trains that is the initial model."""
        names = tree.drop(ctx.initial["params"], self.kept(ctx))
        return tree.pick(server.get(f"latest@{client}", ctx.initial["params"]), names)

    def shares(self, server: Slots) -> Tensor:
        """p_0: the clients' shares of all samples, or equal ones as long as none are known."""
        n = server["apple.samples"]["n"]
        n = n if float(n.sum()) > 0 else torch.ones_like(n)
        return n / n.sum()

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """All cores, or those asked for, but none during set-up; p_0, and which place in it is the client's own."""
        shares = self.shares(server)
        shared = {"buffers": super().download(ctx, server, ids).shared["buffers"], "apple.prior": {"p": shares}}
        places = torch.eye(len(shares), device=shares.device)
        each: dict[int, Slots] = {i: {"apple.me": {"here": places[ctx.clients.index(i)]}} for i in ids}
        if self.cap is None:
            everybody = ctx.clients if ctx.round >= 0 else ()
            cores = {f"apple.core/{k}": self.core(ctx, server, j) for k, j in enumerate(everybody)}
            return Download({**shared, **cores}, each)
        for i in ids:
            asked = self.asked(ctx, server, i)
            chosen = [ctx.clients[int(k)] for k in asked]
            cores = {f"apple.core/{k}": self.core(ctx, server, j) for k, j in enumerate(chosen)}
            each[i] = {**each[i], **cores, "apple.ids": {"ids": asked}}
        return Download(shared, each)

    def asked(self, ctx: ServerContext, server: Slots, client: int) -> Tensor:
        """The places of the cores that a client asked for; any others before it first could."""
        if (held := server.get(f"apple.request@{client}")) is not None:
            return held["ids"]
        others = [k for k, j in enumerate(ctx.clients) if j != client]
        drawn = ctx.rng(f"apple {client}").permutation(others)[: self.cap if ctx.round >= 0 else 0]
        return torch.tensor(drawn.tolist(), dtype=torch.long, device=server["apple.samples"]["n"].device)

    def welcome(self, ctx: ServerContext, server: Slots, index: int) -> Slots:
        """An unseen client gets the personal model of p_0, the weighted mean of all cores."""
        cores = [self.core(ctx, server, j) for j in ctx.clients]
        mean = {"params": tree.mean(cores, self.shares(server).tolist())}
        return {**super().download(ctx, server, ()).shared, **mean}

    # -- client ------------------------------------------------------------------------------------

    def client_init(self, ctx: ClientContext) -> Slots:
        """The own core; how many others there are is known only from the first message on."""
        none, never = torch.zeros(0, device=ctx.samples.device), torch.zeros_like(ctx.samples, dtype=torch.bool)
        held = {"apple.cores": tree.map(lambda leaf: leaf[None][:0], tree.drop(ctx.initial["params"], self.kept(ctx)))}
        own = {**super().client_init(ctx), "apple.relation": {"p": none, "trained": never}}
        return {**own, **held, "apple.seen": {"seen": none > 0}} if self.cap is not None else own

    def begin(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The own core, all others beside it, and the relations."""
        prior, me, first = download["apple.prior"]["p"], download["apple.me"]["here"], client["apple.relation"]
        prior = prior if self.prior == "samples" else me
        p = torch.where(first["trained"], first["p"], prior) if len(first["p"]) else prior
        own, trained = super().begin(ctx, client, download), first["trained"]
        newest = {n: torch.where(trained, own["buffers"][n], leaf) for n, leaf in download["buffers"].items()}
        work: Slots = {
            "params": own["params"],
            "buffers": {**own["buffers"], **newest},
            "apple.relation": {"p": p},
            "apple.prior": {"p": prior},
            "apple.me": {"here": me},
        }
        sent = [each for slot, each in download.items() if slot.startswith("apple.core/")]
        if self.cap is None:
            return {**work, "apple.cores": tree.stack(sent)} if sent else work
        known, ids, numbers = len(first["p"]) > 0, download["apple.ids"]["ids"], torch.arange(len(me), device=me.device)
        like = tree.drop(ctx.initial["params"], self.kept(ctx))
        cores = client["apple.cores"] if known else tree.map(lambda leaf: torch.stack([leaf] * len(me)), like)
        for k, core in enumerate(sent):
            cores = tree.map(lambda old, new, at=ids[k : k + 1]: old.index_copy(0, at, new[None]), cores, core)
        seen = client["apple.seen"]["seen"] if known else me > 0
        return {**work, "apple.cores": cores, "apple.seen": {"seen": seen | (numbers[:, None] == ids).any(1)}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Core and relations together; the set-up round changes nothing, it only tells the number of samples."""
        if ctx.round < 0:
            return (Phase("count", slots=("apple.relation",), steps=1),)
        return (Phase(slots=("params", "apple.relation")),)

    def fade(self, ctx: ClientContext) -> float:
        """lambda(r)."""
        end = self.until * ctx.rounds
        if ctx.round >= end:
            return 0.0
        return (math.cos(math.pi * ctx.round / end) + 1) / 2 if self.fading == "cosine" else 0.001 ** (ctx.round / end)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One gradient at the personal model moves the core and the relations."""
        if ctx.phase.name == "count":
            return work
        p, me, own, cores = work["apple.relation"]["p"], work["apple.me"]["here"], work["params"], work["apple.cores"]
        grad = ctx.grad(work, "params", batch, at=personal(work))
        g = grad.tree
        core = {n: (p * me).sum() * leaf if n in cores else leaf for n, leaf in g.items()}
        along = torch.stack([(leaf * g[n]).flatten(1).sum(1) for n, leaf in cores.items()]).sum(0)
        relation = torch.where(me > 0, tree.dot(tree.pick(own, cores), g), along)
        relation = relation + self.fade(ctx) * self.mu * (p - work["apple.prior"]["p"])
        work = ctx.descend(work, "params", replace(grad, slots={"params": core}), batch, ctx.rate * self.core_rate)
        moves, rate = replace(grad, slots={"apple.relation": {"p": relation}}), ctx.rate / 10
        return ctx.descend(work, "apple.relation", moves, batch, rate if self.lr_p is None else self.lr_p)

    def end(self, ctx: ClientContext, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep core and relations, and under a cap all cores as last seen; send the core and what to be sent next."""
        after, upload = super().end(ctx, client, work)
        trained = torch.full_like(client["apple.relation"]["trained"], ctx.round >= 0)
        after["apple.relation"] = {**work["apple.relation"], "trained": trained}
        if self.cap is not None:
            after |= {slot: work[slot] for slot in ("apple.cores", "apple.seen")}
        if ctx.round < 0:
            return after, Upload({"weight": {"samples": ctx.samples}})
        asked = {"apple.request": {"ids": self.request(ctx, work)}} if self.cap is not None else {}
        return after, Upload({**upload.slots, **asked})

    def request(self, ctx: ClientContext, work: Slots) -> Tensor:
        """The places of the cores to be sent next: never seen ones, then drawn with odds base^|p|."""
        p, me = work["apple.relation"]["p"], work["apple.me"]["here"]
        draw = torch.from_numpy(ctx.rng("apple request").gumbel(size=len(p))).to(p)
        wanted = p.abs() * math.log(self.base) + draw + NEVER_SEEN * ~work["apple.seen"]["seen"]
        return torch.where(me > 0, -torch.inf, wanted).topk(min(self.cap or 0, len(p) - 1)).indices

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The personal model, of the newest cores."""
        if "apple.me" not in download:
            return super().view(ctx, client, download)
        work = self.begin(ctx, client, download)
        return {"params": personal(work), "buffers": work["buffers"]}

    def after_local(self, ctx: ClientContext, client: Slots, work: Slots) -> Slots:
        """The personal model as trained."""
        return {"params": personal(work), "buffers": work["buffers"]}


def personal(work: Slots) -> Tree:
    """The mixture of the own core, as it is now, and the others'; what is not shared is the client's own.

    >>> work = {"params": {"w": torch.tensor(1.0)}, "apple.cores": {"w": torch.tensor([9.0, 3.0])},
    ...         "apple.relation": {"p": torch.tensor([0.5, 0.25])}, "apple.me": {"here": torch.tensor([1.0, 0.0])}}
    >>> personal(work)
    {'w': tensor(1.2500)}
    """
    p, me, cores = work["apple.relation"]["p"], work["apple.me"]["here"], work["apple.cores"]

    def mixture(name: str, own: Tensor) -> Tensor:
        return (p * me).sum() * own + torch.einsum("n,n...->...", p * (1 - me), cores[name])

    return {n: mixture(n, leaf) if n in cores else leaf for n, leaf in work["params"].items()}
