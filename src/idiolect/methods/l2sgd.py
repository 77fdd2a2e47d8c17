"""L2SGD: personal models that, between random numbers of local steps, move a share of the way to their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..contract import About, Method, OptionError, Phase, Slots, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.slots import Slot, just_trained, keep_model, model_in, private, zero

OWN, SHARE = "l2sgd.own", "l2sgd.share"


@register("l2sgd")
@dataclass(frozen=True)
class L2SGD(Method):
    r"""L2SGD, or loopless local gradient descent (Hanzely and Richtarik, 2020), for personal models near their mean
    (eq. 2),

    .. math:: \min_{x_1, \dots, x_n} \frac1n \sum_i f_i(x_i) + \frac{\lambda}{2n} \sum_i \|x_i - \bar x\|^2.

    Every step tosses one coin for all (Algorithm 1): with probability 1 - p each client takes a gradient step of its
    own, and with probability p all move towards the mean,

    .. math:: x_i \leftarrow x_i - \tfrac{\eta}{n (1 - p)} \nabla f_i(x_i), \qquad
        x_i \leftarrow (1 - a) x_i + a \bar x, \quad a = \tfrac{\eta \lambda}{n p}.

    Here a round is the local steps up to the next move, K of them with :math:`P(K = k) = p (1 - p)^{k-1}`, drawn by
    the server and so 1 / p on average whatever the run's local epochs are, and then one move. The run's learning
    rate lr is that of the local steps, so that :math:`a = lr \lambda (1 - p) / p`, which must not exceed 1. Without a
    given lambda a is 1/2, the most for which the convergence theorem holds.

    The mean is that of a round's participants; a client moves towards the newest mean when it is next in contact. One
    that never trained has no model of its own, and takes the mean. Run it: ``idiolect run l2sgd``.
    """

    about = About(
        "Personal models that move towards their mean",
        family="a model of one's own",
        paper="hanzely2020l2sgd",
        reveals="the client's own model",
        caution="personal models leave the client: the server averages them",
    )

    p: float = option(0.1, above=0.0, below=1.0, help="probability of a move after each step; 1/p steps on average")
    lam: float | None = option(None, min=0.0, help="pull towards the mean; none: so that a move goes half the way")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The mean of the models; the client's own, and how far it has yet to move, stay."""
        return {**super().slots, OWN: private(holds="model"), SHARE: private(zero("a"))}

    def steps(self, ctx: RoundContext) -> int:
        """How many local steps there are before the coin says to move."""
        return int(ctx.rng("l2sgd").geometric(self.p))

    def share(self, ctx: ClientContext) -> float:
        """How far a move goes: a."""
        a = 0.5 if self.lam is None else ctx.lr * self.lam * (1 - self.p) / self.p
        if a > 1:
            raise OptionError(
                f"l2sgd: lam={self.lam} and p={self.p} are not allowed at the learning rate {ctx.lr:g}; a move would "
                f"go a = lr * lam * (1 - p) / p = {a:.3g} of the way to the mean, and beyond it where a exceeds 1; "
                f"choose lam up to {self.p / ((1 - self.p) * ctx.lr):.3g}, a larger p or a smaller learning rate"
            )
        return a

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model after its move; how far it will move after the local steps."""
        return {**work, **self.move(ctx, work), SHARE: {"a": torch.full_like(ctx.samples, self.share(ctx))}}

    def move(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's model after its move towards the received mean; counters and what is not sent are its own."""
        mean, a = super().personal_model(ctx, work), work[SHARE]["a"]
        if ctx.newcomer:
            return mean
        moving = {slot: tree.floats(tree.drop(leaves, ctx.private_names)) for slot, leaves in mean.items()}
        return {slot: {**leaves, **tree.mix(moving[slot], leaves, a)} for slot, leaves in model_in(work, OWN).items()}

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        return (Phase(self.step, steps=self.steps(ctx)),)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the model, which has yet to move, and send it."""
        return keep_model(work, OWN)

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The model after its move towards the newest mean; right after local training the move is yet to come."""
        return super().personal_model(ctx, work) if just_trained(work) else self.move(ctx, work)

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        return {"steps": self.steps(ctx)}
