"""pFedMe: personal models that solve a proximal problem around the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..contract import About, Batch, ClientContext, Grad, OptionError, Phase, Slots, option, register, tree
from ..contract.parts.server_step import ServerStep
from ..contract.slots import Slot, keep_model, model_in, private
from ..task.optimizers import SGD

OWN, CENTRE = "pfedme.own", "pfedme.centre"


@register("pfedme")
@dataclass(frozen=True)
class PFedMe(ServerStep):
    r"""pFedMe (Dinh et al., NeurIPS 2020): each client minimises the Moreau envelope of its loss (eqs. 2 and 3),

    .. math:: F_i(w) = \min_\theta f_i(\theta) + \frac{\lambda}{2} \|\theta - w\|^2, \qquad
        \nabla F_i(w) = \lambda (w - \theta_i(w)).

    On every batch :math:`\theta` takes K steps on the inner problem, and then the client's copy of the global model one
    of the run's learning rate :math:`\eta` (Algorithm 1),

    .. math:: \theta \leftarrow \theta - \eta_\theta \bigl(\nabla f_i(\theta) + \lambda (\theta - w_i)\bigr), \qquad
        w_i \leftarrow w_i - \eta \lambda (w_i - \theta), \qquad w \leftarrow (1 - \beta) w + \beta \text{mean}_i w_i.

    :math:`\theta` starts every round from the received model and predicts; a client that was absent keeps its last one.
    Both steps are plain gradient descent whatever the run's optimiser, whose weight decay and clipping they keep.
    A new client solves the inner problem around the global model. Run it: ``idiolect run pfedme``.
    """

    about = About(
        "Personal models by Moreau envelopes",
        family="a model of one's own",
        paper="dinh2020pfedme",
        reveals="its copy of the global model, moved towards the personal one",
        stays="the personal model",
        caution="from one round's move the server can estimate the personal model",
    )
    presets = {"paper": {**ServerStep.presets["paper"], "inner_lr": 0.09}}

    lam: float = option(15.0, above=0.0, help="pull of the personal model towards the client's global one")
    inner_steps: int = option(5, min=1, help="steps of the personal model per batch (K)")
    inner_lr: float | None = option(None, above=0.0, help="learning rate of these steps; none is 1 / (2 lam)")
    beta: float = option(1.0, above=0.0, help="share of the clients' mean in the new global model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_lr is not None and self.inner_lr * self.lam >= 2:
            raise OptionError(
                f"pfedme: inner_lr={self.inner_lr} and lam={self.lam} do not go together; inner_lr * lam must lie "
                f"below 2, or no step brings the two models nearer: choose inner_lr below {2 / self.lam:.3g}"
            )

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {**super().slots, OWN: private(holds="model")}

    @property
    def solver_lr(self) -> float:
        """The learning rate of the inner problem, whose curvature is lambda and that of the loss."""
        return 1 / (2 * self.lam) if self.inner_lr is None else self.inner_lr

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        return keep_model(work, OWN)

    def phases(self, ctx: ClientContext) -> tuple[Phase, ...]:
        return (Phase(self.step_both, slots=("params", OWN)),)

    def step_both(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """K steps of the personal model, then one of the global copy along the envelope's gradient."""
        ctx = plain(ctx)
        for _ in range(self.inner_steps):
            grad = ctx.grad(work, OWN, batch).plus(tree.sub(work[OWN], work["params"]), self.lam)
            work = ctx.optimize(work, OWN, grad, batch, lr=self.solver_lr)
        envelope = tree.scale(tree.sub(work["params"], work[OWN]), self.lam)
        return ctx.optimize(work, "params", Grad({"params": envelope}, grad.scored), batch)

    @property
    def server_lr(self) -> float:
        return self.beta

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The personal model; a client that has never trained has the global one, around which it may solve."""
        return {**super().personal_model(ctx, work), CENTRE: work["params"]} if ctx.newcomer else model_in(work, OWN)

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        return (Phase(self.solve, "pfedme.solve"),)

    def solve(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """K steps of the personal model with the global one fixed."""
        ctx = plain(ctx)
        for _ in range(self.inner_steps):
            grad = ctx.grad(model, "params", batch).plus(tree.sub(model["params"], model[CENTRE]), self.lam)
            model = ctx.apply(model, "params", grad, self.solver_lr)
        return model


def plain(ctx: ClientContext) -> ClientContext:
    """The same work by gradient descent without momentum or moments: rates and pull are chosen for each other."""
    optimizer = ctx.training.optimizer
    descent = SGD(weight_decay=optimizer.weight_decay, clip=optimizer.clip)
    return replace(ctx, training=replace(ctx.training, optimizer=descent))
