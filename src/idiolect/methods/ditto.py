"""Ditto: a personal model beside the global one, pulled towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract.context import Context
from ..contract.method import Method, Paper, Phase, Upload, register
from ..core import tree
from ..core.options import option
from ..core.tree import Slots
from ..task.task import Batch


@register("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    r"""Ditto (Li et al., ICML 2021): beside FedAvg's model w each client keeps its own v (Algorithm 1),

    .. math:: v \leftarrow v - \eta \bigl(\nabla f_i(v) + \lambda (v - w^t)\bigr),

    with the *received* global model :math:`w^t`. The personal model predicts.

    Hand-worked: at v = 2 with w^t = 1, loss gradient 3, lambda = 1 and eta = 0.1, v becomes 2 - 0.1 (3 + 1) = 1.6.
    """

    title: ClassVar[str] = "A personal model beside the global one, pulled towards it"
    reveals: ClassVar[str] = "the shared model as trained"
    stays: ClassVar[str] = "the personal model"
    paper: ClassVar[Paper] = Paper(
        "Li, Hu, Beirami, Smith",
        "Ditto: fair and robust federated learning through personalization",
        "ICML",
        2021,
        "arXiv:2012.04221",
    )
    identities: ClassVar[dict[str, str]] = {"ditto(lam=0)": "local"}

    lam: float = option(1.0, min=0.0, help="pull of the personal model towards the global one")
    epochs: int | None = option(None, min=1, help="epochs of the personal model; none is the run's local epochs")

    def phases(self, ctx: Context) -> tuple[Phase, ...]:
        """First the shared model, then the personal one, on the same batches."""
        return (Phase("shared"), Phase("personal", slots=("ditto.own",), epochs=self.epochs))

    def client_init(self, ctx: Context) -> Slots:
        """The personal model starts from the common initial model."""
        own = {"ditto.own": ctx.initial["params"], "ditto.own.buffers": ctx.initial["buffers"]}
        return {**super().client_init(ctx), **own}

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The shared model, the personal one and, as anchor, the received one."""
        work = super().begin(ctx, client, download)
        own = {slot: client[slot] for slot in ("ditto.own", "ditto.own.buffers")}
        return {**work, **own, "ditto.anchor": work["params"]}

    def step(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """A step of the shared model, or of the personal one with its pull."""
        if ctx.phase.name == "shared":
            return super().step(ctx, work, batch)
        grad = ctx.grad(work, "ditto.own", batch)
        pull = tree.sub(work["ditto.own"], work["ditto.anchor"])
        return ctx.descend(work, "ditto.own", grad.plus(pull, self.lam), batch)

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the personal model, send the shared one."""
        client, upload = super().end(ctx, client, work)
        return {**client, **{slot: work[slot] for slot in ("ditto.own", "ditto.own.buffers")}}, upload

    def view(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The personal model; a client that has never trained has none yet and uses the global one."""
        if ctx.newcomer:
            return super().view(ctx, client, download)
        return {"params": client["ditto.own"], "buffers": client["ditto.own.buffers"]}

    def after_local(self, ctx: Context, client: Slots, work: Slots) -> Slots:
        """The personal model."""
        return {"params": work["ditto.own"], "buffers": work["ditto.own.buffers"]}
