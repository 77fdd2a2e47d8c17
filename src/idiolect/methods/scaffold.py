"""SCAFFOLD: control variates against the clients' drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..contract import About, Batch, Refuses, Slots, Sums, Uploads, option, register, tree
from ..contract.context import ClientContext, ServerContext
from ..contract.parts.server_step import ServerStep
from ..contract.slots import Slot, private, scratch, zero, zeros_like_params, zeros_like_shared

CONTROL, OWN, CHANGE = "scaffold.control", "scaffold.own", "scaffold.change"
SUM, COUNT, WEIGHT = "scaffold.sum", "scaffold.count", "scaffold.weight"


@register("scaffold")
@dataclass(frozen=True)
class Scaffold(ServerStep):
    r"""SCAFFOLD (Karimireddy et al., ICML 2020): each step is corrected by the control variates c of the server and
    c_i of the client, which estimate the gradients of all clients and of this one (Algorithm 1),

    .. math:: y_i \leftarrow y_i - \eta_l \bigl(g_i(y_i) - c_i + c\bigr).

    After K steps from x (option II of eq. 4), and at the server with S participants out of N (eq. 5),

    .. math:: c_i^+ = c_i - c + \frac{x - y_i}{K \eta_l} = \frac{1}{K} \sum_k g_i(y_{i,k}), \qquad
        x \leftarrow x + \eta_g \frac{\sum_{i \in S} p_i (y_i - x)}{\sum_{i \in S} p_i}, \qquad
        c \leftarrow c + \frac{1}{N \bar p} \sum_{i \in S} p_i (c_i^+ - c_i),

    where a client weighs :math:`p_i` in the run, on average :math:`\bar p` over all participants so far, so that c is
    the mean of the :math:`c_i` with the weights of the models. The paper has :math:`p_i = 1` (`preset=paper`).

    The two sides of option II are equal for plain SGD; the mean is computed. Run it: ``idiolect run scaffold``.
    """

    about = About(
        "Control variates against client drift",
        family="one model for all",
        paper="karimireddy2020scaffold",
        kind="global",
        reveals="the trained model and the change of its control variate",
        stays="its control variate",
        caution="the server can work out the client's mean gradient",
    )
    refuses = Refuses(other_networks="it compares the updates of one network")
    identities = {"scaffold(control=false)": "fedavg"}

    control: bool = option(True, help="correct the steps; false leaves all control variates at zero")
    server_lr: float = option(1.0, above=0.0, help="the server's learning rate")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model and c; c_i stays on the client, which sends by how much it changed."""
        slots = super().slots
        return {
            **slots,
            CONTROL: Slot("server", zeros_like_params, down=True, holds="parameters"),
            WEIGHT: Slot("server", zero("sum", "count")),
            OWN: private(zeros_like_shared),
            SUM: scratch(zeros_like_params),
            COUNT: scratch(zero("steps")),
            CHANGE: Slot("round", zeros_like_params, up="sum", weigh=slots["params"].weigh),
        }

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The correction c - c_i, none for what is private."""
        return {**work, "scaffold.correction": {**work[SUM], **tree.sub(work[CONTROL], work[OWN])}}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A corrected step; the gradient itself enters the sum."""
        grad = ctx.grad(work, "params", batch)
        after = ctx.optimize(work, "params", grad.plus(work["scaffold.correction"]), batch)
        total = {**work[SUM], **tree.add(grad.tree, work[SUM])}
        return {**after, SUM: total, COUNT: {"steps": work[COUNT]["steps"] + 1}}

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep c_i+ (eq. 4), or zero without control, and send by how much it changed."""
        mean = tree.scale(tree.pick(work[SUM], work[OWN]), float(self.control) / work[COUNT]["steps"])
        return {**work, OWN: mean, CHANGE: tree.sub(mean, work[OWN])}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """Eq. 5."""
        after = super().aggregate(ctx, server, sums, each)
        change = sums.get(CHANGE)
        if change is None or not change.weight:
            return after
        sent = float(next(iter(change.weight.values())))  # of any leaf: all are sent whole
        weight = {"sum": server[WEIGHT]["sum"] + sent, "count": server[WEIGHT]["count"] + change.count}
        share = sent / (len(ctx.clients) * float(weight["sum"] / weight["count"]))
        moved = tree.add(tree.pick(server[CONTROL], change.total), change.mean(), share)
        return {**after, CONTROL: {**server[CONTROL], **moved}, WEIGHT: weight}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        return {"control_norm": float(tree.norm(server[CONTROL]))}
