"""SCAFFOLD: control variates against the clients' drift; and the server step that several methods share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..contract import (
    About,
    Batch,
    ClientContext,
    Refuses,
    ServerContext,
    Slots,
    Upload,
    option,
    register,
    tree,
)
from ..contract.context import RoundContext
from ..contract.parts.server_step import ServerStep
from ..contract.phase import Phase
from ..contract.slots import Slot, private, scratch, zero, zeros_like_params
from ..core.sums import Sums
from ..core.tree import Tree

CONTROL, OWN, CHANGE = "scaffold.control", "scaffold.own", "scaffold.change"
SUM, COUNT = "scaffold.sum", "scaffold.count"


@register("scaffold")
@dataclass(frozen=True)
class Scaffold(ServerStep):
    r"""SCAFFOLD (Karimireddy et al., ICML 2020): each step is corrected by the control variates c of the server and
    c_i of the client, which estimate the gradients of all clients and of this one (Algorithm 1),

    .. math:: y_i \leftarrow y_i - \eta_l \bigl(g_i(y_i) - c_i + c\bigr).

    After K steps from x (option II of the paper's eq. 4)

    .. math:: c_i^+ = c_i - c + \frac{x - y_i}{K \eta_l} = \frac{1}{K} \sum_k g_i(y_{i,k}),

    and with S participants out of N the server takes (eq. 5)

    .. math:: x \leftarrow x + \frac{\eta_g}{|S|} \sum_{i \in S} (y_i - x), \qquad
        c \leftarrow c + \frac{1}{N} \sum_{i \in S} (c_i^+ - c_i).

    The two sides of option II are equal for plain SGD. The mean on the right is what is computed: it is the client's
    gradient also under a rate that decays, momentum, clipping or rates per layer, where the left side is not.

    Hand-worked: x = 1, c = 0.5, c_i = 0.2, gradient 2, rate 0.1, one step: y = 1 - 0.1 (2 - 0.2 + 0.5) = 0.77 and
    c_i+ = 0.2 - 0.5 + (1 - 0.77) / 0.1 = 2, the gradient. As one of N = 4 clients it moves c by (2 - 0.2) / 4 to 0.95.
    """

    about = About(
        "Control variates against client drift",
        paper="karimireddy2020scaffold",
        kind="global",
        reveals="the trained model and the change of its control variate",
        stays="its control variate",
        caution="the server can work out the client's mean gradient",
    )
    refuses = Refuses(other_networks="it compares the updates of one network")
    identities: ClassVar[dict[str, str]] = {"scaffold(control=false, uniform=false)": "fedavg"}

    one_model = True

    control: bool = option(True, help="correct the steps; false leaves all control variates at zero")
    server_lr: float = option(1.0, above=0.0, help="the server's rate")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model and c; c_i stays on the client, which sends by how much it changed."""
        if not self.control:
            return super().slots
        return {
            **super().slots,
            CONTROL: Slot("server", zeros_like_params, down=True, holds="parameters"),
            OWN: private(self.zeros_of_shared),
            SUM: scratch(zeros_like_params),
            COUNT: scratch(zero("steps")),
            CHANGE: Slot("round", zeros_like_params, up="sum", weigh="uniform"),
        }

    def zeros_of_shared(self, ctx: RoundContext) -> Tree:
        """c_i = 0, for all parameters that are shared."""
        return tree.drop(zeros_like_params(ctx), ctx.private_names)

    # -- client ----------------------------------------------------------------------------------

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The correction c - c_i, none for what is private."""
        if not self.control:
            return work
        return {**work, "scaffold.correction": {**work[SUM], **tree.sub(work[CONTROL], work[OWN])}}

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """Steps with the correction, or plain ones."""
        return (Phase(self.corrected_step if self.control else self.step),)

    def corrected_step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A corrected step; the gradient itself enters the sum."""
        grad = ctx.grad(work, "params", batch)
        after = ctx.optimize(work, "params", grad.plus(work["scaffold.correction"]), batch)
        total = {**work[SUM], **tree.add(grad.tree, work[SUM])}
        return {**after, SUM: total, COUNT: {"steps": work[COUNT]["steps"] + 1}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep c_i+ (eq. 4) and send by how much it changed."""
        if not self.control:
            return work
        mean = tree.scale(tree.pick(work[SUM], work[OWN]), 1 / work[COUNT]["steps"])
        return {**work, OWN: mean, CHANGE: tree.sub(mean, work[OWN])}

    # -- server ----------------------------------------------------------------------------------

    def server_rate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums]) -> float:
        """The server's learning rate."""
        return self.server_lr

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
        """Eq. 5."""
        after = super().aggregate(ctx, server, sums, each)
        if CHANGE not in sums:
            return after
        change, share = sums[CHANGE].mean(), sums[CHANGE].count / len(ctx.clients)
        before = server[CONTROL]
        return {**after, CONTROL: {**before, **tree.add(tree.pick(before, change), change, share)}}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The length of c."""
        return {"control_norm": float(tree.norm(server[CONTROL]))} if self.control else {}
