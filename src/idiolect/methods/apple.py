"""APPLE: every client learns which of all clients' core models, and how much of each, make up its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import About, Batch, Download, Phase, Slots, Sums, Tree, Uploads, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.parts.collection import OWN, Collection, latest
from ..contract.parts.draws import draw_like
from ..contract.phase import look
from ..contract.slots import Slot, model_in, private
from ..core.randomness import generator

RELATION, CORES, SEEN = "apple.relation", "apple.cores", "apple.seen"
REQUEST, SAMPLES = "apple.request", "apple.samples"
# More than any other reason to ask for a core.
NEVER_SEEN = 1e4


@register("apple")
@dataclass(frozen=True)
class APPLE(Collection):
    r"""APPLE (Luo and Wu, IJCAI 2022): adaptive personalized cross-silo federated learning.
    Run it: ``idiolect run apple``.

    Client i predicts with the personal model :math:`w_i^{(p)} = \sum_j p_{ij} w_j^{(c)}` of all clients' core models.
    It trains its own core and its directed relations :math:`p_i` (any numbers) to minimise

    .. math:: F_i(w_i^{(p)}) + \lambda(r) \frac{\mu}{2} \|p_i - p_0\|^2, \quad p_0 = (n_1, \dots, n_N) / n.

    With the loss gradient g at the personal model, the core moves along :math:`p_{ii}\, g` and the relations along
    :math:`\langle g, w_j^{(c)} \rangle + \lambda(r) \mu (p_{ij} - p_{0j})`. :math:`\lambda(r)` falls from 1 to 0 within
    the share `until` of the rounds. Only the core is sent. All cores are known from the start: they begin alike, or
    with `start=drawn` each as a draw of its own, which everybody can repeat from the run's seed. Before the first round
    each client tells the server its number of samples.

    With many clients :math:`p_{ii}` is small at first, and so are the core's steps: choose a larger learning rate than
    for other methods, a larger `core_rate`, or `prior=own`, with which each client starts from its own core alone.

    `cap` limits how many cores are sent to a client each round. It asks for those that it has never seen, then for
    random ones, with odds of `base` to the power of :math:`|p_{ij}|`, and keeps the others as it last saw them.
    """

    about = About(
        "Learned mixtures of all clients' core models",
        family="mixtures of models",
        paper="luo2022apple",
        reveals="the core model; under a cap, which cores it asks for; and its number of samples",
        stays="the relations",
        caution="all clients receive all cores, or those they ask for",
    )
    needs = replace(Collection.needs, setup_rounds=1)
    refuses = replace(
        Collection.refuses,
        wrapping="its clients train a core beside all others' cores, so there is no one federated model",
        more_rounds="the pull of its relations ends after the share `until` of the rounds",
    )
    identities = {"apple(prior=own, lr_p=0)": "local"}

    lr_p: float | None = option(None, min=0.0, help="learning rate of the relations; none is a tenth of the run's")
    core_rate: float = option(
        1.0, above=0.0, help="multiple of the run's learning rate for the core, whose gradient has p_ii"
    )
    mu: float = option(0.1, min=0.0, help="pull of the relations towards their prior")
    until: float = option(0.1, min=0.0, max=1.0, help="share of the rounds after which the pull is zero")
    fading: str = option("cosine", choices=("cosine", "exponential"), help="how the pull falls until then")
    prior: str = option("samples", choices=("samples", "own"), help="first relations: all by samples, or the own core")
    start: str = option(
        "common", choices=("common", "drawn"), help="cores start alike, as the initial model, or each is drawn anew"
    )
    cap: int | None = option(None, min=1, help="most cores that a client gets each round; none is all")
    base: float = option(100.0, min=1.0, help="how much likelier, under a cap, cores of high relation are asked for")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The cores and the relations; under a cap also all cores as last seen. A request that asks for nothing goes up
        too: with it the server learns the number of samples."""
        relations = {RELATION: private(self.first_relation), REQUEST: Slot("round", no_request, up="each")}
        known = {CORES: private(self.no_cores), SEEN: private(nobody_seen)} if self.cap is not None else {}
        return {**super().slots, SAMPLES: Slot("server", nobody_counted), **relations, **known}

    def first_relation(self, ctx: ClientContext) -> Tree:
        """None yet; how many other clients there are is known only from the first message on."""
        return {"p": ctx.samples.new_zeros(0), "trained": torch.zeros_like(ctx.samples, dtype=torch.bool)}

    def no_cores(self, ctx: ClientContext) -> Tree:
        """No cores."""
        return tree.map(lambda leaf: leaf[None][:0], tree.drop(ctx.initial["params"], ctx.private_names))

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own core, all others beside it, and the relations; of slots that are prepared already, the same."""
        prior, me, first = work["apple.prior"]["p"], work["apple.me"]["here"], work[RELATION]
        prior = prior if self.prior == "samples" else me
        p = torch.where(first["trained"], first["p"], prior) if len(first["p"]) else prior
        prepared = {**work, **model_in(work, OWN)}
        buffers = tree.map(
            lambda mine, newest: torch.where(first["trained"], mine, newest), prepared["buffers"], work["buffers"]
        )
        received = [work[slot] for slot in work if slot.startswith("apple.core/")]
        work = {slot: leaves for slot, leaves in prepared.items() if not slot.startswith("apple.core/")}
        work = {**work, "buffers": buffers, RELATION: {"p": p}, "apple.prior": {"p": prior}}
        if self.cap is not None:
            work = {**work, **self.remember(ctx, work, received, known=len(first["p"]) > 0)}
        elif received:
            work = {**work, CORES: tree.stack(received)}
        return self.start_core(work, me, first["trained"]) if self.start == "drawn" and CORES in work else work

    def start_core(self, work: Slots, me: Tensor, trained: Tensor) -> Slots:
        """Before a client first trains, its core is what everybody has of it."""
        first = tree.map(lambda cores: torch.einsum("n,n...->...", me, cores), work[CORES])
        core = {n: torch.where(trained, work["params"][n], leaf) for n, leaf in first.items()}
        return {**work, "params": {**work["params"], **core}}

    def remember(self, ctx: ClientContext, work: Slots, received: Sequence[Tree], known: bool) -> Slots:
        """Under a cap: all cores as last seen, and whose have been seen."""
        me, ids = work["apple.me"]["here"], work["apple.ids"]["ids"]
        cores = work[CORES] if known else tree.stack([self.first_core(ctx, place) for place in range(len(me))])
        for k, core in enumerate(received):
            cores = tree.map(lambda old, new, at=ids[k : k + 1]: old.index_copy(0, at, new[None]), cores, core)
        seen, places = work[SEEN]["seen"] if known else me > 0, torch.arange(len(me), device=me.device)
        return {CORES: cores, SEEN: {"seen": seen | (places[:, None] == ids).any(1)}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Core and relations together; the set-up round changes nothing, it only tells the number of samples."""
        if ctx.round < 0:
            return (Phase(look, "count", slots=(RELATION,), steps=1),)
        return (Phase(self.step, slots=("params", RELATION)),)

    def fade(self, ctx: ClientContext) -> float:
        """lambda(r)."""
        end = self.until * ctx.rounds
        if ctx.round >= end:
            return 0.0
        return (math.cos(math.pi * ctx.round / end) + 1) / 2 if self.fading == "cosine" else 0.001 ** (ctx.round / end)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One gradient at the personal model moves the core and the relations."""
        p, me, core_before, cores = work[RELATION]["p"], work["apple.me"]["here"], work["params"], work[CORES]
        grad = ctx.grad(work, "params", batch, at=mix_cores(work))
        g = grad.tree
        core = {n: (p * me).sum() * leaf if n in cores else leaf for n, leaf in g.items()}
        along = torch.stack([(leaf * g[n]).flatten(1).sum(1) for n, leaf in cores.items()]).sum(0)
        relation = torch.where(me > 0, tree.dot(tree.pick(core_before, cores), g), along)
        relation = relation + self.fade(ctx) * self.mu * (p - work["apple.prior"]["p"])
        work = ctx.optimize(work, "params", replace(grad, slots={"params": core}), batch, ctx.lr * self.core_rate)
        moves = replace(grad, slots={RELATION: {"p": relation}})
        return ctx.optimize(
            work, RELATION, moves, batch, ctx.lr / 10 if self.lr_p is None else ctx.scheduled(self.lr_p)
        )

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep core and relations; send the core and what to be sent next, but nothing of them in the set-up round."""
        trained = torch.full_like(ctx.samples, ctx.round >= 0, dtype=torch.bool)
        after = {**super().finish(ctx, work), RELATION: {**work[RELATION], "trained": trained}}
        if ctx.round < 0:
            return {slot: leaves for slot, leaves in after.items() if slot != "params"}
        return after if self.cap is None else {**after, REQUEST: {"ids": self.request(ctx, work)}}

    def request(self, ctx: ClientContext, work: Slots) -> Tensor:
        """The places of the cores to be sent next: never seen ones, then drawn with odds base^|p|."""
        p, me = work[RELATION]["p"], work["apple.me"]["here"]
        draw = torch.from_numpy(ctx.rng("apple request").gumbel(size=len(p))).to(p)
        wanted = p.abs() * math.log(self.base) + draw + NEVER_SEEN * ~work[SEEN]["seen"]
        return torch.where(me > 0, -torch.inf, wanted).topk(min(self.cap or 0, len(p) - 1)).indices

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """All cores, or those asked for, but none during set-up; p_0, and which place in it is the client's own. An
        unseen client gets the personal model of p_0."""
        shares, messages = self.shares(server), dict[int, Slots]()
        shared: Slots = {"buffers": super().download(ctx, server, ids).shared["buffers"]}
        members = [i for i in ids if i in ctx.clients]
        if len(members) < len(ids):
            mean = Sums.of(
                [(self.core(ctx, server, j), float(p), None) for j, p in zip(ctx.clients, shares, strict=True)]
            )
            messages = {i: {"params": mean.mean()} for i in ids if i not in ctx.clients}
        if not members:
            return Download(shared, messages)
        places = torch.eye(len(shares), device=shares.device)
        messages |= {i: {"apple.me": {"here": places[ctx.clients.index(i)]}} for i in members}
        shared["apple.prior"] = {"p": shares}
        if self.cap is None:
            return Download({**shared, **self.cores(ctx, server, ctx.clients if ctx.round >= 0 else ())}, messages)
        for i in members:
            asked = self.read_request(ctx, server, i)
            messages[i] |= {
                **self.cores(ctx, server, [ctx.clients[int(k)] for k in asked]),
                "apple.ids": {"ids": asked},
            }
        return Download(shared, messages)

    def cores(self, ctx: ServerContext, server: Slots, clients: Sequence[int]) -> Slots:
        """The cores of some clients, as they are sent."""
        return {f"apple.core/{k}": self.core(ctx, server, j) for k, j in enumerate(clients)}

    def core(self, ctx: ServerContext, server: Slots, client: int) -> Tree:
        """A client's core; before it first trains that is the one it begins with."""
        if latest(client) not in server:
            return self.first_core(ctx, ctx.clients.index(client))
        return tree.pick(server[latest(client)], tree.drop(ctx.initial["params"], ctx.private_names))

    def first_core(self, ctx: RoundContext, place: int) -> Tree:
        """The core with which the client at a place begins: the initial model, or a draw of the same scale."""
        initial = tree.drop(ctx.initial["params"], ctx.private_names)
        if self.start == "common":
            return initial
        return draw_like(initial, generator(ctx.training.seed, "apple core", place))

    def shares(self, server: Slots) -> Tensor:
        """p_0: the clients' shares of all samples, or equal ones as long as none are known."""
        n = server[SAMPLES]["n"]
        n = n if float(n.sum()) > 0 else torch.ones_like(n)
        return n / n.sum()

    def read_request(self, ctx: ServerContext, server: Slots, client: int) -> Tensor:
        """The places of the cores that a client asked for; any others before it first could."""
        if (request := server.get(f"{REQUEST}@{client}")) is not None:
            return request["ids"]
        others = [k for k, j in enumerate(ctx.clients) if j != client]
        drawn = ctx.rng(f"apple {client}").permutation(others)[: self.cap if ctx.round >= 0 else 0]
        return torch.tensor(drawn.tolist(), dtype=torch.long, device=server[SAMPLES]["n"].device)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The new cores, numbers of samples and requests."""
        after, n = super().aggregate(ctx, server, sums, each), server[SAMPLES]["n"]
        places = torch.tensor([ctx.clients.index(i) for i in each], device=n.device)
        after[SAMPLES] = {"n": n.index_copy(0, places, torch.stack([upload.weight for upload in each.values()]))}
        requests = {f"{REQUEST}@{i}": upload.slots[REQUEST] for i, upload in each.items() if upload.slots[REQUEST]}
        return {**after, **requests}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The mixture of the newest cores; an unseen client has no place among them, and uses what it is sent."""
        if "apple.me" not in work:
            return super().personal_model(ctx, work)
        work = self.prepare(ctx, work)
        return {"params": mix_cores(work), "buffers": work["buffers"]}


