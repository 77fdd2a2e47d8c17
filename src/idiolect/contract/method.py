"""The contract between methods and engines, whole and on one page: `Method`, `Phase`, `Download`, `Upload`.
Every function has FedAvg as its default, so a method states only how it differs; see docs/design.md."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..core import tree
from ..core.errors import ComposeError
from ..core.options import Options
from ..core.registry import Registry
from ..core.tree import Slots, Tree
from ..task.task import Batch, Task
from .context import Context, Grad, ServerContext
from .phase import Phase

__all__ = ["Download", "Method", "Paper", "Phase", "Upload", "Wrapper", "methods", "overrides", "register", "slot_of"]


class Paper(NamedTuple):
    """Where a method was published."""

    authors: str
    title: str
    venue: str
    year: int
    link: str = ""


class Download(NamedTuple):
    """What the server sends: the slots that all participants get, and those that each gets besides."""

    shared: Slots
    each: Mapping[int, Slots] = {}

    def of(self, client: int) -> Slots:
        """Everything that one client gets."""
        return {**self.shared, **self.each.get(client, {})}


@dataclass(frozen=True)
class Upload:
    """What a client sends back: slots and, for slots that are not sent whole, which coordinates are."""

    slots: Slots
    masks: Slots = field(default_factory=dict)

    @property
    def weight(self) -> Tensor:
        """The client's number of training samples."""
        return self.slots["weight"]["samples"]


def slot_of(slot: str, model: int) -> str:
    """Where the server keeps a slot of the clients' `model`-th network: `params`, `params@1`, ..."""
    return slot if model == 0 else f"{slot}@{model}"


