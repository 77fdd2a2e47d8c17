"""FedRoD: a generic head that is trained for balanced classes, and on top of it a private one for the client's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..contract import About, Batch, ModelError, Output, Phase, Scored, Slots, Task, Tree, option, register, tree
from ..contract.context import ClientContext
from ..contract.parts.class_statistics import class_shares, require_classes
from ..contract.parts.heads import head_outputs, head_params, zeros_like_head
from ..contract.parts.on_features import OnFeatures, params_of
from ..contract.slots import Slot, private, shared
from ..task.losses import class_axis

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

    from zero on, and the client predicts with :math:`g(\varphi) + p(\varphi)`. With `hyper` a small network, which is
    averaged like the body, makes the private head from the client's class shares: then nothing is private, and unseen
    clients have a head at once. Run it: ``idiolect run fedrod``.
    """

    about = About(
        "A balanced generic head and a private one on top",
        family="private layers",
        paper="chen2022fedrod",
        reveals="the model with its generic head",
        stays="the private head and the class counts",
        caution="with hyper=true the network that makes heads from class shares is sent too",
    )

    gamma: float = option(1.0, min=0.0, help="how much the generic loss makes up for class counts; 0 is not at all")
    hyper: bool = option(False, help="make private heads from class shares by a common network")
    hidden: int = option(32, min=1, help="width of that network")
    own_lr: float | None = option(
        None, above=0.0, help="learning rate of the private head, or of that network; none is the run's"
    )
    onboard_epochs: int = option(
        10, min=0, tuned="never", help="passes in which an unseen client trains its private head"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model; the private head, which stays, or what makes it, which does not."""
        head = {HYPER: shared(params_of(HYPER))} if self.hyper else {OWN: private(zeros_like_head)}
        return {**super().slots, **head}

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
        super().check(task)
        classes, outputs = require_classes(self.name, task), task.example_output.outputs
        if outputs.ndim < 2 or outputs.shape[class_axis(outputs, task.example[1][:2])] != classes:
            raise ModelError(
                f"fedrod adds the logarithm of class counts to the logits, so there must be one for each of {classes} "
                f"classes, but the model gives outputs {tuple(outputs.shape[1:])}; give a model with a logit per class"
            )

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        return (Phase(self.step, slots=("params", self.personal_slot)),)

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step of body and generic head, and one of the private head; both losses are those before the step."""

        def generic_loss(trees: Slots) -> Scored:
            out = self.model_output(ctx, {**work, **trees}, batch.x, train=True)
            return Scored(ctx.task.score(self.shift_logits(ctx, out.outputs, batch), batch), *out)

        grad = ctx.grad(work, "params", batch, generic_loss)
        generic = grad.scored

        def personal_loss(trees: Slots) -> Scored:
            outputs = generic.outputs + head_outputs(ctx.task, self.private_head(ctx, trees), generic.features)
            return Scored(ctx.task.score(outputs, batch), outputs, generic.features, generic.buffers)

        personal_grad, own_lr = ctx.grad(work, self.personal_slot, batch, personal_loss), ctx.scheduled(self.own_lr)
        return self.optimize_slots(ctx, self.optimize_slots(ctx, work, grad, batch), personal_grad, batch, own_lr)

    def shift_logits(self, ctx: ClientContext, outputs: Tensor, batch: Batch) -> Tensor:
        """Logits plus gamma log n_c (eq. 5)."""
        prior = torch.where(ctx.class_counts > 0, ctx.class_counts.clamp_min(1).log(), ABSENT)
        shape = [1] * outputs.ndim
        shape[class_axis(outputs, batch.y)] = -1
        return outputs + self.gamma * prior.to(outputs.dtype).reshape(shape)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model and the private head."""
        return {**super().personal_model(ctx, work), OWN: self.private_head(ctx, work)}

    def private_head(self, ctx: ClientContext, slots: Slots) -> Tree:
        """The private head: the client's own, or what the network makes of its class shares."""
        if OWN in slots:
            return slots[OWN]
        made = ctx.nets[HYPER].apply(slots[HYPER], {}, class_shares(ctx)[None]).outputs[0]
        return tree.unflatten(made, head_params(ctx.task))

    def forward(self, ctx: ClientContext, slots: Slots, x: Tensor, train: bool = False) -> Output:
        """The sum of both heads."""
        out = self.model_output(ctx, slots, x, train)
        return out._replace(outputs=out.outputs + head_outputs(ctx.task, slots[OWN], out.features))

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its private head."""
        part = frozenset(head_params(ctx.task))
        epochs = self.onboard_epochs
        return (Phase(self.adapt_step, "onboard", slots=(OWN,), part=part, epochs=epochs, lr=self.own_lr),)
