"""FedBN: normalisation stays on the client, everything else is averaged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import About, ClientContext, Method, Phase, Task, register


@register("fedbn")
@dataclass(frozen=True)
class FedBN(Method):
    r"""FedBN (Li et al., ICLR 2021): FedAvg of all layers but the normalisation layers, which are never sent
    (Algorithm 1). For layer l of client i after local training,

    .. math:: w_i^{(l)} \leftarrow w_i^{(l)} \text{ if } l \text{ is a normalisation, else }
        \sum_j \frac{n_j}{\sum_k n_k} w_j^{(l)}.

    Normalisation layers are found by the type of the module (batch, group, layer, instance, RMS), not by its name;
    their scale, shift and running statistics all stay. A client that never trained has the initial ones. An unseen
    client first measures its own statistics, then trains its own scales and shifts on the shared layers.
    Run it: ``idiolect run fedbn``.
    """

    about = About(
        "Private normalisation layers",
        family="private layers",
        paper="li2021fedbn",
        reveals="all but normalisation layers",
        stays="normalisation layers with their statistics",
    )

    def private_names(self, task: Task) -> frozenset[str]:
        """Scales, shifts and statistics of all normalisation layers."""
        return task.names_of(unit for unit in task.units if unit.is_norm)

    def check(self, task: Task) -> None:
        """Without normalisation there is nothing to keep."""
        if not self.private_names(task):
            warnings.warn(
                "fedbn: the model has no normalisation layer with values of its own, so fedbn is fedavg; "
                "choose a model with normalisation",
                stacklevel=2,
            )

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client fits its own normalisation, or all of a model that has none."""
        measure = (Phase(self.recompute_statistics, "stats", slots=(), epochs=1),) if ctx.task.stat_momentum else ()
        return (*measure, Phase(self.adapt_step, "onboard", part=ctx.task.norms or None))
