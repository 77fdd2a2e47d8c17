"""FedBABU: the head stays at its initial values while the body is learnt, and is fine-tuned before predicting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import About, ClientContext, Method, ModelError, OptionError, Phase, Task, option, register
from ..contract.parts.private_layers import shared_names


@register("fedbabu")
@dataclass(frozen=True)
class FedBABU(Method):
    r"""FedBABU (Oh et al., ICLR 2022): during the federation only the body is trained and averaged (Algorithm 1); the
    head keeps its random initial values, which all clients have in common and which are never sent,

    .. math:: \theta_{ext} \leftarrow \sum_i \frac{n_i}{\sum_j n_j} \theta_{ext,i}, \qquad
        \theta_{cls} = \theta_{cls}^0.

    Before predicting, each client, seen or unseen, fine-tunes a throw-away copy of body and head. The personal model
    before that is unchanged; its accuracy is the paper's "initial accuracy". Run it: ``idiolect run fedbabu``.
    """

    about = About(
        "A body learnt under a fixed head, then fine-tuned",
        family="private layers",
        paper="oh2022fedbabu",
        reveals="the body",
        stays="the head, which is the same random one everywhere; the fine-tuned copy",
    )
    identities = {"fedbabu(layers=0, epochs=0)": "fedavg"}

    layers: int = option(1, min=0, help="how many of the last layers stay at their initial values")
    epochs: int = option(5, min=0, help="passes of fine-tuning before predicting")
    part: str = option("all", choices=("all", "body", "head"), help="what is fine-tuned")
    lr: float | None = option(None, above=0.0, help="learning rate of fine-tuning; none is the run's")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part == "head" and self.layers == 0:
            raise OptionError(
                "fedbabu: part=head is not allowed with layers=0, which leaves no head to fine-tune; "
                "choose layers=1, or another part"
            )

    def private_names(self, task: Task) -> frozenset[str]:
        """The last layers."""
        return task.head(self.layers)

    def check(self, task: Task) -> None:
        """There has to be a body to train."""
        if not shared_names(self, task):
            raise ModelError(
                f"fedbabu: with layers={self.layers} the whole model would stay at its initial values; choose fewer "
                "layers, or a model with more"
            )

    def body(self, ctx: ClientContext) -> frozenset[str] | None:
        """All that is not the head; None is the whole model."""
        return shared_names(self, ctx.task) if self.private_names(ctx.task) else None

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The body alone."""
        return (Phase(self.step, part=self.body(ctx)),)

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """Fine-tuning of body and head, or of one of them."""
        part = {"all": None, "body": self.body(ctx), "head": self.private_names(ctx.task)}[self.part]
        return (Phase(self.adapt_step, "finetune", part=part, epochs=self.epochs, lr=self.lr),) if self.epochs else ()

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client fine-tunes as all others do, and nothing else."""
        return ()
