"""pFedGate's model-adaptation: from a client's gating network and a batch to the sparse model that computes on it
(Algorithm 1, lines 4 and 5). Training, messages and prediction are the method's affair."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...analysis.blocks import Solver
from ...contract import Method, Slots, Tree, option, tree
from ...contract.context import ClientContext, RoundContext
from ...contract.slots import buffers_of
from ...core.errors import OptionError
from ...task.task import Batch, Task
from .blocks import Blocks, Split
from .gate import Gate, gate_input, smallest_pool
from .structured import Rows

GATE = "pfedgate.gate"
TALLY = "pfedgate.tally"
MEAN = "pfedgate.mean"


@dataclass(frozen=True)
class Adaptation(Method):
    """Where gates sit on the model, what they look at, and which of them are open."""

    s: float | tuple[float, ...] = option(
        0.5,
        above=0.0,
        max=1.0,
        tuned="budget",
        help="largest active share of the model; of a list, clients take their values in turn",
    )
    blocks: int = option(5, min=2, tuned="2:10", help="blocks per tensor")
    min_share: float | None = option(
        None, above=0.0, max=1.0, help="share of a tensor's first block, which always stays; none is min(1/blocks, s)"
    )
    split: str = option("blocks", choices=("blocks", "structured"), help="gates on blocks of tensors, or on rows")
    equal_chunks: bool = option(False, help="cut tensors into equal chunks, whatever min_share")
    solver: str = option(
        "density",
        choices=("density", "greedy", "exact"),
        help="how blocks are chosen: by score per parameter, by score, or the best sum of scores",
    )
    gate: str = option(
        "batch",
        choices=("batch", "client", "sample", "mean_input"),
        help="predict with each batch's gates, with the client's mean gates, or with each sample's; or train and"
        " predict with the gates of the mean of the client's inputs",
    )
    shared_path: bool = option(False, help="one path that both scales and scores")
    pre_norm: bool = option(True, help="switchable norm before the gate's linear maps")
    post_norm: bool = option(True, help="batch norm after them")
    sigmoid: bool = option(True, help="gates are sigmoids; false takes them as they come")
    gate_bias: float = option(
        0.0, min=-20.0, max=20.0, help="where the scales' sigmoids start: at 0 they are about 1/2, at 4 about 1"
    )
    scale_max: float = option(
        2.0,
        above=0.0,
        tuned="never",
        help="what scales are at most, so many times their sigmoids: with 2 they start at about 1, with 1, as in the"
        " paper, at about 1/2",
    )
    gate_pool: int | None = option(
        None,
        min=1,
        help="average squares of so many positions before the gate; none is 1 with blocks, with structured rows the"
        " smallest power of two with which the gate has at most half as many parameters as the model",
    )
    budgets_apart: bool = option(False, help="dense layers and all others have a budget each")
    decimals: int = option(5, min=0, max=7, tuned="never", help="scores that agree to so many decimals are equal")
    st_kept_only: bool = option(False, help="scores learn from kept blocks only")
    fixed: bool = option(False, help="no gate: all scales and scores are 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.budgets:
            raise OptionError("pfedgate: s=[] is not allowed; s must be a number in (0, 1] or a list of such")
        if self.min_share is not None and self.min_share > min(self.budgets):
            raise OptionError(
                f"pfedgate: min_share={self.min_share} is not allowed with s={self.s}; what always stays must fit every"
                f" client's budget, so min_share must lie in (0, {min(self.budgets)}]"
            )

    @property
    def budgets(self) -> tuple[float, ...]:
        """The values of s that occur."""
        return self.s if isinstance(self.s, tuple) else (self.s,)

    @property
    def looks_at_all(self) -> bool:
        """Whether gates come from the mean of all local inputs."""
        return self.gate == "mean_input" and not self.fixed

    def no_inputs(self, ctx: RoundContext) -> Tree:
        """A mean of no inputs yet."""
        task = ctx.task
        one = gate_input(task.net, task.net.params, task.example[0][:1].to(device_of(task)))[0]
        return {"x": torch.zeros_like(one), "samples": torch.zeros((), device=one.device)}

    def look(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """The mean of the inputs with those of one more batch; every pass begins anew."""
        x = gate_input(ctx.task.net, work["params"], batch.x)
        before = tree.zeros_like(work[MEAN]) if ctx.step == 0 else work[MEAN]
        samples = before["samples"] + batch.weight.sum()
        added = torch.tensordot(batch.weight.to(x.dtype), x, 1) - batch.weight.sum() * before["x"]
        return {**work, MEAN: {"x": before["x"] + added / samples, "samples": samples}}

    def variant(self, index: int) -> float:
        """The client's own s."""
        return self.budgets[index % len(self.budgets)]

    def cut(self, task: Task, s: float) -> Split:
        """Where the gates of a client with budget s sit."""
        if self.split == "structured":
            return Rows.of(task, s)
        share = min(1 / self.blocks, *self.budgets) if self.min_share is None else self.min_share
        solver: Solver = self.solver  # type: ignore[assignment]
        reserve = self.least_share(s) if self.budgets_apart else None
        return Blocks.of(task, s, self.blocks, share, self.equal_chunks, solver, reserve)

    def least_share(self, s: float) -> float:
        """The authors' s_min, min(max(1 / B, 0.1), s)."""
        return min(max(1 / self.blocks, 0.1), s)

    def modules(self, task: Task) -> dict[str, nn.Module]:
        if self.fixed:
            return {}
        shape = gate_input(task.net, task.net.params, task.example[0][:1].to(device_of(task))).shape[1:]
        count = self.cut(task, self.budgets[0]).count
        made = partial(Gate, shape, count, self.shared_path, self.pre_norm, self.post_norm, bias=self.gate_bias)
        made = partial(made, sigmoid=self.sigmoid)
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

    def gates(
        self, ctx: ClientContext, split: Split, slots: Slots, x: Tensor, weight: Tensor, train: bool = False
    ) -> tuple[Tree, Tree]:
        """Scale M and score G per gate, the gating network's means over a batch; and its buffers afterwards."""
        if self.fixed:
            ones = torch.ones(split.count, device=x.device)
            return {"scale": ones, "score": ones}, {}
        if self.looks_at_all:
            inputs: Any = (slots[MEAN]["x"][None], weight.new_ones(1))
            weight = inputs[1]
        else:
            inputs = (gate_input(ctx.task.net, slots["params"], x), weight)
        out = ctx.nets["gate"].apply(slots[GATE], slots[buffers_of(GATE)], inputs, train)
        mean = torch.einsum("b,bpl->pl", weight.to(out.outputs.dtype) / weight.sum(), out.outputs)
        scale = self.scale_max * mean[0] if self.sigmoid else mean[0]
        return {"scale": scale, "score": mean[-1]}, out.buffers

    def choose(self, split: Split, gates: Tree, s: float) -> tuple[Tensor, Tensor]:
        """The sparse gates M', and which are open (eq. 6); differentiable as in Appendix A."""
        scale, score = gates["scale"], gates["score"]
        known = score.detach().clamp_min(self.least_share(s)) if self.budgets_apart else score.detach()
        active = split.select(known.round(decimals=self.decimals))
        if s == 1:
            return scale, active
        open_gates = active.to(scale.dtype)
        through = open_gates + (score - score.detach())
        return scale * (through * open_gates if self.st_kept_only else through), active

    def sparse(self, ctx: ClientContext, model: Slots, x: Tensor) -> tuple[Split, Tree, Tree, Tensor]:
        """The model that predicts for a batch, and which gates are open in it."""
        split = self.cut(ctx.task, ctx.variant)
        if self.gate == "client":
            gates = model[TALLY]
        else:
            gates, _ = self.gates(ctx, split, model, x, torch.ones(len(x), device=x.device))
        scale, active = self.choose(split, gates, ctx.variant)
        return split, *split.thin(model["params"], model["buffers"], scale, active), active


def device_of(task: Task) -> torch.device:
    """Where the model's tensors live."""
    return next(iter(task.net.params.values())).device
