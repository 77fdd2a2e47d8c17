"""A partition: samples go to the clients in turn. Of labels, samples, clients, rng and groups it is given what it asks
for."""

from __future__ import annotations

import numpy as np


def in_turn(samples: int, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffled samples, to the clients in turn."""
    order = rng.permutation(samples)
    return [order[first::clients] for first in range(clients)]
