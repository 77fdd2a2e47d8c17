"""FedRoD: a generic head that is trained for balanced classes, and on top of it a private one for the client's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..contract import (
    About,
    Batch,
    ClientContext,
    ModelError,
    Phase,
    Scored,
    Slot,
    Slots,
    Task,
    Tree,
    option,
    private,
    register,
    shared,
    tree,
)
from ..contract.parts.class_statistics import require_classes
from ..contract.parts.heads import head_outputs, head_params, zeros_like_head
from ..contract.parts.on_features import OnFeatures, params_of
from ..task.losses import class_axis
from ..task.network import Output

OWN, HYPER = "fedrod.own", "fedrod.hyper"
ABSENT = -1e4
"""Stands for the logarithm of no samples: no probability, and no gradient."""


@register("fedrod")
@dataclass(frozen=True)
class FedRoD(OnFeatures):
    r"""FedRoD (Chen and Chao, ICLR 2022): body :math:`\varphi` and generic head g are averaged. They are trained as if
    all clients had balanced classes, by a soft-max that knows the client's class counts :math:`n_c` (eq. 5),

    .. math:: \ell_G = - \log \frac{n_y^\gamma e^{g_y}}{\sum_c n_c^\gamma e^{g_c}}.

    The private head p learns what is left, on features and generic logits that it does not change (eq. 6),

    .. math:: \ell_P = \ell\bigl(\text{sg}(g(\varphi)) + p(\text{sg}(\varphi)), y\bigr),

    and the client predicts with :math:`g(\varphi) + p(\varphi)`. The private head starts at zero, so that a client that
    never trained predicts with the generic one; an unseen client trains its private head.

    With `hyper` a small network, which is averaged like the body, makes the private head from the client's class
    shares: then nothing is private, and unseen clients have a head at once. Run it: ``idiolect run fedrod``.

    Hand-worked: one sample of class 0 with logits (0, 0) at a client with n = (3, 1). The balanced soft-max gives
    class 0 the probability 3 / (3 + 1), so the gradient of the generic logits is (-1/4, 1/4), where the plain soft-max
    has (-1/2, 1/2); the private head, which sees the plain one, moves along (-1/2, 1/2).
    """

    about = About(
        "A balanced generic head and a private one on top",
        paper="chen2022fedrod",
        reveals="the model with its generic head",
        stays="the private head and the class counts",
        caution="with hyper=true the network that makes heads from class shares is sent too",
    )
    identities: ClassVar[dict[str, str]] = {"fedrod(gamma=0)": "fedavg"}

    gamma: float = option(1.0, min=0.0, help="how much the generic loss makes up for class counts; 0 is not at all")
    hyper: bool = option(False, help="make private heads from class shares by a common network")
    hidden: int = option(32, min=1, help="width of that network")
    own_lr: float | None = option(
        None, above=0.0, help="learning rate of the private head, or of that network; none is the run's"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model; the private head, which stays, or what makes it, which does not."""
        own = {HYPER: shared(params_of(HYPER))} if self.hyper else {OWN: private(zeros_like_head)}
        return {**super().slots, **own}

    @property
    def personal_slot(self) -> str:
        """The slot that the personal loss trains."""
        return HYPER if self.hyper else OWN

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """To make private heads, a network that at first makes zeros."""
        if not self.hyper:
            return {}
        last = nn.Linear(self.hidden, tree.size(head_params(task)))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return {HYPER: nn.Sequential(nn.Linear(require_classes(self.name, task), self.hidden), nn.ReLU(), last)}

    def check(self, task: Task) -> None:
        """Class counts need classes, and a logit for each."""
        super().check(task)
        classes, (x, y) = require_classes(self.name, task), task.example
        outputs = task.forward(task.net.params, task.net.buffers, x[:2]).outputs
        if outputs.ndim < 2 or outputs.shape[class_axis(outputs, y[:2])] != classes:
            raise ModelError(
                f"fedrod adds the logarithm of class counts to the logits, so there must be one for each of {classes} "
                f"classes, but the model gives outputs {tuple(outputs.shape[1:])}; give a model with a logit per class"
            )

    # -- client ------------------------------------------------------------------------------------

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        """One phase that trains both."""
        return (Phase(self.step, slots=("params", self.personal_slot)),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of body and generic head, and one of the private head; both losses are those before the step."""

        def balanced(trees: Slots) -> Scored:
            out = self.model_output(ctx, {**work, **trees}, batch.x, train=True)
            return Scored(ctx.task.score(self.shift_logits(ctx, out.outputs, batch), batch), *out)

        grad = ctx.grad(work, "params", batch, balanced)
        generic = grad.scored

        def personal(trees: Slots) -> Scored:
            outputs = generic.outputs + head_outputs(ctx.task, self.private_head(ctx, trees), generic.features)
            return Scored(ctx.task.score(outputs, batch), outputs, generic.features, generic.buffers)

        own = ctx.grad(work, self.personal_slot, batch, personal)
        return self.optimize_slots(ctx, self.optimize_slots(ctx, work, grad, batch), own, batch, self.own_lr)

    def shift_logits(self, ctx: ClientContext, outputs: Tensor, batch: Batch) -> Tensor:
        """Logits plus gamma log n_c (eq. 5)."""
        prior = torch.where(ctx.class_counts > 0, ctx.class_counts.clamp_min(1).log(), ABSENT)
        shape = [1] * outputs.ndim
        shape[class_axis(outputs, batch.y)] = -1
        return outputs + self.gamma * prior.to(outputs.dtype).reshape(shape)

    # -- prediction --------------------------------------------------------------------------------

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model and the private head."""
        return {**super().personal_model(ctx, work), OWN: self.private_head(ctx, work)}

    def private_head(self, ctx: ClientContext, slots: Slots) -> Tree:
        """The private head: the client's own, or what the network makes of its class shares."""
        if OWN in slots:
            return slots[OWN]
        shares = ctx.class_counts / ctx.class_counts.sum().clamp_min(1)
        made = ctx.nets[HYPER].apply(slots[HYPER], {}, shares[None]).outputs[0]
        like = head_params(ctx.task)
        pieces = torch.split(made, [leaf.numel() for leaf in like.values()])
        return {name: piece.reshape(leaf.shape) for (name, leaf), piece in zip(like.items(), pieces, strict=True)}

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The sum of both heads."""
        out = self.model_output(ctx, slots, x, train)
        return out._replace(outputs=out.outputs + head_outputs(ctx.task, slots[OWN], out.features))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its private head."""
        part = frozenset(head_params(ctx.task))
        return (Phase(self.adapt_step, "onboard", slots=(OWN,), part=part, lr=self.own_lr),)
