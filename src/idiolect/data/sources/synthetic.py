"""Simulated federations of two of the papers, in which the truth is known: FedFac's shared and personal
hidden units, and FedLAG's rectangles, whose clients pull a linear model apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.options import option
from ...core.randomness import generator
from ..federation import Federation
from ..partitions.base import Partition, partitions
from ..partitions.schemes import Group
from ..splits import SHARES, Unseen, check_seed
from .base import Dealing, Source, sources


@dataclass(frozen=True, eq=False)
class SimulationTruth:
    """What generated the labels of `fedfac_simulation`, equation 8 of the FedFac paper."""

    shared: Tensor
    """Which hidden units all clients share: bool [hidden]; the personal ones come first."""
    shared_inputs: Tensor
    """Which covariates have the same distribution everywhere: bool [features]; the personal ones come first."""
    weight: Tensor
    """Each client's true weights: [clients, hidden, features]."""
    head: Tensor
    """The output weights `a`, the same for all: [hidden]."""


def fedfac_simulation(
    clients: int = 100,
    share: float = 0.5,
    covariate_share: float = 0.5,
    seed: int = 0,
    *,
    train: int = 200,
    val: int = 100,
    test: int = 100,
    features: int = 100,
    hidden: int = 200,
    noise: float = 0.1,
    centred: bool = False,
    unseen: Unseen = 0.0,
    public: Any = None,
) -> tuple[Federation, SimulationTruth]:
    """FedFac's simulation (section 4.3): labels from a network whose hidden units are partly shared.

    Shared covariates are N(0, I), personal ones N(mu_c, S) with S_ij = 0.5^|i-j| and mu_c ~ N(0, I). A shared unit
    weighs shared covariates by U(-1, 1) and personal ones by U(-0.1, 0.1); a personal unit weighs personal
    covariates by N(mu_c, I) and shared ones by U(-0.1, 0.1). The output weights are N(0, I), the same for all, and
    y = 1 where the output plus N(0, noise^2) is positive. Validation samples are drawn in addition.

    Args:
        clients: number of clients.
        share: share of hidden units that all clients share (p in the paper).
        covariate_share: share of covariates that all clients share (alpha in the paper).
        seed: determines everything; a client's data do not depend on the number of clients.
        train, val, test: samples per client.
        features: number of covariates.
        hidden: number of hidden units.
        noise: standard deviation of the noise on the output.
        centred: make the output weights of personal, and of shared, units add up to zero. Taken literally, they add
            up to anything, and as personal units are nearly always active (w'x is about |mu_c|^2), that sum alone
            decides most labels: for most seeds, nearly all samples of all clients get the same label.
        unseen, public: as for `Federation.from_clients`.

    >>> federation, truth = fedfac_simulation(clients=3, share=0.3)
    >>> federation.clients[0], int(truth.shared.sum())
    (Client('client-0', train=200, val=100, test=100), 60)
    """
    own_units, own_inputs = hidden - round(share * hidden), features - round(covariate_share * features)
    rng = generator(check_seed(seed), "simulation")
    common = rng.uniform(-1, 1, (hidden - own_units, features))
    common[:, :own_inputs] = rng.uniform(-0.1, 0.1, (hidden - own_units, own_inputs))
    head = rng.standard_normal(hidden)
    if centred:
        for group in (head[:own_units], head[own_units:]):
            group -= group.mean() if len(group) else 0.0
    weights, data = [], []
    for position in range(clients):
        rng = generator(seed, "simulation client", position)
        mean = rng.standard_normal(own_inputs)
        personal = rng.uniform(-0.1, 0.1, (own_units, features))
        personal[:, :own_inputs] = mean + rng.standard_normal((own_units, own_inputs))
        weight = np.concatenate([personal, common])
        parts = {}
        for which, size in (("train", train), ("test", test), ("val", val)):
            x = rng.standard_normal((size, features))
            x[:, :own_inputs] = mean + _autoregressive(x[:, :own_inputs])
            output = np.maximum(x @ weight.T, 0) @ head + noise * rng.standard_normal(size)
            parts[which] = (x.astype(np.float32), (output > 0).astype(np.int64))
        weights.append(torch.from_numpy(weight).float())
        data.append(parts)
    federation = Federation.from_clients(
        data, seed=seed, name="fedfac-simulation", classes=2, unseen=unseen, public=public
    )
    truth = SimulationTruth(
        shared=torch.arange(hidden) >= own_units,
        shared_inputs=torch.arange(features) >= own_inputs,
        weight=torch.stack(weights),
        head=torch.from_numpy(head).float(),
    )
    return federation, truth


def _autoregressive(z: np.ndarray) -> np.ndarray:
    """Independent normal columns -> columns with covariance 0.5^|i-j|."""
    columns = [z[:, at] if at == 0 else np.sqrt(0.75) * z[:, at] for at in range(z.shape[1])]
    for at in range(1, len(columns)):
        columns[at] = columns[at] + 0.5 * columns[at - 1]
    return np.stack(columns, axis=1) if columns else z


# Centre of the client's boundary, side of its positive class, and width and height of its rectangles. Clients
# 1 and 3, and 2 and 4, are opposed.
_RECTANGLES = ((-6.0, -1, 4.0, 2.0), (-2.0, 1, 3.0, 2.0), (6.0, 1, 4.0, 2.0), (2.0, -1, 3.0, 2.0))


