"""The settings of a deployment: how long the server waits and what it accepts. All other settings in a Flower app's
configuration are those of a run (`Config`), under the same names as everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..core.expressions import value
from ..core.options import Options, make, option, options_of
from ..runs.settings import Config, configure

MAX_NAME_LENGTH = 100


@dataclass(frozen=True)
class Deployment(Options):
    """What a run over a network needs beside the settings of a run."""

    federation: str = option("federation", help="name of the federation; states on all machines are kept under it")
    quorum: float = option(0.5, above=0.0, max=1.0, help="share of the sampled clients that must reply in a round")
    timeout: float = option(600.0, above=0.0, help="seconds to wait for the clients' replies before closing a round")
    sample: str = option(
        "all",
        choices=("all", "connected"),
        help="which clients a round is drawn from: all, or those that are connected when it begins",
    )
    wait: float = option(60.0, min=0.0, help="seconds to wait at the start until all clients are connected")
    attempts: int = option(3, min=1, help="how often a round is tried before the server gives up and keeps its state")
    classes: int | None = option(None, min=2, help="number of classes of your own data; leave it out for regression")
    max_message_mb: float = option(1024.0, above=0.0, help="largest reply of a client that is accepted, in megabytes")
    old_state: str = option(
        "accept",
        choices=("accept", "refuse"),
        help="replies from a client's older state, as from a backup: accept or refuse",
    )
    open: bool = option(False, help="run even where strangers could reach the SuperLink and take the federation over")

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.federation
        known = all(char.isalnum() or char in "-_." for char in name)
        if not known or not name[:1].isalnum() or len(name) > MAX_NAME_LENGTH:
            raise InputError(
                f"federation={name!r:.120} cannot name a folder; begin with a letter or digit, and use up to "
                f"{MAX_NAME_LENGTH} letters, digits, '-', '_' and '.'"
            )

    def count_needed(self, sampled: int) -> int:
        """How many of the sampled clients must reply."""
        return max(1, math.ceil(self.quorum * sampled))


def read_settings(run_config: Mapping[str, Any]) -> tuple[Config, Deployment]:
    """Split a Flower app's run config into the settings of the run and of the deployment.

    Args:
        run_config: what Flower hands to an app; empty text means "not set".

    >>> config, deployment = read_settings({"method": "ditto", "clients": 3, "quorum": 0.7, "model": ""})
    >>> config.method, deployment.count_needed(3)
    ('ditto', 3)
    """
    known = {name: setting for name, setting in run_config.items() if setting != ""}
    lists = {name for name, info in options_of(Config).items() if tuple in info.types}
    options = {name: known.pop(name) for name in options_of(Deployment) if name in known}
    config = configure({n: value(text) if n in lists and isinstance(text, str) else text for n, text in known.items()})
    if config.clients is None:
        raise InputError("the number of clients is not set; write it into the app's configuration, as in clients = 3")
    return config, make(Deployment, options)
