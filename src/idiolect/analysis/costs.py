"""What methods cost by their orders of growth, as pFedGate's table 5 compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import OptionError


class Costs(NamedTuple):
    """Orders of growth, in parameters, without the constants that O(...) hides.

    Attributes:
        train, infer: computation of a client for one batch.
        server: computation of the server in a round, beside averaging.
        client_traffic, server_traffic: what one client sends in a round, and what all participants do.
        memory: a client's peak memory beside intermediate results.
        client_disk, server_disk: what is kept.
    """

    train: float
    infer: float
    server: float
    client_traffic: float
    server_traffic: float
    memory: float
    client_disk: float
    server_disk: float


def union_share(shares: Sequence[float]) -> float:
    r"""The share q of a model that is active in some batch of a round, and so is sent.

    .. math:: q = 1 - \prod_j (1 - p_j)

    The paper's :math:`p_j` is the probability that a parameter is active in batch j, given that it was in none before;
    :math:`p_1 = s`, and the others are smaller, since batches of one client resemble each other.

    Example:
        >>> round(union_share([0.5, 0.2, 0.1]), 6)
        0.64

    Reference:
        pFedGate, appendix F.
    """
    if not all(0 <= share <= 1 for share in shares):
        raise OptionError(f"The shares are {list(shares)}, but all are probabilities in [0, 1].")
    return 1 - math.prod(1 - share for share in shares)


def compare_costs(
    parameters: int,
    gate_parameters: int,
    s: float = 0.5,
    sent: float = 0.67,
    components: int = 3,
    participants: int = 1,
    clients: int = 1,
    hidden: int = 100,
) -> dict[str, Costs]:
    r"""pFedGate's table 5 for given sizes: FedAvg, pFedHN, FedEM with k components, and pFedGate.

    With d parameters of the model and a gate of :math:`s_\phi d` parameters, pFedGate trains at
    :math:`2 d (s + s_\phi)`, infers at :math:`d (s + s_\phi)`, sends :math:`q d` and keeps :math:`(1 + s_\phi) d`.
    The paper prints :math:`s_\phi = d / 2 d_X L`, which is upside down: the gate has about :math:`2 d_X L` parameters.
    Its example, 0.05, holds for large models: count the gate that is used. Computation shrinks with s only where closed
    blocks are not computed (`pfedgate(split=structured)`), and `sent` has to be measured (the record `sent`).

    Args:
        parameters: d, of the model.
        gate_parameters: of one client's gate.
        s: largest active share of the model.
        sent: q, the share of the model that is active in some batch of a round.
        components: k of FedEM.
        participants, clients: how many take part in a round, and how many there are.
        hidden: width d_h of pFedHN's hyper-network; its embedding has a quarter of `clients`.

    Example:
        >>> costs = compare_costs(1000, 50)
        >>> costs["pfedgate"].train, costs["pfedgate"].client_disk, costs["fedem"].train, costs["fedavg"].train
        (1100.0, 1050.0, 6000.0, 2000.0)

    Reference:
        pFedGate, appendix F and table 5.
    """
    if min(parameters, components, participants, clients, hidden) < 1 or gate_parameters < 0:
        raise OptionError(
            f"parameters is {parameters}, components {components}, participants {participants}, clients {clients}, "
            f"hidden {hidden} and gate_parameters {gate_parameters}, but all must be at least 1, the last at least 0."
        )
    if not (0 < s <= 1 and 0 < sent <= 1):
        raise OptionError(f"s is {s} and sent is {sent}, but both are shares of the model in (0, 1].")
    d, k, embedding = float(parameters), components, clients / 4
    active = s * d + gate_parameters
    whole = Costs(2 * d, d, 1.0, d, participants * d, d, d, d)
    return {
        "fedavg": whole,
        "pfedhn": whole._replace(
            server=(embedding + hidden) * participants, server_disk=embedding * hidden + embedding * clients
        ),
        "fedem": Costs(2 * k * d, d, 1.0, k * d, k * participants * d, k * d, k * d, k * d),
        "pfedgate": Costs(
            2 * active, active, 1.0, sent * d, participants * d, d + gate_parameters, d + gate_parameters, d
        ),
    }
