"""pFedGate: a private gating network makes a sparse model of the shared one, batch by batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...analysis.blocks import Solver
from ...contract import (
    About,
    Batch,
    ClientContext,
    Grad,
    Method,
    Needs,
    OptionError,
    Phase,
    Refuses,
    RoundContext,
    Scored,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Task,
    Tree,
    Upload,
    buffers_of,
    mask_of,
    option,
    private,
    register,
    scratch,
    shared,
    tree,
)
from ...contract.gradients import LossFn
from ...contract.statistics import running_statistics
from . import tally as tally
from .blocks import Blocks, Split
from .gate import Gate, gate_input, smallest_pool
from .structured import Rows

GATE = "pfedgate.gate"
TALLY = "pfedgate.tally"
SENT = "pfedgate.sent"
Optimize = Callable[[Slots, str, Grad, float | None], Slots]
DECIMALS = 5
"""Scores that agree to so many decimals are equal, so that round-off chooses no blocks."""


@register("pfedgate")
@dataclass(frozen=True)
class PFedGate(Method):
    r"""pFedGate (Chen et al., ICML 2023): each client's private gating network :math:`\phi_i` looks at a batch and
    gives, per block of the shared model, a scale M and a score G in (0, 1). The blocks with the highest scores that
    fit the client's budget :math:`s_i` stay (eq. 6), and the model that computes is the block-wise product

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
    prediction depends on the samples it is made with; evaluation takes them 128 at a time, in order. Scales start
    at about 1/2, so that a layer's steps are about a quarter of FedAvg's: raise the rate, or `gate_bias`.
    The server sees the model's active coordinates and how many samples a client has; gates stay private.
    """

    about = About(
        "A private gating network makes a sparse model of the shared one, within each client's budget",
        paper="chen2023pfedgate",
        reveals="the coordinates of the shared model that were active in some batch, and so also which these are",
        stays="the gating network",
        caution="which blocks are active reflects the client's inputs",
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"s": 0.5, "blocks": 5},
        "ref": {"shared_path": True, "equal_chunks": True, "st_kept_only": True, "denominator": "all"},
    }
    identities: ClassVar[dict[str, str]] = {
        "pfedgate(s=1, fixed=true, clip=null)": "fedavg",
        "pfedgate(s=1, fixed=true, clip=null, split=structured)": "fedavg",
    }

    s: float | tuple[float, ...] = option(
        0.5, above=0.0, max=1.0, help="largest active share of the model; of a list, clients take their values in turn"
    )
    blocks: int = option(5, min=2, help="blocks per tensor")
    min_share: float | None = option(
        None, above=0.0, max=1.0, help="share of a tensor's first block, which always stays; none is min(1/blocks, s)"
    )
    split: str = option("blocks", choices=("blocks", "structured"), help="gates on blocks of tensors, or on rows")
    equal_chunks: bool = option(False, help="cut tensors into equal chunks, whatever min_share")
    solver: str = option("greedy", choices=("greedy", "density", "exact"), help="how blocks are chosen")
    gate: str = option(
        "batch",
        choices=("batch", "client", "sample"),
        help="predict with each batch's gates, with the client's mean gates, or with each sample's",
    )
    shared_path: bool = option(False, help="one path that both scales and scores")
    pre_norm: bool = option(True, help="switchable norm before the gate's linear maps")
    post_norm: bool = option(True, help="batch norm after them")
    gate_bias: float = option(
        0.0, min=-20.0, max=20.0, help="where the scales' sigmoids start: 0 for scales about 1/2, 4 for about 1"
    )
    gate_pool: int | None = option(
        None,
        min=1,
        help="average squares of so many positions before the gate; none is 1 with blocks, with structured rows the"
        " smallest power of two with which the gate has at most half as many parameters as the model",
    )
    gate_lr: float | None = option(None, above=0.0, help="the gate's rate; none is the run's")
    clip: float | None = option(10.0, above=0.0, help="largest gradient norm, of model and of gate; none is any")
    st_kept_only: bool = option(False, help="scores learn from kept blocks only")
    denominator: str = option(
        "uploaders", choices=("uploaders", "all"), help="average a coordinate over those who sent it, or over all"
    )
    server_step: float = option(1.0, above=0.0, help="how far the server moves towards the mean")
    fixed: bool = option(False, help="no gate: all scales and scores are 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.budgets or not all(type(each) in (int, float) for each in self.budgets):
            raise OptionError(f"pfedgate: s={self.s!r} is not allowed; s must be a number in (0, 1] or a list of such")
        if self.min_share is not None and self.min_share > min(self.budgets):
            raise OptionError(
                f"pfedgate: min_share={self.min_share} is not allowed with s={self.s}; what always stays must fit every"
                f" client's budget, so min_share must lie in (0, {min(self.budgets)}]"
            )

    # -- what depends on the options -----------------------------------------------------------------

    @property
    def budgets(self) -> tuple[float, ...]:
        """The values of s that occur."""
        return self.s if isinstance(self.s, tuple) else (self.s,)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The gate's batch norm needs two samples; predictions may depend on the batches in which gates are taken."""
        by_batch = self.gate == "batch" and not self.fixed
        return Needs(min_batch=1 if self.fixed else 2, eval_batch=128 if by_batch else None)

    @property
    def refuses(self) -> Refuses:  # type: ignore[override]
        """The exact solver looks at numbers."""
        exact = self.solver == "exact" and self.split == "blocks"
        stacking = "solver=exact searches outside of torch" if exact else ""
        return Refuses(other_networks="its gate is made for the layers of one network", stacking=stacking)

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The shared model, of which a client sends what was active; the gate and its tally stay."""
        missing: Any = {"uploaders": "keep", "all": "before"}[self.denominator]
        gate = {} if self.fixed else {GATE: private(gate_params), buffers_of(GATE): private(gate_buffers)}
        model = shared(holds="model", missing=missing)
        return {"params": model, **gate, TALLY: private(self.first_tally), SENT: scratch(self.no_marks)}

    @property
    def trained_slots(self) -> tuple[str, ...]:
        """What a client trains."""
        return ("params",) if self.fixed else ("params", GATE)

    def variant(self, index: int) -> float:
        """The client's own s."""
        return self.budgets[index % len(self.budgets)]

    def cut(self, task: Task, s: float) -> Split:
        """Where the gates of a client with budget s sit."""
        if self.split == "structured":
            return Rows.of(task, s)
        share = min(1 / self.blocks, *self.budgets) if self.min_share is None else self.min_share
        solver: Solver = self.solver  # type: ignore[assignment]
        return Blocks.of(task, s, self.blocks, share, self.equal_chunks, solver)

    def modules(self, task: Task) -> dict[str, nn.Module]:
        if self.fixed:
            return {}
        shape = gate_input(task.net.module, task.net.params, task.example[0][:1].to(_device(task))).shape[1:]
        count = self.cut(task, self.budgets[0]).count
        made = partial(Gate, shape, count, self.shared_path, self.pre_norm, self.post_norm, bias=self.gate_bias)
        pool = self.gate_pool
        if pool is None:
            pool = smallest_pool(made, tree.size(task.net.params) // 2) if self.split == "structured" else 1
        return {"gate": made(pool=pool)}

    def check(self, task: Task) -> None:
        super().check(task)
        with torch.random.fork_rng(devices=[]):
            self.modules(task)
        for s in dict.fromkeys(self.budgets):
            split = self.cut(task, s)
            if isinstance(split, Rows):
                split.check()
            elif isinstance(split, Blocks) and split.always > split.budget:
                total = tree.size(task.net.params)
                warnings.warn(
                    f"pfedgate: what always stays is {split.always} of {total} parameters, more than s={s} allows"
                    f" ({split.budget}); clients with this budget run at {split.always / total:.3g}",
                    stacklevel=2,
                )

    # -- the gated model -----------------------------------------------------------------------------

    def gates(
        self, ctx: ClientContext, split: Split, slots: Slots, x: Tensor, weight: Tensor, train: bool = False
    ) -> tuple[Tree, Tree]:
        """Scale M and score G per gate, the gating network's means over a batch; and its buffers afterwards."""
        if self.fixed:
            ones = torch.ones(split.count, device=x.device)
            return {"scale": ones, "score": ones}, {}
        inputs: Any = (gate_input(ctx.task.net.module, slots["params"], x), weight)
        out = ctx.nets["gate"].apply(slots[GATE], slots[buffers_of(GATE)], inputs, train)
        mean = torch.einsum("b,bpl->pl", weight.to(out.outputs.dtype) / weight.sum(), out.outputs)
        return {"scale": mean[0], "score": mean[-1]}, out.buffers

    def choose(self, split: Split, gates: Tree, s: float) -> tuple[Tensor, Tensor]:
        """The sparse gates M', and which are open (eq. 6); differentiable as in Appendix A."""
        scale, score = gates["scale"], gates["score"]
        active = split.select(score.detach().round(decimals=DECIMALS))
        if s == 1:
            return scale, active
        kept = active.to(scale.dtype)
        through = kept + (score - score.detach())
        return scale * (through * kept if self.st_kept_only else through), active

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

    # -- client --------------------------------------------------------------------------------------

    def first_tally(self, ctx: ClientContext) -> Tree:
        """A tally of gates that stand where their sigmoids start."""
        first = (1.0, 1.0) if self.fixed else (1 / (1 + math.exp(-self.gate_bias)), 0.5)
        return tally.start(self.cut(ctx.task, ctx.variant).count, *first, _device(ctx.task))

    def no_marks(self, ctx: ClientContext) -> Tree:
        """So far nothing is to be sent."""
        split = self.cut(ctx.task, ctx.variant)
        marks = split.marks(torch.zeros(split.count, dtype=torch.bool, device=_device(ctx.task)))
        return tree.zeros_like(marks)

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The tally begins anew."""
        return {**work, TALLY: tally.restarted(work[TALLY])}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """Model and gate together."""
        return (Phase(self.step, slots=self.trained_slots),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """One backward pass, one step of the model and one of the gate (Algorithm 1, lines 4 to 7)."""

        def optimize(work: Slots, slot: str, grad: Grad, lr: float | None) -> Slots:
            return ctx.optimize(work, slot, grad, batch, lr)

        return self.train(ctx, work, batch, self.trained_slots, optimize)

    def train(self, ctx: ClientContext, work: Slots, batch: Batch, trained: Sequence[str], optimize: Optimize) -> Slots:
        """Move the trained slots, of the model the active coordinates only; note gates and coordinates."""
        split = self.cut(ctx.task, ctx.variant)
        grad = ctx.grad(work, trained, batch, loss=self.loss(ctx, split, work, batch, trained))
        found, after = grad.scored.buffers, work
        for slot in trained:
            buffers = _unpack(GATE, found) if slot == GATE else tree.pick(found, work["buffers"])
            own = Grad({slot: _clipped(grad.slots[slot], self.clip)}, grad.scored._replace(buffers=buffers))
            after = optimize(after, slot, own, self.gate_lr if slot == GATE else None)
        gates = _unpack(TALLY, found)
        active = gates.pop("active")
        marks = split.marks(active)
        if not ctx.training.optimizer.needs_gradient or ctx.method.watches_steps:  # else zero gradients keep them still
            after = {**after, **tally.only_active(work, after, split.masks(marks))}
        if TALLY in work:
            after[TALLY] = tally.added(work[TALLY], gates, active, split.share(active), batch.weight.sum())
        if SENT in work:
            after[SENT] = tree.map(torch.logical_or, work[SENT], marks)
        return after

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

    # -- prediction ----------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The shared model and the private gate; the tally, where predictions are made with mean gates."""
        own = (GATE, buffers_of(GATE), *((TALLY,) if self.gate == "client" else ()))
        return {**super().personal_model(ctx, work), **{slot: work[slot] for slot in own if slot in work}}

    def sparse(self, ctx: ClientContext, model: Slots, x: Tensor) -> tuple[Split, Tree, Tree, Tensor]:
        """The model that predicts for a batch, and which gates are open in it."""
        split = self.cut(ctx.task, ctx.variant)
        if self.gate == "client":
            gates = model[TALLY]
        else:
            gates, _ = self.gates(ctx, split, model, x, torch.ones(len(x), device=x.device))
        scale, active = self.choose(split, gates, ctx.variant)
        return split, *split.thin(model["params"], model["buffers"], scale, active), active

    def predict(self, ctx: ClientContext, model: Slots, x: Tensor) -> Tensor:
        """One sparse model for the batch, for the client, or for each sample."""
        if self.gate == "sample" and len(x) > 1:
            return torch.cat([self.predict(ctx, model, x[at : at + 1]) for at in range(len(x))])
        _, params, buffers, _ = self.sparse(ctx, model, x)
        return ctx.task.forward(params, buffers, x).outputs

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its gate only (Appendix I.1)."""
        slots = self.trained_slots if self.fixed else (GATE,)
        return (Phase(self.adapt_step, "onboard", slots=slots),)

    def adapt_step(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step on the slots of the phase, the others frozen."""
        return self.train(ctx, model, batch, ctx.phase.slots, ctx.apply)

    def recompute_statistics(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """The statistics of the sparse model."""
        split, params, buffers, active = self.sparse(ctx, model, batch.x)
        after = running_statistics(ctx, params, buffers, batch)
        return {**model, "buffers": split.restore(after, model["buffers"], active)}

    # -- server --------------------------------------------------------------------------------------

    def aggregate(
        self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Mapping[int, Upload]
    ) -> Slots:
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


def _device(task: Task) -> torch.device:
    return next(iter(task.net.params.values())).device


def _pack(prefix: str, leaves: Tree) -> Tree:
    return {f"{prefix} {name}": leaf for name, leaf in leaves.items()}


def _unpack(prefix: str, leaves: Tree) -> Tree:
    return {n.removeprefix(f"{prefix} "): leaf for n, leaf in leaves.items() if n.startswith(f"{prefix} ")}


def _clipped(grads: Tree, largest: float | None) -> Tree:
    """A gradient, scaled down to the largest norm allowed."""
    if largest is None:
        return grads
    return tree.scale(grads, (largest / (tree.norm(grads) + 1e-6)).clamp_max(1.0))
