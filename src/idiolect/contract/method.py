"""`Method`: FedAvg, function by function; a method states only how it differs. `Wrapper`: a method around another.

The order in which the functions are called, each round::

    server                                        client (written for one, traced for many)
    download(ctx, server, ids) ────────────────►  work = slots that it keeps, got, and made anew       (engine)
                                                  work = prepare(ctx, work)
                                                  for phase in phases(ctx):
                                                      work = phase.before(ctx, work)
                                                      for batch in phase: work = phase.step(ctx, work, batch)
                                                          └ ctx.grad, ctx.optimize ─► optimizer_step
                                                  work = finish(ctx, work)
    sums of summand(ctx, server, upload) ◄──────  declared slots of work are kept and sent             (engine)
    server = aggregate(ctx, server, sums, each)

    evaluation: model = personal_model(ctx, slots that it keeps and gets), then adapt's phases on a copy of it (those
    of onboard before them for a client that never trained), then predict(ctx, model, x); global_model(ctx, what all
    clients get) is the shared model itself, which predicts as the network does

Slots are `dict[str, Tree]`, a tree is `dict[str, Tensor]`. Nothing is changed in place; a function returns new slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core import tree
from ..core.errors import ComposeError
from ..core.options import Options
from ..core.registry import Registry
from ..core.sums import Sums
from ..core.tree import Slots
from ..task.task import Batch, Task
from .about import About, Needs, Refuses
from .context import ClientContext, OptimizerStep, RoundContext, ServerContext
from .messages import Download, Upload, Uploads
from .phase import Phase
from .slots import Slot, buffers_of, shared, slot_of
from .statistics import recompute_statistics


@dataclass(frozen=True)
class Method(Options):
    """FedAvg. The fields of a subclass are its options; constructors only store them."""

    name: ClassVar[str] = "method"
    about: ClassVar[About] = About("")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options by name: the paper's letter, the authors' program."""
    identities: ClassVar[Mapping[str, str]] = {}
    """Neutral cases: an expression of this method -> the one that it must equal, to the bit; `nearly fedavg` is to a
    relative 1e-6 per round, for sums in another order."""
    needs: ClassVar[Needs] = Needs()
    refuses: ClassVar[Refuses] = Refuses()

    def __init_subclass__(cls) -> None:
        """A class without a name of its own is called as it is, and not like the method that it derives from."""
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    # -- declared, from the options alone -----------------------------------------------------------

    @property
    def slots(self) -> Mapping[str, Slot]:
        """What becomes of every slot; one that `prepare` adds for its own use need not be declared."""
        return {"params": shared(holds="model")}

    def private_names(self, task: Task) -> frozenset[str]:
        """The model's parameters and buffers that stay on the client, by name."""
        return frozenset()

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra networks beside the model (a gate, a policy, a hyper-network), initialised alike everywhere."""
        return {}

    def variant(self, index: int) -> Hashable:
        """A static fact of a client that changes shapes (a width, a budget); engines group clients by it."""
        return None

    def check(self, task: Task) -> None:
        """Raise an error, before anything runs, if the options do not fit the model."""
        self.private_names(task)

    # -- server -------------------------------------------------------------------------------------

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """What clients get: all slots that go down, without private names. An id that is not among `ctx.clients` never
        takes part. Called for participants and, with the newest slots, for evaluation; changes nothing."""
        private, one = ctx.private_names, len(ctx.tasks) == 1
        common: Slots = {}
        by_network: list[Slots] = [{} for _ in ctx.tasks]
        for name, slot in self.slots.items():
            if not slot.down:
                continue
            if slot.holds == "other":
                common[name] = server[name]
                continue
            for m, sent in enumerate(by_network):
                for part in (name, buffers_of(name)) if slot.holds == "model" else (name,):
                    sent[part] = tree.drop(server[slot_of(part, m)], private)
        if one:
            return Download({**by_network[0], **common})
        return Download(common, {i: by_network[ctx.network_of[i]] for i in ids})

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """What of one upload enters the sums."""
        return upload

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The server's slots after a round.

        Args:
            ctx: the server's context.
            server: its slots before.
            sums: per slot that was sent, sums over its senders; of a client's second network in `params@1`, and so on.
            each: the single uploads, as far as their slots are declared with `up="each"`.
        """
        return {**server, **{slot: sums[slot].mean(server[slot]) for slot in sums if slot in server}}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """What the server decided this round, as named numbers for the results."""
        return {}

    def global_model(self, ctx: RoundContext, common: Slots) -> Slots | None:
        """The shared model itself, out of what all clients get alike, which predicts without anything of a client;
        None where that is no whole model: some of it is private, each client gets its own, or networks differ."""
        model = {slot: common.get(slot, {}) for slot in ("params", "buffers")}
        return model if all(model[slot].keys() == names.keys() for slot, names in ctx.initial.items()) else None

    # -- client -------------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Before training."""
        return work

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The schedule of local training; may depend on the round and on `ctx.newcomer`, never on data."""
        return (Phase(self.step),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One step of local training on one batch."""
        return ctx.optimize(work, "params", ctx.grad(work, "params", batch), batch)

    @property
    def optimizer_step(self) -> OptimizerStep | None:
        """A function that every `ctx.optimize` calls in place of the optimiser's own step; with none, engines may take
        plain SGD steps their own way."""
        return None

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """After training. A slot that is left out is not sent, and one of the client stays as it was; `mask_of(slot)`
        says which coordinates of a slot are sent, if not all."""
        return work

    # -- prediction -----------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """What the client predicts with, from the slots that it keeps and gets (without `prepare`), or from those after
        `finish` (`just_trained`). With `ctx.newcomer` it has never trained."""
        return {slot: work[slot] for slot in ("params", "buffers")}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The outputs of a personal model on a batch of inputs: of its slots, the networks and options alone. What it
        needs to know of the client's samples or classes, `personal_model` puts into a slot."""
        return ctx.task.forward(model["params"], model["buffers"], x).outputs

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """Phases on a throw-away copy of the personal model before it predicts."""
        return ()

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """Phases that a client which never takes part trains its personal model with; without them it predicts as it
        is."""
        return (Phase(self.adapt_step, "onboard"),)

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """One step of `adapt` or `onboard`: plain SGD on the model."""
        return ctx.apply(model, "params", ctx.grad(model, "params", batch))

    def recompute_statistics(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The personal model with running statistics that have seen one more batch, where the run recomputes them."""
        return recompute_statistics(ctx, model, batch)

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """Named numbers about the slots that a client keeps, reported with its metrics."""
        return {}


@dataclass(frozen=True)
class Wrapper(Method):
    """A method around another. Every function is the inner method's; a subclass overrides some and calls those of
    `self.inner`. It acts on `params`, its mask and its own slots only. `step` is not passed on: phases carry their
    steps, so a wrapper changes them in `phases`, or comes between in `optimizer_step`."""

    inner: Method

    touches_model: ClassVar[bool] = True
    """Whether it acts on the one federated model, which some methods do not have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.touches_model and self.inner.refuses.wrapping:
            raise ComposeError(f"{self.name} cannot wrap {self.inner.name}: {self.inner.refuses.wrapping}")

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The inner method's."""
        return self.inner.needs

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """The inner method's."""
        return self.inner.refuses

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The inner method's; a wrapper adds its own."""
        return self.inner.slots

    def private_names(self, task: Task) -> frozenset[str]:
        """The inner method's."""
        return self.inner.private_names(task)

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The inner method's."""
        return self.inner.modules(task)

    def variant(self, index: int) -> Hashable:
        """The inner method's."""
        return self.inner.variant(index)

    def check(self, task: Task) -> None:
        """The inner method's."""
        self.inner.check(task)

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The inner method's, and the slots that the wrapper sends down."""
        sent = self.inner.download(ctx, server, ids)
        extra = {name: server[name] for name, slot in self.slots.items() if slot.down and name not in self.inner.slots}
        return Download({**sent.shared, **extra}, sent.each) if extra else sent

    def summand(self, ctx: ServerContext, server: Slots, upload: Upload) -> Upload:
        """The inner method's."""
        return self.inner.summand(ctx, server, upload)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The inner method's."""
        return self.inner.aggregate(ctx, server, sums, each)

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The inner method's."""
        return self.inner.server_records(ctx, server)

    def global_model(self, ctx: RoundContext, common: Slots) -> Slots | None:
        """The inner method's."""
        return self.inner.global_model(ctx, common)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's."""
        return self.inner.prepare(ctx, work)

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's."""
        return self.inner.phases(ctx)

    @property
    def optimizer_step(self) -> OptimizerStep | None:
        """The inner method's."""
        return self.inner.optimizer_step

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's."""
        return self.inner.finish(ctx, work)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The inner method's."""
        return self.inner.personal_model(ctx, work)

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """The inner method's."""
        return self.inner.predict(ctx, model, x)

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's."""
        return self.inner.adapt(ctx)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's."""
        return self.inner.onboard(ctx)

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The inner method's."""
        return self.inner.adapt_step(ctx, model, batch)

    def recompute_statistics(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The inner method's."""
        return self.inner.recompute_statistics(ctx, model, batch)

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The inner method's."""
        return self.inner.client_records(ctx, client)


def default_inner() -> Method:
    """What a wrapper wraps if nothing else is said."""
    return methods.build("fedavg")


def unwrap(method: Method) -> Method:
    """The innermost method."""
    while isinstance(method, Wrapper):
        method = method.inner
    return method


def has_one_model(method: Method) -> bool:
    """Whether all clients predict with one and the same model (`About.kind`); a wrapper that acts on the model is
    expected to make it personal."""
    while isinstance(method, Wrapper) and not method.touches_model:
        method = method.inner
    return method.about.kind == "global"


def predicts_its_own_way(method: Method) -> bool:
    """Whether predictions are more than the network's outputs: of an ensemble, a gated model, or other features."""
    overrides = type(method).predict not in (Method.predict, Wrapper.predict)
    return overrides or (isinstance(method, Wrapper) and predicts_its_own_way(method.inner))


methods: Registry[Method] = Registry("method", Method, home="idiolect.methods", group="idiolect.methods")
register = methods.register
