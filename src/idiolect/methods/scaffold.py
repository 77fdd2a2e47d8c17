"""SCAFFOLD: control variates against the clients' drift; and the server step that several methods share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..contract.context import Context, ServerContext
from ..contract.method import Download, Method, Paper, Upload, register, slot_of
from ..core import tree
from ..core.options import option
from ..core.tree import Slots
from ..task.task import Batch


@dataclass(frozen=True)
class ServerStep(Method):
    """A method whose server weighs its participants alike, as its paper does, and may go further or less far than
    to their mean."""

    uniform: bool = option(True, help="weigh participants alike, as in the paper; false is the run's weighting")

    def weighed(self, ctx: ServerContext) -> ServerContext:
        """The context with the method's weighting."""
        return replace(ctx, weighting="uniform") if self.uniform else ctx

    def moved(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload], rate: float) -> Slots:
        """x + rate (mean of y_i - x); buffers, which no gradient moves, become the mean itself."""
        after = super().aggregate(self.weighed(ctx), server, uploads)
        names = [slot_of("params", m) for m in range(len(ctx.tasks))]
        # Written as a mixture of models, so that rate 1 gives the mean to the bit.
        return {**after, **{slot: tree.mix(after[slot], server[slot], rate) for slot in names}}

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """The mean."""
        return self.moved(ctx, server, uploads, 1.0)


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

    title: ClassVar[str] = "Control variates against client drift"
    reveals: ClassVar[str] = "the trained model and the change of its control variate"
    stays: ClassVar[str] = "its control variate"
    caution: ClassVar[str] = "the server can work out the client's mean gradient"
    kind: ClassVar[str] = "global"
    paper: ClassVar[Paper] = Paper(
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh",
        "SCAFFOLD: stochastic controlled averaging for federated learning",
        "ICML",
        2020,
        "arXiv:1910.06378",
    )
    identities: ClassVar[dict[str, str]] = {"scaffold(control=false, uniform=false)": "fedavg"}
    sends: ClassVar[tuple[str, ...]] = (*Method.sends, "scaffold.change")
    one_network: ClassVar[str] = "it compares the updates of one network"

    control: bool = option(True, help="correct the steps; false leaves all control variates at zero")
    server_lr: float = option(1.0, above=0.0, help="the server's rate")

    # -- server ----------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """c = 0."""
        server = super().server_init(ctx)
        return {**server, "scaffold.control": tree.zeros_like(server["params"])} if self.control else server

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The model and c."""
        sent = super().download(ctx, server, ids)
        if not self.control:
            return sent
        control = tree.drop(server["scaffold.control"], self.kept(ctx))
        return sent._replace(shared={**sent.shared, "scaffold.control": control})

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """Eq. 5."""
        after = self.moved(ctx, server, uploads, self.server_lr)
        heard = {i: each for i, each in uploads.items() if "scaffold.change" in each.slots}
        if not heard:
            return after
        change = self.average(replace(ctx, weighting="uniform"), {}, heard, "scaffold.change")
        before, share = server["scaffold.control"], len(heard) / len(ctx.clients)
        return {**after, "scaffold.control": {**before, **tree.add(tree.pick(before, change), change, share)}}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The length of c."""
        return {"control_norm": float(tree.norm(server["scaffold.control"]))} if self.control else {}

    # -- client ----------------------------------------------------------------------------------

    def client_init(self, ctx: Context) -> Slots:
        """c_i = 0, for all parameters that are shared."""
        client = super().client_init(ctx)
        shared = tree.drop(ctx.initial["params"], self.kept(ctx))
        return {**client, "scaffold.own": tree.zeros_like(shared)} if self.control else client

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The model, the correction c - c_i (none for what is private) and an empty sum of gradients."""
        work = super().begin(ctx, client, download)
        if not self.control:
            return work
        none = tree.zeros_like(work["params"])
        correction = {**none, **tree.sub(download["scaffold.control"], client["scaffold.own"])}
        steps = {"steps": torch.zeros_like(ctx.samples)}
        return {**work, "scaffold.correction": correction, "scaffold.sum": none, "scaffold.count": steps}

    def step(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """A corrected step; the gradient itself enters the sum."""
        if not self.control:
            return super().step(ctx, work, batch)
        grad = ctx.grad(work, "params", batch)
        after = ctx.descend(work, "params", grad.plus(work["scaffold.correction"]), batch)
        total = {**work["scaffold.sum"], **tree.add(grad.tree, work["scaffold.sum"])}
        steps = {"steps": work["scaffold.count"]["steps"] + 1}
        return {**after, "scaffold.sum": total, "scaffold.count": steps}

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep c_i+ (eq. 4) and send by how much it changed."""
        after, upload = super().end(ctx, client, work)
        if not self.control:
            return after, upload
        mean = tree.scale(tree.pick(work["scaffold.sum"], client["scaffold.own"]), 1 / work["scaffold.count"]["steps"])
        change = tree.sub(mean, client["scaffold.own"])
        return {**after, "scaffold.own": mean}, replace(upload, slots={**upload.slots, "scaffold.change": change})