@dataclass(frozen=True)
class Method(Options):
    """FedAvg, function by function. Client code is written for one client; see the rules in docs/design.md."""

    name: ClassVar[str] = "method"
    title: ClassVar[str] = ""
    paper: ClassVar[Paper | None] = None
    kind: ClassVar[str] = "personalized"
    reveals: ClassVar[str] = "the trained model"
    """What leaves a client, in words; `sends` names the slots."""
    stays: ClassVar[str] = ""
    """What stays on the client, in words."""
    caution: ClassVar[str] = ""
    """What those who care for privacy should know besides."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    identities: ClassVar[Mapping[str, str]] = {}
    """Neutral cases: an expression of this method -> the expression that it must equal."""
    identity_tolerance: ClassVar[float] = 0.0
    """To the bit where models are averaged; 1e-6 per round where updates are."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs beyond parameters: `public` data, several `models`, `server models` (the latest of every client),
    `server training`; a `holdout` is said apart."""
    sends: ClassVar[tuple[str, ...]] = ("params", "buffers", "weight")
    """The slots that may leave a client; nothing else does."""
    unwrappable: ClassVar[str] = ""
    """Why wrappers that act on the one federated model cannot ride on this method."""
    loop_only: ClassVar[str] = ""
    """Why it cannot be traced for many clients at once."""
    one_network: ClassVar[str] = ""
    """Why all clients need the same network."""
    norm_stats: ClassVar[str] = "average"
    eval_batch: ClassVar[int | None] = None
    min_batch: ClassVar[int] = 1
    holdout: ClassVar[float] = 0.0
    setup_rounds: ClassVar[int] = 0
    """Rounds before the first, with all clients; `ctx.round` is negative in them."""

    # -- both sides ------------------------------------------------------------------------------

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra networks beside the model (a gate, a policy, a hyper-network)."""
        return {}

    def private(self, task: Task) -> frozenset[str]:
        """The model's parameters (and buffers) that stay on the client, by name."""
        return frozenset()

    def kept(self, ctx: Context | ServerContext) -> frozenset[str]:
        """`private` and what the run's policy for normalisation keeps local."""
        stats = frozenset(ctx.task.net.buffers) if ctx.norm_stats == "local" else frozenset[str]()
        affine = ctx.task.norms if ctx.norm_affine == "local" else frozenset[str]()
        return self.private(ctx.task) | stats | affine

    def variant(self, index: int) -> Hashable:
        """A static fact that changes shapes (a width, a budget); engines group clients by it."""
        return None

    def check(self, task: Task) -> None:
        """Raise an error, before anything runs, if the options do not fit the model."""
        self.private(task)

    # -- server ----------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """The server's slots before the first round."""
        return {slot_of(s, m): each for m, task in enumerate(ctx.tasks) for s, each in task.initial.items()}

    def select(self, ctx: ServerContext) -> Sequence[int]:
        """This round's participants: a uniform share, all of them during set-up."""
        if ctx.round < 0:
            return ctx.clients
        count = max(1, round(ctx.participation * len(ctx.clients)))
        chosen = ctx.rng("select").choice(len(ctx.clients), size=count, replace=False)
        return sorted(ctx.clients[at] for at in chosen)

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """What participants get; never changes the server's state."""
        kept = self.kept(ctx)
        model = [
            {s: tree.drop(server[slot_of(s, m)], kept) for s in ("params", "buffers")} for m in range(len(ctx.tasks))
        ]
        if len(model) == 1:
            return Download(model[0])
        return Download({}, {i: model[ctx.model_of[i]] for i in ids})

    def welcome(self, ctx: ServerContext, server: Slots, index: int) -> Slots:
        """What a client gets that was never part of the federation."""
        return self.download(ctx, server, (index,)).of(index)

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The server's slots after a round: the mask-aware weighted mean; what nobody sent keeps its value."""
        after = dict(server)
        for m in range(len(ctx.tasks)):
            here = {i: each for i, each in uploads.items() if ctx.model_of.get(i, 0) == m and "params" in each.slots}
            if here:
                after |= {
                    slot_of(s, m): self.average(ctx, server[slot_of(s, m)], here, s) for s in ("params", "buffers")
                }
        return after

    @staticmethod
    def average(
        ctx: ServerContext, before: Tree, uploads: Mapping[int, Upload], slot: str, denominator: str = "uploaders"
    ) -> Tree:
        """The weighted mean of one slot over those who sent it."""
        trees = [each.slots.get(slot, {}) for each in uploads.values()]
        masks = [each.masks.get(slot) for each in uploads.values()]
        return tree.mean(trees, ctx.weights(uploads), masks, before, denominator)

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """What the server decided this round, as named numbers for the results."""
        return {}

    # -- client ----------------------------------------------------------------------------------

    def client_init(self, ctx: Context) -> Slots:
        """A client's own slots before it first trains."""
        kept = self.kept(ctx)
        own = tree.pick({**ctx.initial["params"], **ctx.initial["buffers"]}, kept)
        return {"private": own} if own else {}

    def assemble(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The model a client has now: what it downloaded and, over it, what it keeps private."""
        own = client.get("private", {})
        return {
            slot: {n: own[n] if n in own else download[slot][n] for n in leaves} for slot, leaves in ctx.initial.items()
        }

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The working slots that local training starts from."""
        return self.assemble(ctx, client, download)

    def phases(self, ctx: Context) -> Sequence[Phase]:
        """The schedule of local training; may depend on the round and on `ctx.newcomer`, never on data."""
        return (Phase(),)

    def enter(self, ctx: Context, work: Slots) -> Slots:
        """What happens between phases, before `ctx.phase` begins."""
        return work

    def step(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """One step of local training on one batch."""
        return ctx.descend(work, "params", ctx.grad(work, "params", batch), batch)

    def update(self, ctx: Context, work: Slots, slot: str, grad: Grad, batch: Batch, lr: float) -> Slots:
        """One optimiser step on one slot, which every `ctx.descend` comes through."""
        return ctx.log(ctx.move(work, slot, grad, lr), grad, batch)

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """The client's slots after the round, and what it sends."""
        kept = self.kept(ctx)
        own = tree.pick({**work["params"], **work["buffers"]}, kept)
        shared = {slot: tree.drop(work[slot], kept) for slot in ("params", "buffers")}
        client = {**client, "private": own} if own else client
        if not any(shared.values()):
            return client, Upload({})
        return client, Upload({**shared, "weight": {"samples": ctx.samples}})

    def view(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """What the client would predict with now: a pure function of its slots and the newest download."""
        return self.assemble(ctx, client, download)

    def after_local(self, ctx: Context, client: Slots, work: Slots) -> Slots:
        """What the client would predict with right after local training, before the server answers."""
        return {slot: work[slot] for slot in ("params", "buffers")}

    def predict(self, ctx: Context, view: Slots, x: Tensor) -> Tensor:
        """The outputs of a view on a batch of inputs."""
        return ctx.task.forward(view["params"], view["buffers"], x).outputs

    def adapt(self, ctx: Context) -> Sequence[Phase]:
        """Phases of `tune` on a throw-away copy of the view before it predicts."""
        return (Phase("stats", slots=(), epochs=1),) if ctx.norm_stats == "recompute" else ()

    def onboard(self, ctx: Context) -> Sequence[Phase]:
        """Phases of `tune` that an unseen client trains its view with; without them it predicts as it is."""
        return (Phase("onboard"),)

    def tune(self, ctx: Context, view: Slots, batch: Batch) -> Slots:
        """One step of `adapt` or `onboard` on a copy of the view: plain SGD on the model."""
        if ctx.phase.name == "stats":
            return {**view, "buffers": running_stats(ctx, view, batch)}
        return ctx.move(view, "params", ctx.grad(view, "params", batch), ctx.rate)

    def records(self, ctx: Context, client: Slots) -> dict[str, Tensor]:
        """Named numbers about a client's state, reported with its metrics."""
        return {}


def running_stats(ctx: Context, view: Slots, batch: Batch) -> Tree:
    """The buffers after one more batch of a pass in which all batches of the client count alike."""
    momentum = ctx.task.stat_momentum
    blank = {n: torch.zeros_like(leaf) if n in momentum else leaf for n, leaf in view["buffers"].items()}
    after = ctx.task.forward(view["params"], blank, batch.x, train=True).buffers
    share = 1.0 / (ctx.step + 1)
    seen = {n: tree.mix({n: after[n] / factor}, view["buffers"], share)[n] for n, factor in momentum.items()}
    return {**view["buffers"], **seen}


@dataclass(frozen=True)
class Wrapper(Method):
    """A method that rides on another: it delegates everything, and touches only `params`, its mask and its
    own slots. Subclasses override a function and call `self.inner`'s."""

    inner: Method

    kind: ClassVar[str] = "wrapper"
    adds: ClassVar[tuple[str, ...]] = ()
    """The slots that the wrapper itself sends."""
    touches_model: ClassVar[bool] = True
    """Whether it acts on the one federated model, which some methods do not have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.touches_model and self.inner.unwrappable:
            raise ComposeError(f"{self.name} cannot ride on {self.inner.name}: {self.inner.unwrappable}")

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the inner method sends, and what the wrapper adds."""
        return self.inner.sends + self.adds


def _delegated(name: str) -> Any:
    def call(self: Wrapper, *args: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*args, **named)

    call.__doc__ = f"The inner method's `{name}`."
    return call


def _inherited(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name), doc=f"The inner method's `{name}`.")


_FACTS = (
    "identity_tolerance needs unwrappable loop_only one_network norm_stats eval_batch min_batch holdout setup_rounds"
)
for _name in _FACTS.split():
    setattr(Wrapper, _name, _inherited(_name))
for _name, _held in vars(Method).items():
    if callable(_held) and not _name.startswith("_") and _name != "average":
        setattr(Wrapper, _name, _delegated(_name))


def overrides(method: Method, name: str) -> bool:
    """Whether a method, at any level of wrapping, has its own version of one of the contract's functions."""
    base: type[Method] = Wrapper if isinstance(method, Wrapper) else Method
    own = getattr(type(method), name) is not getattr(base, name)
    return own or (isinstance(method, Wrapper) and overrides(method.inner, name))


methods: Registry[Method] = Registry("method", Method, "idiolect.methods")
register = methods.register
