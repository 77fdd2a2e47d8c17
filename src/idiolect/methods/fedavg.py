"""FedAvg: one model for all, and what every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import About, Method, register


@register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    r"""FedAvg (McMahan et al., AISTATS 2017): clients train the global model, the server averages it.

    .. math:: w \leftarrow \sum_{i \in S} \frac{n_i}{\sum_{j \in S} n_j} w_i

    Buffers (running statistics) are averaged too; `norm_stats=local` keeps them on the clients.
    Run it: ``idiolect run fedavg``.
    """

    about = About(
        "One model for all: the average of the clients'",
        family="one model for all",
        paper="mcmahan2017fedavg",
        kind="global",
    )
