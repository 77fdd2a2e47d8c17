"""pFedGate: a private gating network makes a sparse model of the shared one, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...contract import About, Grad, Needs, Phase, Refuses, Slots, Sums, Tree, option, register, tree
from ...contract.context import ClientContext, RoundContext, ServerContext
from ...contract.gradients import LossFn
from ...contract.messages import Uploads
from ...contract.slots import Slot, buffers_of, mask_of, private, scratch, shared
from ...contract.statistics import running_statistics
from ...task.task import Batch, Scored
from . import tally
from .adaptation import GATE, MEAN, TALLY, Adaptation, device_of
from .blocks import Split

SENT = "pfedgate.sent"
Optimize = Callable[[Slots, str, Grad, float | None], Slots]


@register("pfedgate")
@dataclass(frozen=True)
class PFedGate(Adaptation):
    r"""pFedGate (Chen et al., ICML 2023): each client's private gating network :math:`\phi_i` looks at a batch and
    gives, per block of the shared model, a scale M in (0, 2) and a score G in (0, 1). The blocks with the highest
    scores that fit the client's budget :math:`s_i` stay (eq. 6; only `solver=exact` solves it, the default takes what
    fits by decreasing score per parameter, `greedy` by decreasing score, as the authors' program does), and the model
    that computes is the block-wise product

    .. math:: \theta' = \theta \circledast M', \quad M' = M \cdot I^*, \quad
              I^* = \arg\max_I I \cdot G \;\text{ s.t. }\; I \cdot W \le s_i d.

    One backward pass trains both; G learns through :math:`I_{ST} = I^* - \text{sg}(G) + G` (Appendix A). Clients send
    what was active in some batch of the round, and the server averages each coordinate over those who sent it.

    Hand-worked: two blocks of one number, :math:`\theta` = (2, 4), M = (0.5, 0.8), G = (0.9, 0.2), s = 0.5. The first
    block stays: :math:`\theta'` = (1, 0). Where the loss has the gradient (3, 5) in :math:`\theta'`, it has
    M' (3, 5) = (1.5, 0) in :math:`\theta`, (3 x 2 x 1, 5 x 4 x 0) = (6, 0) in M, and, straight through,
    (3 x 2 x 0.5, 5 x 4 x 0.8) = (3, 16) in G: a dropped block learns that it would matter.

    A budget that is smaller than what always stays (the first block of every tensor, and norms) is exceeded, with a
    warning. Optimisers move active coordinates only. `split=structured` drops output rows instead of blocks (exactly
    max(1, floor(s x rows)) stay per hidden layer) and does not compute them, so G learns from kept rows only; its gate
    sees a pooled image, unless `gate_pool=1`, so as not to cost more than the rows left out save. With `gate=batch` a
    prediction depends on the samples it is made with; evaluation takes them 128 at a time, in order. Scales are twice
    their sigmoids (`scale_max`), so that they start at about 1: at 1/2, as in the paper, a layer's steps are a quarter
    of FedAvg's. And the gate learns five times as fast as the model (`gate_rate`), since scores start alike. That is
    level with FedAvg or above it on dense networks, and on convolutional ones with s = 1; what a smaller s costs there
    depends on how much of the network its large layers hold. The server sees the model's active coordinates and how
    many samples a client has; gates stay private.
    Run it: ``idiolect run pfedgate``.
    """

    about = About(
        "A private gate makes a sparse model within a client's budget",
        family="masks and sub-models",
        paper="chen2023pfedgate",
        reveals="the coordinates of the shared model that were active in some batch, and so also which these are",
        stays="the gating network",
        caution="which blocks are active reflects the client's inputs",
    )
    presets = {
        "paper": {"s": 0.5, "blocks": 5, "solver": "exact", "clip": None, "scale_max": 1.0, "gate_rate": 1.0},
        "ref": {
            "solver": "greedy",
            "scale_max": 1.0,
            "gate_rate": 1.0,
            "shared_path": True,
            "equal_chunks": True,
            "st_kept_only": True,
            "denominator": "all",
            "budgets_apart": True,
            "decimals": 1,
        },
    }
    identities = {
        "pfedgate(s=1, fixed=true, clip=null)": "fedavg",
        "pfedgate(s=1, fixed=true, clip=null, split=structured)": "fedavg",
    }

    gate_lr: float | None = option(
        None, above=0.0, tuned="rate", help="the gate's learning rate; none is `gate_rate` times the run's"
    )
    gate_rate: float = option(5.0, above=0.0, tuned="never", help="that multiple of the run's learning rate")
    evaluate: str = option(
        "gated", choices=("gated", "dense"), help="predict with the gated model, or with the shared one without gates"
    )
    clip: float | None = option(10.0, above=0.0, help="largest gradient norm, of model and of gate; none is any")
    denominator: str = option(
        "uploaders", choices=("uploaders", "all"), help="average a coordinate over those who sent it, or over all"
    )
    server_step: float = option(1.0, above=0.0, help="how far the server moves towards the mean")

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """A batch's gates need two samples, for their batch norm, and predictions then depend on the batches."""
        by_batch = self.gate == "batch" and not self.fixed and self.evaluate == "gated"
        return Needs(min_batch=1 if self.fixed or self.looks_at_all else 2, eval_batch=128 if by_batch else None)

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """A gate has an output per block of one network."""
        return Refuses(other_networks="its gate is made for the layers of one network")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The shared model, of which a client sends what was active; the gate and its tally stay."""
        missing: Any = {"uploaders": "keep", "all": "before"}[self.denominator]
        gate = {} if self.fixed else {GATE: private(gate_params), buffers_of(GATE): private(gate_buffers)}
        model = shared(holds="model", missing=missing)
        looks = {MEAN: private(self.no_inputs)} if self.looks_at_all else {}
        return {"params": model, **gate, TALLY: private(self.first_tally), SENT: scratch(self.no_marks), **looks}

    @property
    def trained_slots(self) -> tuple[str, ...]:
        """What a client trains."""
        return ("params",) if self.fixed else ("params", GATE)

    def loss(self, ctx: ClientContext, split: Split, work: Slots, batch: Batch, trained: Sequence[str]) -> LossFn:
        """The loss of the gated model; norms of what is not trained stay in evaluation mode. With the model's buffers
        come the gate's, the gates, and which were open."""
        frozen = ctx.task.frozen(ctx.phase.part if "params" in trained else frozenset())

        def loss(trees: Slots) -> Scored:
            slots = {**work, **trees}
            gates, buffers = self.gates(ctx, split, slots, batch.x, batch.weight, train=GATE in trained)
            scale, active = self.choose(split, gates, ctx.variant)
            scored = ctx.task.loss(*split.thin(slots["params"], slots["buffers"], scale, active), batch, frozen=frozen)
            after = split.restore(scored.buffers, slots["buffers"], active)
            return scored._replace(
                buffers={**after, **_pack(GATE, buffers), **_pack(TALLY, gates | {"active": active})}
            )

        return loss

    def first_tally(self, ctx: ClientContext) -> Tree:
        """A tally of gates that stand where their sigmoids start."""
        first = (self.scale_max / (1 + math.exp(-self.gate_bias)), 0.5) if self.sigmoid else (self.gate_bias, 0.0)
        first = (1.0, 1.0) if self.fixed else first
        return tally.start(self.cut(ctx.task, ctx.variant).count, *first, device_of(ctx.task))

    def no_marks(self, ctx: ClientContext) -> Tree:
        """So far nothing is to be sent."""
        split = self.cut(ctx.task, ctx.variant)
        marks = split.marks(torch.zeros(split.count, dtype=torch.bool, device=device_of(ctx.task)))
        return tree.zeros_like(marks)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The tally begins anew."""
        return {**work, TALLY: tally.restart(work[TALLY])}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """Model and gate together; before it, a look at all inputs, where their mean is what the gate sees."""
        return (*self.looks(), Phase(self.step, slots=self.trained_slots))

    def looks(self) -> tuple[Phase, ...]:
        """The pass over all inputs, if there is one."""
        return (Phase(self.look, "inputs", slots=(), epochs=1),) if self.looks_at_all else ()

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One backward pass, one step of the model and one of the gate (Algorithm 1, lines 4 to 7)."""

        def optimize(work: Slots, slot: str, grad: Grad, lr: float | None) -> Slots:
            return ctx.optimize(work, slot, grad, batch, lr)

        return self.train(ctx, work, batch, self.trained_slots, optimize)

    def train(self, ctx: ClientContext, work: Slots, batch: Batch, trained: Sequence[str], optimize: Optimize) -> Slots:
        """Move the trained slots, of the model the active coordinates only; note gates and coordinates."""
        split = self.cut(ctx.task, ctx.variant)
        grad = ctx.grad(work, trained, batch, loss=self.loss(ctx, split, work, batch, trained))
        state, after = grad.scored.buffers, work
        for slot in trained:
            buffers = _unpack(GATE, state) if slot == GATE else tree.pick(state, work["buffers"])
            slot_grad = Grad({slot: _clip(grad.slots[slot], self.clip)}, grad.scored._replace(buffers=buffers))
            after = optimize(after, slot, slot_grad, self.lr_of_gate(ctx) if slot == GATE else None)
        gates = _unpack(TALLY, state)
        active = gates.pop("active")
        marks = split.marks(active)
        if not ctx.training.optimizer.needs_gradient or ctx.method.optimizer_step:  # else zero gradients do
            after = {**after, **tally.only_active(work, after, split.masks(marks))}
        if TALLY in work:
            after[TALLY] = tally.add(work[TALLY], gates, active, split.share(active), batch.weight.sum())
        if SENT in work:
            after[SENT] = tree.map(torch.logical_or, work[SENT], marks)
        return after

    def lr_of_gate(self, ctx: ClientContext) -> float:
        """eta, of which the paper's table 7 has 0.17 to 50 times the model's, in the middle 6."""
        return ctx.lr * self.gate_rate if self.gate_lr is None else ctx.scheduled(self.gate_lr)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the gate; of the model send what was active in some batch."""
        sent = self.cut(ctx.task, ctx.variant).masks(work[SENT])
        counted = {**work[TALLY], "sent": tally.share(sent)}
        return {**work, TALLY: counted, mask_of("params"): tree.drop(sent, ctx.private_names)}

    def client_records(self, ctx: ClientContext, client: Slots) -> dict[str, Tensor]:
        """The share of the model that was active, on average, and that was sent; and each layer's mean gate."""
        known = client[TALLY]
        gates, groups = known["scale"] * known["kept"], self.cut(ctx.task, ctx.variant).groups
        means = {f"gate {name}": gates[here].mean() for name, here in groups.items()}
        return {"density": known["density"], "sent": known["sent"], **means}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The shared model and the private gate; the tally, where predictions are made with mean gates."""
        if self.evaluate == "dense":
            return super().personal_model(ctx, work)
        extra = (GATE, buffers_of(GATE), MEAN, *((TALLY,) if self.gate == "client" else ()))
        return {**super().personal_model(ctx, work), **{slot: work[slot] for slot in extra if slot in work}}

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """One sparse model for the batch, for the client, or for each sample; or the shared model as it is."""
        if self.evaluate == "dense":
            return super().predict(ctx, model, x)
        if self.gate == "sample" and len(x) > 1:
            return torch.cat([self.predict(ctx, model, x[at : at + 1]) for at in range(len(x))])
        _, params, buffers, _ = self.sparse(ctx, model, x)
        return ctx.task.forward(params, buffers, x).outputs

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its gate only (Appendix I.1)."""
        if self.evaluate == "dense":
            return super().onboard(ctx)
        slots = self.trained_slots if self.fixed else (GATE,)
        return (*self.looks(), Phase(self.adapt_step, "onboard", slots=slots))

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step on the slots of the phase, the others frozen; without gates, of the shared model as it is."""
        if self.evaluate == "dense":
            return super().adapt_step(ctx, model, batch)
        return self.train(ctx, model, batch, ctx.phase.slots, ctx.apply)

    def recompute_statistics(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The statistics of the model that predicts."""
        if self.evaluate == "dense":
            return super().recompute_statistics(ctx, model, batch)
        split, params, buffers, active = self.sparse(ctx, model, batch.x)
        after = running_statistics(ctx, params, buffers, batch)
        return {**model, "buffers": split.restore(after, model["buffers"], active)}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """Each coordinate's mean over those who sent it; all started from one model, so this is the mean update."""
        after = super().aggregate(ctx, server, sums, each)
        if self.server_step == 1:
            return after
        return {**after, "params": tree.mix(after["params"], server["params"], self.server_step)}


def gate_params(ctx: RoundContext) -> Tree:
    """The gating network's initial parameters."""
    return ctx.nets["gate"].params


def gate_buffers(ctx: RoundContext) -> Tree:
    """The gating network's initial buffers."""
    return ctx.nets["gate"].buffers


def _pack(prefix: str, leaves: Tree) -> Tree:
    return {f"{prefix} {name}": leaf for name, leaf in leaves.items()}


def _unpack(prefix: str, leaves: Tree) -> Tree:
    return {n.removeprefix(f"{prefix} "): leaf for n, leaf in leaves.items() if n.startswith(f"{prefix} ")}


def _clip(grads: Tree, largest: float | None) -> Tree:
    """A gradient, scaled down to the largest norm allowed."""
    if largest is None:
        return grads
    return tree.scale(grads, (largest / (tree.norm(grads) + 1e-6)).clamp_max(1.0))