def fedlag_rectangles(
    iid: bool = False,
    seed: int = 0,
    *,
    points: int = 200,
    noise: float = 0.1,
    split: Sequence[float] = SHARES,
    unseen: Unseen = 0.0,
    public: Any = None,
) -> Federation:
    """FedLAG's toy data (appendix G): four clients whose own boundaries are orthogonal to the common one.

    Over all clients, the positive class lies above y = 0 and the negative one below. Within client 1, all positives
    also lie left of x = -6 and all negatives right of it, and a share `noise` of the points of each class lies on
    the wrong side of y = 0; so its own best boundary is x = -6. The others are built alike, with their positives
    to the left or to the right, so that the pulls of clients 1 and 3, and of 2 and 4, oppose each other. The paper
    gives this idea and the boundary x = -6; the other coordinates are ours.

    Args:
        iid: every client draws from the rectangles of all four, as in the paper's comparison.
        seed: determines everything.
        points: points per client, half of each class.
        noise: share of points on the wrong side of y = 0.
        split, unseen, public: as for `Federation.from_clients`.

    >>> fedlag_rectangles().clients[0]
    Client('client-0', train=120, val=40, test=40)
    """
    rng = generator(check_seed(seed), "rectangles")
    drawn = [_rectangle(rng, points, noise, *place) for place in _RECTANGLES]
    if iid:
        x, y = (np.concatenate([client[place] for client in drawn]) for place in (0, 1))
        drawn = [(x[part], y[part]) for part in np.array_split(rng.permutation(len(x)), len(drawn))]
    return Federation.from_clients(
        drawn, split=split, seed=seed, name="rectangles", classes=2, unseen=unseen, public=public
    )


def _rectangle(
    rng: np.random.Generator, points: int, noise: float, centre: float, side: int, width: float, height: float
) -> tuple[np.ndarray, np.ndarray]:
    label = np.arange(points) % 2
    sign = 2 * label - 1
    across = centre + side * sign * rng.uniform(0, width, points)
    wrong = rng.random(points) < noise
    up = sign * np.where(wrong, -0.5, 1.0) * rng.uniform(0, height, points)
    return np.stack([across, up], axis=1).astype(np.float32), label


@dataclass(frozen=True)
class Simulation(Source):
    """A source whose clients are generated, so that there is nothing to partition."""

    licence: ClassVar[str] = "generated"

    def federation(self, partition: str | Partition | None = None, **dealing: Unpack[Dealing]) -> Federation:
        """The generated clients."""
        if partition is not None and not isinstance(partitions.build(partition), Group):
            raise DataError(
                f"{self.name} comes as clients, so the partition {partition} cannot deal it anew;"
                " leave the partition out"
            )
        return self.simulate(**dealing)

    def simulate(self, clients: int | None = None, split: Sequence[float] | None = None, **dealing: Any) -> Federation:
        """Generate the clients."""
        raise NotImplementedError


@sources.register("fedfac-simulation")
@dataclass(frozen=True)
class FedFacSimulation(Simulation):
    """FedFac's recovery study as a data source; `fedfac_simulation` also returns the truth."""

    title: ClassVar[str] = "FedFac's simulation: shared and personal hidden units"
    size: ClassVar[str] = "200 + 100 + 100 samples per client, 100 features, 2 classes"
    groups: ClassVar[str] = "simulated clients (100 by default)"
    papers: ClassVar[str] = "FedFac, section 4.3"

    share: float = option(0.5, min=0.0, max=1.0, help="share of hidden units that all clients share")
    covariate_share: float = option(0.5, min=0.0, max=1.0, help="share of covariates that all clients share")
    noise: float = option(0.1, min=0.0, help="standard deviation of the noise on the output")
    centred: bool = option(False, help="output weights that add up to zero, so that both labels occur")

    def simulate(self, clients: int | None = None, split: Sequence[float] | None = None, **dealing: Any) -> Federation:
        """Generate the clients, which come split."""
        if split is not None:
            raise DataError(
                f"{self.name} draws 200 samples for training, 100 for validation and 100 for test; leave the split out"
            )
        many = 100 if clients is None else clients
        return fedfac_simulation(
            many, self.share, self.covariate_share, noise=self.noise, centred=self.centred, **dealing
        )[0]


@sources.register("rectangles", "fedlag-rectangles")
@dataclass(frozen=True)
class Rectangles(Simulation):
    """FedLAG's toy data as a data source."""

    title: ClassVar[str] = "FedLAG's rectangles: clients that pull a linear model apart"
    size: ClassVar[str] = "200 points per client, 2 features, 2 classes"
    groups: ClassVar[str] = "four clients"
    papers: ClassVar[str] = "FedLAG, figure 2 and appendix G"

    iid: bool = option(False, help="every client draws from all rectangles")
    points: int = option(200, min=1, help="points per client")
    noise: float = option(0.1, min=0.0, max=1.0, help="share of points on the wrong side of y = 0")

    def simulate(self, clients: int | None = None, split: Sequence[float] | None = None, **dealing: Any) -> Federation:
        """Generate the four clients."""
        if clients not in (None, 4):
            raise DataError(f"{self.name} has four clients, not {clients}; leave their number out")
        shares = SHARES if split is None else split
        return fedlag_rectangles(self.iid, points=self.points, noise=self.noise, split=shares, **dealing)