def nobody_counted(ctx: ServerContext) -> Tree:
    """No client has sent its number of samples yet."""
    device = next(iter(ctx.initial["params"].values())).device
    return {"n": torch.zeros(len(ctx.clients), device=device)}


def nobody_seen(ctx: ClientContext) -> Tree:
    """No core has been seen, of nobody."""
    return {"seen": ctx.samples.new_zeros(0) > 0}


def no_request(ctx: ClientContext) -> Tree:
    """Nothing is asked for."""
    return {}


def mix_cores(work: Slots) -> Tree:
    """The mixture of the own core, as it is now, and the others'; what is not shared is the client's own.

    >>> work = {"params": {"w": torch.tensor(1.0)}, "apple.cores": {"w": torch.tensor([9.0, 3.0])},
    ...         "apple.relation": {"p": torch.tensor([0.5, 0.25])}, "apple.me": {"here": torch.tensor([1.0, 0.0])}}
    >>> mix_cores(work)
    {'w': tensor(1.2500)}
    """
    p, me, cores = work[RELATION]["p"], work["apple.me"]["here"], work[CORES]

    def mixture(name: str, core: Tensor) -> Tensor:
        return (p * me).sum() * core + torch.einsum("n,n...->...", p * (1 - me), cores[name])

    return {n: mixture(n, leaf) if n in cores else leaf for n, leaf in work["params"].items()}
