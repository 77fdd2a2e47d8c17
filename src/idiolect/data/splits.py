"""How one client's samples are cut into training, validation and test, and which clients are held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError, OptionError
from ..core.names import visible
from ..core.options import did_you_mean
from ..core.randomness import LARGEST_SEED, generator

Indices = NDArray[np.int64]
Shares = tuple[float, float, float]
Unseen = float | str | Sequence[str]
"""Clients that never train: a share of all, or their names."""

SPLITS = ("train", "val", "test")
SHARES: Shares = (0.6, 0.2, 0.2)


def check_shares(shares: Sequence[float]) -> Shares:
    """The shares of training, validation and test as a triple, or an `OptionError`.

    >>> check_shares([0.75, 0, 0.25])
    (0.75, 0.0, 0.25)
    """
    try:
        train, val, test = (float(share) for share in shares)
    except (TypeError, ValueError):
        train = val = test = -1.0
    if not (train > 0 and val >= 0 and test >= 0 and abs(train + val + test - 1) < 1e-6):
        raise OptionError(
            f"split={shares!r} is not allowed; give the shares of training, validation and test as three numbers"
            " that add up to 1, with some training, such as (0.6, 0.2, 0.2)"
        )
    return train, val, test


def check_seed(seed: Any) -> int:
    """The seed, or an `OptionError`.

    >>> check_seed(3)
    3
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise OptionError(f"seed={seed!r} is not allowed; a seed must be a whole number from 0 to {LARGEST_SEED}")
    return seed


def cut(samples: int, shares: Shares, rng: np.random.Generator) -> dict[str, Indices]:
    """Shuffle `samples` positions and cut them into the three splits; at least one is for training.

    >>> {which: len(index) for which, index in cut(10, SHARES, generator(0, "split")).items()}
    {'train': 6, 'val': 2, 'test': 2}
    """
    _, val_share, test_share = shares
    spare = max(0, samples - 1)
    test = min(round(test_share * samples), spare)
    val = min(round(val_share * samples), spare - test)
    order = rng.permutation(samples)
    parts = {"train": order[test + val :], "val": order[test : test + val], "test": order[:test]}
    return {which: np.sort(index) for which, index in parts.items()}


def hold_out(names: Sequence[str], unseen: Unseen, seed: int) -> frozenset[int]:
    """The clients that never train, by position: those that are named, or of a share `max(1, round(share * clients))`,
    and never all.

    >>> len(hold_out([str(number) for number in range(20)], 0.1, seed=0))
    2
    >>> sorted(hold_out(["north", "south", "east"], ["east", "north"], seed=0))
    [0, 2]
    """
    if not isinstance(unseen, int | float):
        return _find_held_out(names, [unseen] if isinstance(unseen, str) else list(unseen))
    if not 0 <= unseen < 1:
        raise OptionError(
            f"unseen={unseen!r} is not allowed; the share of held-out clients must lie in [0, 1); clients by name are a"
            f" list of texts, as in unseen=[{str(unseen)!r}]"
        )
    if unseen == 0:
        return frozenset()
    if len(names) < 2:
        raise DataError(f"unseen={unseen} would hold out the only client; use at least two clients, or unseen=0")
    count = min(max(1, round(unseen * len(names))), len(names) - 1)
    return frozenset(generator(seed, "unseen").choice(len(names), count, replace=False).tolist())


def _find_held_out(names: Sequence[str], wanted: Sequence[str]) -> frozenset[int]:
    places = {name: place for place, name in enumerate(names)}
    if unknown := [name for name in wanted if name not in places]:
        shown = ", ".join(map(visible, names[:5])) + ", ..." * (len(names) > 5)
        raise DataError(
            f"unseen: no client is called {str(unknown[0])!r}.{did_you_mean(str(unknown[0]), names)} There are {shown}"
        )
    if len(set(wanted)) == len(names):
        raise DataError("unseen names all clients, so none is left to train; leave one out")
    return frozenset(places[name] for name in wanted)
