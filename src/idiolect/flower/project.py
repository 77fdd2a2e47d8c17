"""From the user's functions and the settings to a plan, on the server and on a client. The server has no data and a
client only its own; all others are placeholders with one blank sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.randomness import torch_seed
from ..data import Client, Federation
from ..data.description import Description, describe, read_description
from ..data.naming import number_names
from ..data.samples import Inputs
from ..data.sites import load_site
from ..data.sources.base import OwnSource, sources
from ..data.splits import SHARES, hold_out
from ..engines import Plan
from ..runs.settings import Config
from ..runs.setup import check_needs, make_plan, resolve_data
from .settings import Deployment

PLACEHOLDER_SAMPLES = 8
"""How many samples a placeholder has, unless the client has said it: enough for a step of training."""


@dataclass(frozen=True)
class Project:
    """The user's functions; what is left out comes from the settings by name.

    Attributes:
        load_data: takes a client's number and returns its data: (x, y), a PyTorch data set, or a mapping with `train`
            and, if you like, `val` and `test`; a table (`idiolect.data.table`), or the name of a source. Called on that
            client only.
        build_model: returns the network, or several, which are given to the clients in turn. Called on the server and
            on every client.
        load_public: returns (x, y) that everybody may see, for methods that need public data.
    """

    load_data: Callable[[int], Any] | None = None
    build_model: Callable[[], nn.Module | Sequence[nn.Module]] | None = None
    load_public: Callable[[], tuple[Tensor, Tensor]] | None = None

    def load_federation(self, config: Config, deployment: Deployment, index: int, agreed: str = "") -> Federation:
        """Load the federation as one client knows it: with its own data and placeholders.

        Args:
            config: the settings of the run.
            deployment: the settings of the deployment.
            index: the client's number.
            agreed: the description that those of all clients make; empty where it is not known yet.
        """
        load_data = self.find_data(config)
        if load_data is None:
            return hide_other_clients(resolve_data(config, {}), index)
        n_clients, unseen = count_clients(config), choose_unseen(config)
        if index not in range(n_clients):
            raise no_client(index, n_clients)
        known = read_description(agreed) if agreed else None
        federation = load_site(
            load_data(index),
            number_names(n_clients)[index],
            index,
            known=known,
            split=config.split or SHARES,
            seed=config.seed_of("partition"),
            classes=deployment.classes,
            public=self._load_public(config),
            trains=index not in unseen,
        )
        named = federation.names.classes or federation.own_labels
        if federation.classes is not None and deployment.classes is None and not named:
            raise InputError(
                "the targets are whole numbers, but one client cannot know all classes; "
                "write their number into the app's configuration, as in classes = 10"
            )
        client, others = federation.clients[0], known.own if known else {}
        clients = tuple(
            client if place == index else replace(client, labels=others.get(place, ())) for place in range(n_clients)
        )
        federation = replace(federation, clients=clients, unseen=unseen)
        if agreed and str(describe(federation, index)) != agreed:
            raise InputError("this client's data are not of the form that the clients have agreed on")
        return hide_other_clients(federation, index)

    def find_data(self, config: Config) -> Callable[[int], Any] | None:
        """What gives one client's data: the user's function, or that which the settings name; None where they name data
        that every client loads as a whole."""
        if self.load_data is not None:
            return self.load_data
        source = sources.build(config.data)
        return (lambda index: source.call(client=index)) if isinstance(source, OwnSource) and source.by_client else None

    def build_plan(self, config: Config, data: Federation) -> Plan:
        """Build the plan of a run.

        Args:
            config: the settings of the run.
            data: the federation, as the server or one client knows it.
        """
        objects: dict[str, Any] = {"data": data}
        if self.build_model is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed(config.seed_of("init"), "model"))
                built = self.build_model()
            objects |= {"model": built} if isinstance(built, nn.Module) else {"models": list(built)}
        if n_models := len(objects.get("models", ())):
            objects["model_of"] = [position % n_models for position in range(len(data))]
        plan = make_plan(config, objects)
        check_needs(plan)
        return plan

    def build_server_plan(self, config: Config, description: str, samples: Mapping[int, int]) -> Plan:
        """Build the server's plan, which has placeholders only.

        Args:
            config: the settings of the run.
            description: what clients say about their data (`describe`).
            samples: how many training samples each client has, as far as that is known.
        """
        data = make_placeholders(
            read_description(description),
            count_clients(config),
            choose_unseen(config),
            samples,
            config.data,
            self._load_public(config),
        )
        return self.build_plan(config, data)

    def _load_public(self, config: Config) -> tuple[Inputs, Tensor] | None:
        """What everybody may see: by the user's function, or a source that the settings name."""
        if self.load_public is not None:
            return self.load_public()
        if config.public is None:
            return None
        try:
            float(config.public)
            return None  # a share of a pool, which every client takes out of the whole
        except ValueError:
            pool = sources.build(config.public).load()
            return pool.x, pool.y


def count_clients(config: Config) -> int:
    """How many clients the federation has; `read_settings` has checked that it is set."""
    assert config.clients is not None
    return config.clients


def choose_unseen(config: Config) -> frozenset[int]:
    """Choose the clients that never train."""
    return hold_out(number_names(count_clients(config)), config.unseen, config.seed_of("partition"))


def make_placeholders(
    description: Description,
    n_clients: int,
    unseen: frozenset[int],
    samples: Mapping[int, int],
    name: str = "remote",
    public: tuple[Inputs, Tensor] | None = None,
) -> Federation:
    """Make a federation of blank samples that look like the data described.

    Args:
        description: what clients say about their data.
        n_clients: how many clients the federation has.
        unseen: the clients that never train.
        samples: how many training samples each client has, as far as that is known.
        name: the name of the federation's data.
        public: (x, y) that everybody may see.
    """
    x, y = (torch.zeros(1, *shape, dtype=getattr(torch, dtype)) for shape, dtype in (description.x, description.y))
    empty = torch.zeros(0, dtype=torch.long)
    clients = tuple(
        Client(
            title,
            x,
            y,
            torch.zeros(samples.get(i, PLACEHOLDER_SAMPLES), dtype=torch.long),
            empty,
            empty,
            labels=description.own.get(i, ()),
        )
        for i, title in enumerate(number_names(n_clients))
    )
    return Federation(
        clients, name, description.classes, "given", "0" * 12, public, unseen, words=description.words,
        names=description.names, layout=description.layout,
    )  # fmt: skip


def hide_other_clients(data: Federation, index: int) -> Federation:
    """Put placeholders in the place of all clients but one."""
    if index not in range(len(data)):
        raise no_client(index, len(data))
    others = make_placeholders(describe(data, index), len(data), data.unseen, {})
    blank = [replace(client, transform=data.transform) for client in others.clients]
    clients = (*blank[:index], data.clients[index], *blank[index + 1 :])
    return replace(data, clients=clients, words=others.words)


def no_client(index: int, n_clients: int) -> InputError:
    """The error about a client that there is not."""
    return InputError(f"there is no client {index}; the federation has {n_clients}, 0 to {n_clients - 1}")
