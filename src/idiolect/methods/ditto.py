"""Ditto: a personal model beside the global one, pulled towards it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract import About, Batch, ClientContext, Method, Phase, Slots, option, register, tree
from ..contract.slots import Slot, keep_model, model_in, private

OWN = "ditto.own"


@register("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    r"""Ditto (Li et al., ICML 2021): beside FedAvg's model w each client keeps its own v (Algorithm 1),

    .. math:: v \leftarrow v - \eta \bigl(\nabla f_i(v) + \lambda (v - w^t)\bigr),

    with the *received* global model :math:`w^t`. The personal model predicts.

    Run it: ``idiolect run ditto``.
    """

    about = About(
        "A personal model beside the global one, pulled towards it",
        family="a model of one's own",
        paper="li2021ditto",
        reveals="the shared model as trained",
        stays="the personal model",
    )
    identities = {"ditto(lam=0)": "local"}

    lam: float = option(1.0, min=0.0, help="pull of the personal model towards the global one")
    epochs: int | None = option(None, min=1, help="epochs of the personal model; none is the run's local epochs")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The shared model, and the personal one, which stays."""
        return {**super().slots, OWN: private(holds="model")}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Remember the received model as the anchor; who trains for the first time starts from it."""
        start = keep_model(work, OWN) if ctx.newcomer else work
        return {**start, "ditto.anchor": work["params"]}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """First the shared model, then the personal one, on the same batches."""
        return (Phase(self.step, "shared"), Phase(self.pull, "personal", slots=(OWN,), epochs=self.epochs))

    def pull(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of the personal model."""
        distance = tree.sub(work[OWN], work["ditto.anchor"])
        return ctx.optimize(work, OWN, ctx.grad(work, OWN, batch).plus(distance, self.lam), batch)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The personal model; a client that has never trained has none yet and uses the global one."""
        return super().personal_model(ctx, work) if ctx.newcomer else model_in(work, OWN)
