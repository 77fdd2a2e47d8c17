"""A federation: clients and what is known about them. Built from the user's own clients, or from one pool of data and a
partition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.layout import InputLayout, is_nested
from ..core.options import did_you_mean
from ..core.randomness import generator
from . import arrays
from .checks import check_clients, check_public, warn_of_random
from .client import Client, build_client
from .cutting import Cutting, cut_clients
from .fitting import Fitted, Raw, name_shape
from .lazy.cache import attach_cache
from .naming import (
    UNNAMED,
    Naming,
    make_naming,
    name_dealt,
    number_clients,
    number_dealt,
    number_names,
    number_own,
    sort_names,
)
from .partitions.base import Assignment, Partition, content_hash, divide, partitions
from .pool_clients import PoolClients, digest_body, digest_clients, distinct, gather_clients, names_of
from .preparing import Preparation, Prepared
from .samples import Inputs, Samples
from .several import lay_out
from .splits import SHARES, Unseen, check_seed, check_shares, hold_out
from .transforms import Transforms


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients and what is known about them. `loss` names the loss that the data are for, where it is none of the usual;
    `prepared` says what was done to the columns of a table, `layout` how several inputs lie side by side in rows.

    >>> x, y = torch.rand(40, 3), torch.arange(40) % 2
    >>> Federation.from_pool(x, y, "iid", clients=4)
    Federation('pool', 4 clients, 2 classes, iid)
    """

    clients: Sequence[Client]
    name: str
    classes: int | None
    partition: str
    partition_hash: str
    public: tuple[Inputs, Tensor] | None = None
    unseen: frozenset[int] = frozenset()
    seed: int = 0
    words: int | None = None
    names: Naming = UNNAMED
    loss: str | None = None
    prepared: Prepared | None = None
    layout: InputLayout | None = None
    transform: Transforms | None = None

    def __getitem__(self, name: str) -> Client:
        """A client by its name."""
        names = self.client_names
        if name in names:
            return self.clients[names.index(name)]
        raise DataError(f"no client is called {name!r}.{did_you_mean(name, names)}")

    def __repr__(self) -> str:
        kind = "numbers" if self.classes is None else f"{self.classes} classes"
        unseen = f", {len(self.unseen)} unseen" if self.unseen else ""
        return f"Federation({self.name!r}, {len(self)} clients{unseen}, {kind}, {self.partition})"

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.clients)

    @cached_property
    def client_names(self) -> list[str]:
        """The clients' names, in order."""
        return list(names_of(self.clients))

    @property
    def own_labels(self) -> dict[str, list[str]]:
        """The names of each client's own classes, where each has its own."""
        return {client.name: list(client.labels) for client in distinct(self.clients) if client.labels}

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes; where each client has its own, those of all together."""
        return self.names.classes or sort_names(name for names in self.own_labels.values() for name in names)

    def class_numbers(self, client: Client) -> Tensor:
        """The place of each of a client's own classes in `class_names`."""
        return torch.tensor([self.class_names.index(name) for name in client.labels], dtype=torch.long)

    def named_labels(self, client: Client, index: Tensor) -> Tensor:
        """A client's labels at some positions, with one number for one name even where each has its own."""
        y = client.y.index_select(0, index.long())
        return self.class_numbers(client)[y] if client.labels else y

    @cached_property
    def seen(self) -> tuple[int, ...]:
        """The clients that may train, by position."""
        return tuple(position for position in range(len(self)) if position not in self.unseen)

    @cached_property
    def input_shape(self) -> Any:
        """The shape of one sample, as networks see it; of several inputs the shape of each, in the same form."""
        if self.layout is not None:
            return self.layout.shapes
        first = self.clients[0]
        return tuple((first.take(first.train[:1].long())[0] if self.transform else first.x).shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a model must give: one per class, or as many as a target has."""
        return self.classes if self.classes is not None else self.clients[0].y.shape[1:].numel()

    @property
    def tokens(self) -> bool:
        """Whether the inputs are tokens rather than numbers."""
        if self.layout is not None:
            return [leaf.dtype for leaf in self.layout.leaves] == ["int64"]
        return not self.clients[0].x.is_floating_point()

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return tuple(self.clients[0].y.shape[1:])

    @cached_property
    def vocabulary(self) -> int:
        """How many different tokens there may be: as the source says, else one more than the largest."""
        if self.words is not None:
            return self.words
        if self.layout is not None:
            laid = [client.x for client in distinct(self.clients) if isinstance(client.x, Tensor)]
            return arrays.vocabulary_of(part for x in laid for part in self.layout.whole_numbers(x))
        return arrays.vocabulary_of(client.x for client in distinct(self.clients))

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that name the data of all clients and how they are split."""
        digest = hashlib.sha256()
        for piece in digest_clients(self.clients):
            digest.update(piece)
        if self.layout is not None:
            digest.update(str(self.layout).encode())
        for body in self.public or ():
            for piece in digest_body(body, torch.arange(len(body))):
                digest.update(piece)
        return digest.hexdigest()[:12]

    def transformed(self, transform: Transforms | None) -> Federation:
        """The same with these transforms of inputs, or an error where they are not for them."""
        if transform is None and self.transform is None:
            return self
        if transform is not None:
            if self.layout is not None:
                raise DataError(
                    f"{self.name} has several inputs ({self.layout}), and a transform is of one; leave transform out"
                )
            first = replace(self.clients[0], transform=None)
            transform.fit(*first.take(first.train[:3].long()))
        if isinstance(self.clients, PoolClients):
            return replace(self, clients=self.clients.changed(transform=transform), transform=transform)
        clients = tuple(replace(client, transform=transform) for client in self.clients)
        return replace(self, clients=clients, transform=transform)

    def cached(self, megabytes: int, folder: str | None = None) -> Federation:
        """The same, which keeps so much of what is read late: in memory, or in a folder."""
        bodies = [*(client.x for client in distinct(self.clients)), *(self.public or ())[:1]]
        attach_cache([body for body in bodies if isinstance(body, Samples)], megabytes, folder)
        return self

    def label_counts(self) -> Tensor:
        """How many samples of each class each client holds: [clients, classes], own ones in the order of `class_names`.

        >>> Federation.from_clients([([[0.0]], [1]), ([[0.0], [1.0]], [0, 1])]).label_counts()
        tensor([[0, 1],
                [1, 1]])
        """
        if self.classes is None:
            raise DataError(f"{self.name} predicts numbers, so there are no labels to count")
        labels = (self.named_labels(client, client.indices).flatten() for client in self.clients)
        classes = len(self.class_names) if self.own_labels else self.classes
        return torch.stack([torch.bincount(client_labels, minlength=classes) for client_labels in labels])

    def assignment(self) -> Assignment:
        """Which samples of the pool each client holds."""
        if any(client.x is not self.clients[0].x for client in distinct(self.clients)) or self.partition == GIVEN:
            raise DataError(
                f"the clients of {self.name} hold their own data, so there is no partition of a pool to save"
            )
        indices = tuple(client.indices.numpy() for client in self.clients)
        return Assignment(partitions.build(self.partition), self.seed, len(self.clients[0].x), indices)

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[Any] | Mapping[Any, Any],
        *,
        split: Sequence[float] = SHARES,
        seed: int = 0,
        name: str = "custom",
        classes: int | None = None,
        unseen: Unseen = 0.0,
        public: Any = None,
        class_names: Sequence[str] | None = None,
        feature_names: Sequence[str] | None = None,
        first: int = 0,
        layout: InputLayout | None = None,
        own_labels: bool = False,
    ) -> Federation:
        """A federation of clients that come with their own data.

        Args:
            clients: a list, or a mapping from names. A client is a tuple (x, y), a PyTorch dataset of such
                pairs, or a mapping with `train` and, if given, `val` and `test`, each of them one of the two.
            split: shares of training, validation and test; what a client does not give is taken from its
                training data, in the proportion of these shares.
            seed: determines the splits and the held-out clients.
            name: a name for tables.
            classes: number of classes; found from whole-numbered targets if not given.
            unseen: share of clients that never train, or their names.
            public: samples that everybody may see, as a tuple (x, y) or a dataset.
            class_names: names of the classes, from label 0 on; where labels are text, these are their names.
            feature_names: names of the numbers of a sample.
            first: the number of the first client, where others come before it; its splits are drawn by it.
            layout: how several inputs, or sequences, lie in rows, where clients that are not among these have a say.
            own_labels: whether each client's labels are its own, numbered by itself, so that 0 is not the same class
                everywhere.

        >>> Federation.from_clients({"north": ([[0.1], [0.2]], [0, 1]), "south": ([[0.3]], [1])})
        Federation('custom', 2 clients, 2 classes, given)
        """
        shares, seed = check_shares(split), check_seed(seed)
        listed = list(clients)
        items = clients.items() if isinstance(clients, Mapping) else zip(number_names(len(listed)), listed, strict=True)
        given = make_naming(class_names, feature_names)
        named, own = [(str(key), data) for key, data in items], list[tuple[str, ...]]()
        if own_labels:
            if classes is not None or class_names is not None:
                raise DataError("classes and class_names are those of all clients; leave them out with own labels")
            named, own = number_own(named)
            classes = max(map(len, own), default=None)
        named, of_classes = number_clients(named, given.classes)
        named, layout = lay_out(named, layout)
        names = replace(given, classes=of_classes)
        classes = len(of_classes) if classes is None and of_classes else classes
        built = [
            build_client(key, data, shares, generator(seed, "split", position), classes)
            for position, (key, data) in enumerate(named, first)
        ]
        if own:
            built = [replace(client, labels=labels) for client, labels in zip(built, own, strict=True)]
        ends = np.cumsum([0, *(len(client.x) for client in built)])
        ranges = [np.arange(start, end) for start, end in pairwise(ends)]
        return cls.check_and_build(
            built, name, classes, GIVEN, content_hash(ranges), public, unseen, seed, None, names, layout
        )

    @classmethod
    def from_pool(
        cls,
        x: Any,
        y: Any,
        partition: str | Partition,
        *,
        clients: int | None = None,
        groups: Any = None,
        split: Sequence[float] = SHARES,
        seed: int = 0,
        name: str = "pool",
        unseen: Unseen = 0.0,
        classes: int | None = None,
        public: Any = None,
        words: int | None = None,
        names: Naming = UNNAMED,
        cutting: Cutting | None = None,
        preparation: Preparation | None = None,
        layout: InputLayout | None = None,
        lexicon: Sequence[str] = (),
        own_labels: bool = False,
    ) -> Federation:
        """A federation that a partition makes out of one pool of data.

        Args:
            x: inputs, or a PyTorch dataset of pairs (then `y` is None).
            y: targets.
            partition: an expression such as `dirichlet:0.1`, or a `Partition`.
            clients: number of clients; not needed where groups or a file say it.
            groups: the natural group of each sample (site, writer, subject), for the partition `group`.
            split, seed, name, unseen, classes, public: as for `from_clients`.
            words: number of different tokens, where the inputs are tokens; by default one more than the largest.
            names: names of classes, features and words.
            cutting: what decides the splits, where they are not random.
            preparation: what is done to the columns of `x` once it is known who trains on which samples.
            layout: how several inputs lie in the rows of `x`; found where they are given apart.
            lexicon: the words that tokens from 2 on stand for; those that no training sample has become unknown.
            own_labels: as for `from_clients`; the names are those of `names`.

        >>> x, y = torch.rand(100, 3), torch.arange(100) % 4
        >>> Federation.from_pool(x, y, "pathological:2", clients=5).label_counts().count_nonzero(1)
        tensor([2, 2, 2, 2, 2])
        """
        shares = check_shares(split)
        if y is not None and is_nested(x, len(y)):
            ((_, (x, y)),), layout = lay_out([(name, (x, y))])
        if preparation is None:
            x, y = arrays.pair(x if y is None else (x, y), f"the pool {name!r}", classes)
        labels = None if y.is_floating_point() or y.ndim > 1 else y.numpy()
        groups = None if groups is None else np.asarray(groups)
        dealt = divide(partition, labels, samples=len(x), clients=clients, seed=seed, groups=groups)
        titles, shifts = name_dealt(dealt.indices, groups), dealt.partition.shifts(len(dealt.indices))
        splits = cut_clients(dealt.indices, shares, cutting, seed)
        pool = gather_clients(x, y, titles, splits, sum(map(len, dealt.indices)), shifts=shifts)
        fitted = Fitted(x, public, layout, names.words, None)
        if preparation is not None or lexicon:
            parts = [(client.train, client.val, client.test) for client in pool]
            fitted = Raw(x, layout, preparation, tuple(lexicon)).fit(
                titles, parts, hold_out(titles, unseen, seed), public
            )
            features = fitted.prepared.inputs if fitted.prepared else names.features
            names, words = replace(names, features=features, words=fitted.words), len(fitted.words) or words
            pool = pool.changed(x=fitted.x)
        built: Sequence[Client] = pool
        if own_labels:
            y, own = number_dealt(y, names.classes, [client.indices for client in pool])
            classes, names = max(map(len, own)), replace(names, classes=())
            built = [replace(client, y=y, labels=labels) for client, labels in zip(pool, own, strict=True)]
        rule = str(dealt.partition)
        federation = cls.check_and_build(
            built, name, classes, rule, dealt.hash, fitted.public, unseen, seed, words, names, fitted.layout
        )
        return replace(federation, prepared=fitted.prepared)

    @classmethod
    def check_and_build(
        cls,
        clients: Sequence[Client],
        name: str,
        classes: int | None,
        partition: str,
        partition_hash: str,
        public: Any,
        unseen: Unseen,
        seed: int,
        words: int | None = None,
        names: Naming = UNNAMED,
        layout: InputLayout | None = None,
    ) -> Federation:
        """A federation of clients that are built already, or the error about what is wrong with them."""
        if layout is not None and any(client.shift for client in clients):
            raise DataError(f"{name} has several inputs ({layout}), which no feature shift fits; use another partition")
        classes = check_clients(clients, classes)
        if public is not None and any(client.labels for client in clients):
            raise DataError("public data are of classes that all share, but each client has its own; leave out public")
        names.check(classes, name_shape(clients[0].x.shape[1:], layout))
        warn_of_random(clients)
        if isinstance(public, float):
            raise DataError(
                "a share of public samples is taken out of one pool of data, but these data come as clients; "
                "name a source of public data, or give a tuple (x, y)"
            )
        if layout is not None and isinstance(public, tuple) and is_nested(public[0]):
            public = (layout.pack(public[0], "the public data"), public[1])
        shown = None if public is None else arrays.pair(public, "the public data")
        if shown:
            check_public(shown, clients)
        share = isinstance(unseen, int | float)  # then names are not asked for, of which there may be a million
        never_train = hold_out([""] * len(clients) if share else [each.name for each in clients], unseen, seed)
        return cls(
            clients if isinstance(clients, PoolClients) else tuple(clients),
            name,
            classes,
            partition,
            partition_hash,
            shown,
            never_train,
            seed,
            words,
            names,
            layout=layout,
        )


GIVEN = "given"
