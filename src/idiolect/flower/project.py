"""From the user's functions and the settings to a plan, on the server and on a client. The server has no data and a
client only its own; all others are placeholders with one blank sample."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.randomness import torch_seed
from ..data import Client, Federation
from ..data.checks import MOST_CLASSES
from ..data.samples import Inputs
from ..data.splits import SHARES, hold_out
from ..engines import Plan
from ..runs.settings import Config
from ..runs.setup import make_plan, resolve_data
from .settings import Deployment

PLACEHOLDER_SAMPLES = 8
"""How many samples a placeholder has, unless the client has said it: enough for a step of training."""
MAX_SAMPLE_SIZE = 10**8
"""How many numbers a sample may have."""


@dataclass(frozen=True)
class Project:
    """The user's functions; what is left out comes from the settings by name.

    Attributes:
        load_data: takes a client's number and returns its data: (x, y), a PyTorch data set, or a mapping with `train`
            and, if you like, `val` and `test`. Called on that client only.
        build_model: returns the network, or several, which are given to the clients in turn. Called on the server and
            on every client.
        load_public: returns (x, y) that everybody may see, for methods that need public data.
    """

    load_data: Callable[[int], Any] | None = None
    build_model: Callable[[], nn.Module | Sequence[nn.Module]] | None = None
    load_public: Callable[[], tuple[Tensor, Tensor]] | None = None

    def load_federation(self, config: Config, deployment: Deployment, index: int) -> Federation:
        """Load the federation as one client knows it: with its own data and placeholders.

        Args:
            config: the settings of the run.
            deployment: the settings of the deployment.
            index: the client's number.
        """
        if self.load_data is None:
            return hide_other_clients(resolve_data(config, {}), index)
        federation = Federation.from_clients(
            {str(index): self.load_data(index)},
            split=config.split or SHARES,
            seed=config.seed,
            classes=deployment.classes,
            public=self._load_public(),
        )
        if federation.classes is not None and deployment.classes is None:
            raise InputError(
                "the targets are whole numbers, but one client cannot know all classes; "
                "write their number into the app's configuration, as in classes = 10"
            )
        clients = federation.clients * count_clients(config)
        return hide_other_clients(replace(federation, clients=clients, unseen=choose_unseen(config)), index)

    def build_plan(self, config: Config, data: Federation) -> Plan:
        """Build the plan of a run.

        Args:
            config: the settings of the run.
            data: the federation, as the server or one client knows it.
        """
        objects: dict[str, Any] = {"data": data}
        if self.build_model is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed(config.seed, "model"))
                built = self.build_model()
            objects |= {"model": built} if isinstance(built, nn.Module) else {"models": list(built)}
        if n_models := len(objects.get("models", ())):
            objects["model_of"] = [position % n_models for position in range(len(data))]
        return make_plan(config, objects)

    def build_server_plan(self, config: Config, description: str, samples: Mapping[int, int]) -> Plan:
        """Build the server's plan, which has placeholders only.

        Args:
            config: the settings of the run.
            description: what clients say about their data (`describe_data`).
            samples: how many training samples each client has, as far as that is known.
        """
        data = make_placeholders(
            description, count_clients(config), choose_unseen(config), samples, config.data, self._load_public()
        )
        return self.build_plan(config, data)

    def _load_public(self) -> tuple[Tensor, Tensor] | None:
        return self.load_public() if self.load_public else None


def count_clients(config: Config) -> int:
    """How many clients the federation has; `read_settings` has checked that it is set."""
    assert config.clients is not None
    return config.clients


def choose_unseen(config: Config) -> frozenset[int]:
    """Choose the clients that never train."""
    return hold_out(count_clients(config), config.unseen, config.seed)


def describe_data(data: Federation, index: int) -> str:
    """Describe a client's data as JSON, as far as the server needs it to build the model: shapes, dtypes, classes."""
    client = data.clients[index]
    facts = {
        "x": [list(client.x.shape[1:]), str(client.x.dtype).removeprefix("torch.")],
        "y": [list(client.y.shape[1:]), str(client.y.dtype).removeprefix("torch.")],
        "classes": data.classes,
        "words": data.vocabulary if data.tokens else None,
    }
    return json.dumps(facts, sort_keys=True)


def read_description(description: str) -> dict[str, Any]:
    """Read what a client says about its data; nothing is made of it before it is known to be possible.

    Args:
        description: JSON (`describe_data`).
    """
    try:
        facts = json.loads(description)
        for shape, dtype in (facts["x"], facts["y"]):
            if not all(type(size) is int and size > 0 for size in shape) or math.prod(shape) > MAX_SAMPLE_SIZE:
                raise ValueError("a sample has an impossible shape")
            if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype), torch.dtype):
                raise ValueError("a sample has an impossible type")
        for number in (facts["classes"], facts["words"]):
            if number is not None and (type(number) is not int or not 0 < number <= MOST_CLASSES):
                raise ValueError("a number of classes or words is impossible")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"a client's description of its data cannot be used: {description!r:.200}") from error
    return dict(facts)


def make_placeholders(
    description: str,
    n_clients: int,
    unseen: frozenset[int],
    samples: Mapping[int, int],
    name: str = "remote",
    public: tuple[Inputs, Tensor] | None = None,
) -> Federation:
    """Make a federation of blank samples that look like the data described.

    Args:
        description: what a client says about its data (`describe_data`).
        n_clients: how many clients the federation has.
        unseen: the clients that never train.
        samples: how many training samples each client has, as far as that is known.
        name: the name of the federation's data.
        public: (x, y) that everybody may see.
    """
    facts = read_description(description)
    x, y = (torch.zeros(1, *shape, dtype=getattr(torch, dtype)) for shape, dtype in (facts["x"], facts["y"]))
    classes, words = facts["classes"], facts["words"]
    empty = torch.zeros(0, dtype=torch.long)
    clients = tuple(
        Client(f"client-{i}", x, y, torch.zeros(samples.get(i, PLACEHOLDER_SAMPLES), dtype=torch.long), empty, empty)
        for i in range(n_clients)
    )
    return Federation(clients, name, classes, "given", "0" * 12, public, unseen, words=words)


def hide_other_clients(data: Federation, index: int) -> Federation:
    """Put placeholders in the place of all clients but one."""
    if index not in range(len(data)):
        raise InputError(f"there is no client {index}; the federation has {len(data)}, 0 to {len(data) - 1}")
    others = make_placeholders(describe_data(data, index), len(data), data.unseen, {})
    blank = [replace(client, transform=data.transform) for client in others.clients]
    clients = (*blank[:index], data.clients[index], *blank[index + 1 :])
    return replace(data, clients=clients, words=others.words)
