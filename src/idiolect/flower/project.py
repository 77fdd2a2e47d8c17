"""From the user's two functions and the settings to a plan, on either side. The server has no data and a client only
its own, so all others are placeholders: a name and one blank sample."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.randomness import torch_seed
from ..data import Client, Federation
from ..data import load as load_source
from ..data.splits import SHARES, hold_out
from ..engines import Plan
from ..runs.settings import Config
from ..runs.setup import make_plan
from .settings import Deployment

PROBE = 8
"""Samples of a placeholder, enough for a step of training."""
MOST_NUMBERS = 10**8
"""Of a sample."""


@dataclass(frozen=True)
class Project:
    """What a user brings; what is left out comes from the configuration by name.

    Attributes:
        load_data: client's number -> its data: (x, y), a data set, or a mapping with `train` and, if given, `val` and
            `test`. Called on the client only.
        build_model: -> the network, or several, which clients then have in turn. Called on both sides.
        load_public: -> (x, y) that everybody may see, for methods that need it.
    """

    load_data: Callable[[int], Any] | None = None
    build_model: Callable[[], nn.Module | Sequence[nn.Module]] | None = None
    load_public: Callable[[], tuple[Tensor, Tensor]] | None = None

    def federation(self, config: Config, deployment: Deployment, index: int) -> Federation:
        """The federation as one client knows it: only its own data are there."""
        if self.load_data is None:
            held = load_source(
                config.data,
                partition=config.partition,
                clients=config.clients,
                split=config.split,
                seed=config.seed,
                unseen=config.unseen,
                public=config.public,
            )
            return alone(held, index)
        own = Federation.from_clients(
            {str(index): self.load_data(index)},
            split=config.split or SHARES,
            seed=config.seed,
            classes=deployment.classes,
            public=self.load_public() if self.load_public else None,
        )
        if own.classes is not None and deployment.classes is None:
            raise InputError(
                "the targets are whole numbers, but a client cannot know all classes; "
                "write their number into the app's configuration, as in classes = 10"
            )
        return alone(replace(own, clients=own.clients * seats_of(config), unseen=_unseen(config)), index)

    def plan(self, config: Config, data: Federation) -> Plan:
        """The plan that a configuration and this project describe."""
        own: dict[str, Any] = {"data": data}
        if self.build_model is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed(config.seed, "model"))
                built = self.build_model()
            own |= {"model": built} if isinstance(built, nn.Module) else {"models": list(built)}
        if several := len(own.get("models", ())):
            own["model_of"] = [position % several for position in range(len(data))]
        return make_plan(config, own)

    def server_plan(self, config: Config, kind: str, samples: Mapping[int, int]) -> Plan:
        """The server's plan, from what clients said of their data and how many samples they have."""
        public = self.load_public() if self.load_public else None
        return self.plan(config, blank(kind, seats_of(config), _unseen(config), samples, config.data, public))


def seats_of(config: Config) -> int:
    """How many clients the federation has."""
    assert config.clients is not None
    return config.clients


def _unseen(config: Config) -> frozenset[int]:
    return hold_out(seats_of(config), config.unseen, config.seed)


def describe_data(data: Federation, index: int) -> str:
    """What the server must know of a client's data to build the model: shapes, types, the number of classes."""
    client = data.clients[index]
    facts = {
        "x": [list(client.x.shape[1:]), str(client.x.dtype).removeprefix("torch.")],
        "y": [list(client.y.shape[1:]), str(client.y.dtype).removeprefix("torch.")],
        "classes": data.classes,
        "words": data.vocabulary if data.tokens else None,
    }
    return json.dumps(facts, sort_keys=True)


def agreed(kinds: Iterable[str]) -> str:
    """What most clients say of their data."""
    return Counter(kinds).most_common(1)[0][0]


def blank(
    kind: str,
    seats: int,
    unseen: frozenset[int],
    samples: Mapping[int, int],
    name: str = "remote",
    public: tuple[Tensor, Tensor] | None = None,
) -> Federation:
    """A federation of placeholders that look like the data described: blank samples, as many as clients say."""
    try:
        facts = json.loads(kind)
        if max(math.prod(facts[part][0]) for part in ("x", "y")) > MOST_NUMBERS:
            raise ValueError("a sample is too large")
        x, y = (torch.zeros(1, *shape, dtype=getattr(torch, dtype)) for shape, dtype in (facts["x"], facts["y"]))
        classes, words = facts["classes"], facts["words"]
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise InputError(f"a client describes its data in a way that cannot be used: {kind!r:.200}") from error
    none = torch.zeros(0, dtype=torch.long)
    clients = tuple(
        Client(f"client-{i}", x, y, torch.zeros(samples.get(i, PROBE), dtype=torch.long), none, none)
        for i in range(seats)
    )
    return Federation(clients, name, classes, "given", "0" * 12, public, unseen, words=words)


def alone(data: Federation, index: int) -> Federation:
    """A federation of which only one client's data are there."""
    if index not in range(len(data)):
        raise InputError(f"there is no client {index}; the federation has {len(data)}, 0 to {len(data) - 1}")
    others = blank(describe_data(data, index), len(data), data.unseen, {})
    clients = (*others.clients[:index], data.clients[index], *others.clients[index + 1 :])
    return replace(data, clients=clients, words=others.words)
