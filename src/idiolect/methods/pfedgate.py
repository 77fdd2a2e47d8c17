"""pFedGate: a private gating network makes a sparse model of the shared one, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import tree
from ..analysis.blocks import Solver
from ..context import Context, Grad, LossFn, ServerContext, buffers_of
from ..errors import ModelError, OptionError
from ..method import Method, Paper, Phase, Upload, register, running_stats
from ..models.gate import Gate
from ..options import option
from ..task import Batch, Scored, Task
from ..tree import Slots, Tree
from ._pfedgate_blocks import Blocks, Split
from ._pfedgate_structured import Rows

GATE = "pfedgate.gate"
SEEN = "pfedgate.seen"
SENT = "pfedgate.sent"
DECIMALS = 5
"""Scores that agree to so many decimals are equal, so that round-off chooses no blocks."""


@register("pfedgate")
@dataclass(frozen=True)
class PFedGate(Method):
    r"""pFedGate (Chen et al., ICML 2023): each client's private gating network :math:`\phi_i` looks at a batch and gives,
    per block of the shared model, a scale M and a score G in (0, 1). The blocks with the highest scores that fit the
    client's budget :math:`s_i` stay (eq. 6), and the model that computes is the block-wise product

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
    max(1, floor(s x rows)) stay per hidden layer) and does not compute them, so G learns from kept rows only. With
    `gate=batch` a prediction depends on the samples it is made with; evaluation takes them 128 at a time, in order.
    The server sees the model's active coordinates and how many samples a client has; gates stay private.
    """

    title: ClassVar[str] = "A private gate picks and scales parts of the shared model, within each client's budget"
    paper: ClassVar[Paper] = Paper(
        "Chen, Yao, Gao, Ding, Li",
        "Efficient personalized federated learning via sparse model-adaptation",
        "ICML",
        2023,
        "arXiv:2305.02776",
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
        "batch", choices=("batch", "client", "sample"), help="predict by each batch's gates, the client's mean, a sample's"
    )
    shared_path: bool = option(False, help="one path that both scales and scores")
    pre_norm: bool = option(True, help="switchable norm before the gate's linear maps")
    post_norm: bool = option(True, help="batch norm after them")
    gate_bias: float = option(0.0, help="where the scales' sigmoids start: 0 for scales about 1/2, 4 for about 1")
    gate_pool: int = option(1, min=1, help="average squares of so many positions before the gate, to make it small")
    gate_lr: float | None = option(None, above=0.0, help="the gate's rate; none is the run's")
    clip: float | None = option(10.0, above=0.0, help="largest gradient norm, of model and gate apart; none clips nothing")
    st_kept_only: bool = option(False, help="scores learn from kept blocks only")
    denominator: str = option("uploaders", choices=("uploaders", "all"), help="whose weights a coordinate's mean divides by")
    server_step: float = option(1.0, above=0.0, help="how far the server moves towards the mean")
    fixed: bool = option(False, help="no gate: all scales and scores are 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.budgets or not all(isinstance(each, int | float) for each in self.budgets):
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
    def min_batch(self) -> int:  # type: ignore[override]
        """The gate's batch norm needs two samples."""
        return 1 if self.fixed else 2

    @property
    def eval_batch(self) -> int | None:  # type: ignore[override]
        """The batches in which gates are taken, where predictions depend on them."""
        return 128 if self.gate == "batch" and not self.fixed else None

    @property
    def loop_only(self) -> str:  # type: ignore[override]
        """The exact solver looks at numbers."""
        return "solver=exact searches outside of torch" if self.solver == "exact" and self.split == "blocks" else ""

    @property
    def slots(self) -> tuple[str, ...]:
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
        shape = gate_input(task, task.net.params, task.example[0][:1].to(_device(task))).shape[1:]
        count = self.cut(task, self.budgets[0]).count
        net = Gate(
            shape, count, self.shared_path, self.pre_norm, self.post_norm, pool=self.gate_pool, bias=self.gate_bias
        )
        return {"gate": net}

    def check(self, task: Task) -> None:
        super().check(task)
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

    def gates(self, ctx: Context, slots: Slots, x: Tensor, weight: Tensor, train: bool = False) -> tuple[Tree, Tree]:
        """Scale M and score G per gate: the gating network's mean over a batch; and its buffers afterwards."""
        if self.fixed:
            ones = torch.ones(self.cut(ctx.task, ctx.variant).count, device=x.device)
            return {"scale": ones, "score": ones}, {}
        inputs: Any = (gate_input(ctx.task, slots["params"], x), weight)
        out = ctx.nets["gate"].apply(slots[GATE], slots[buffers_of(GATE)], inputs, train)
        mean = torch.einsum("b,bpl->pl", weight.to(out.outputs.dtype) / weight.sum(), out.outputs)
        return {"scale": mean[0], "score": mean[-1]}, out.buffers

    def choose(self, ctx: Context, gates: Tree) -> tuple[Split, Tensor, Tensor]:
        """The sparse gates M', and which are open (eq. 6); differentiable as in Appendix A."""
        scale, score = gates["scale"], gates["score"]
        split = self.cut(ctx.task, ctx.variant)
        active = split.select(score.detach().round(decimals=DECIMALS))
        if ctx.variant == 1:
            return split, scale, active
        kept = active.to(scale.dtype)
        through = kept + (score - score.detach())
        return split, scale * (through * kept if self.st_kept_only else through), active

    def loss(self, ctx: Context, work: Slots, batch: Batch, trained: Sequence[str]) -> LossFn:
        """The loss of the gated model. What is not trained stays in evaluation mode. Beside the model's buffers it gives
        the gate's, the gates, and which were open."""
        frozen = ctx.task.frozen(ctx.phase.part if "params" in trained else frozenset())

        def loss(trees: Slots) -> Scored:
            slots = {**work, **trees}
            gates, buffers = self.gates(ctx, slots, batch.x, batch.weight, train=GATE in trained)
            split, scale, active = self.choose(ctx, gates)
            small = split.thin(slots["params"], slots["buffers"], scale, active)
            scored = ctx.task.loss(*small, batch, frozen=frozen)
            after = split.restore(scored.buffers, slots["buffers"], active)
            extra = {**{f"{GATE} {name}": leaf for name, leaf in buffers.items()}, **gates, "active": active}
            return scored._replace(buffers={**after, **{f"{SEEN} {name}": leaf for name, leaf in extra.items()}})

        return loss

    # -- client --------------------------------------------------------------------------------------

    def client_init(self, ctx: Context) -> Slots:
        """The gate, and what is known of its gates so far: that they start at the sigmoids' middle."""
        count, device = self.cut(ctx.task, ctx.variant).count, _device(ctx.task)
        start = torch.full((count,), 1.0 if self.fixed else 0.5, device=device)
        scale = start if self.fixed else torch.full_like(start, self.gate_bias).sigmoid()
        zero = torch.zeros((), device=device)
        seen = {"scale": scale, "score": start, "kept": start, "density": zero, "sent": zero, "samples": zero}
        own = {} if self.fixed else {GATE: ctx.nets["gate"].params, buffers_of(GATE): ctx.nets["gate"].buffers}
        return {**super().client_init(ctx), **own, SEEN: seen}
