"""Data: a function that returns clients by name. A real one would read files."""

from __future__ import annotations

import numpy as np


def sensors(sites: int = 4, samples: int = 60, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Vibrations of machines at several sites, each with a level of its own."""
    rng = np.random.default_rng(seed)
    clients = {}
    for site in range(sites):
        x = rng.normal(site, 1, (samples, 6)).astype("float32")
        clients[f"site-{site + 1}"] = (x, (x.mean(1) > site).astype(int))
    return clients
