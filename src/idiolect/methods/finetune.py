"""Fine-tuning before prediction, on top of any method; `finetune(fedavg)` is FedAvg-FT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..contract import About, ClientContext, Method, Phase, Wrapper, default_inner, option, register


@register("finetune")
@dataclass(frozen=True)
class FineTune(Wrapper):
    """Before predicting, each client trains a throw-away copy of its personal model on its training data.

    The federation itself is untouched: what is sent and kept is the inner method's. So is what an unseen client does
    first: it is made ready as by the inner method, and then fine-tunes like all others. Hand-worked: personal model 1,
    gradient 2, learning rate 0.1, one step: the copy predicts with 0.8, the next round starts from 1.
    Run it: ``idiolect run "finetune(fedavg)"``.
    """

    about = About(
        "Each client trains a throw-away copy before it predicts",
        family="a start that adapts",
        kind="wrapper",
        reveals="as the method inside",
        stays="the fine-tuned copy",
    )
    identities = {"finetune(fedavg, epochs=0)": "fedavg"}
    touches_model: ClassVar[bool] = False

    inner: Method = field(default_factory=default_inner)
    epochs: int = option(1, min=0, help="passes over the training data")
    lr: float | None = option(None, above=0.0, help="learning rate; none is the run's")

    def adapt(self, ctx: ClientContext) -> Sequence[Phase]:
        """The inner method's adaptation, then the fine-tuning."""
        tuning = (Phase(self.inner.adapt_step, "finetune", epochs=self.epochs, lr=self.lr),) if self.epochs else ()
        return (*self.inner.adapt(ctx), *tuning)
