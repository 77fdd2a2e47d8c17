"""Facts about a method, for people and for what is checked before a run: where it comes from, what it needs, what it
refuses and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Paper(NamedTuple):
    """Where a method was published."""

    authors: str
    title: str
    venue: str
    year: int
    link: str = ""


@dataclass(frozen=True)
class About:
    """A method in words.

    Attributes:
        title: what it does, in one line of at most 62 characters.
        family: the idea that it shares with others, under which it is listed, such as `private layers`.
        paper: where it was published: a `Paper`, or its key in `idiolect.methods.papers`.
        kind: `personalized`, `global` (all clients predict with one and the same model, and engines for many of them at
            once), `local` or `wrapper`.
        reveals: what leaves a client.
        stays: what stays on the client.
        caution: what those who care for privacy should know besides.
    """

    title: str
    family: str = ""
    paper: Paper | str | None = None
    kind: str = "personalized"
    reveals: str = "the trained model"
    stays: str = ""
    caution: str = ""


@dataclass(frozen=True)
class Needs:
    """What a method needs of the run, beyond parameters.

    Attributes:
        public: data that everybody sees.
        networks: clients with different networks.
        server_models: the server keeps the latest model of every client (its memory grows with the clients).
        server_training: the server trains.
        holdout: share of the training data that is set aside for phases on `holdout`.
        setup_rounds: rounds before the first, with all clients; `ctx.round` is negative in them.
        min_batch: smaller batches are dropped in training.
        eval_batch: samples that are predicted together, where predictions depend on the batch.
        norm_stats: what becomes of running statistics unless the run says otherwise: `average`, `local`, `recompute`.
    """

    public: bool = False
    networks: bool = False
    server_models: bool = False
    server_training: bool = False
    holdout: float = 0.0
    setup_rounds: int = 0
    min_batch: int = 1
    eval_batch: int | None = None
    norm_stats: str = "average"

    def describe(self) -> tuple[str, ...]:
        """What is out of the ordinary, in words.

        >>> Needs(public=True, holdout=0.2).describe()
        ('public', 'data set aside')
        """
        words = {
            "public": self.public,
            "models": self.networks,
            "server models": self.server_models,
            "server training": self.server_training,
            "data set aside": self.holdout > 0,
        }
        return tuple(word for word, needed in words.items() if needed)


@dataclass(frozen=True)
class Refuses:
    """What a method cannot do, as reasons that complete a sentence; an empty one means that it can.

    Attributes:
        wrapping: why wrappers that act on the one federated model cannot wrap it.
        stacking: why it cannot be traced for many clients at once.
        other_networks: why all clients need the same network.
        own_labels: why clients cannot have labels of their own, each with a private head for them; None is the reason
            of `other_networks`. A method that shares something of each class does so by `ClientContext.class_numbers`.
        summing: why the server has to see single uploads (slots with `up="each"`), and not sums alone.
        more_rounds: why a run cannot be trained further: what it does when depends on the number of rounds
            (`ctx.rounds`).
    """

    wrapping: str = ""
    stacking: str = ""
    other_networks: str = ""
    own_labels: str | None = None
    summing: str = ""
    more_rounds: str = ""

    @property
    def why_not_own_labels(self) -> str:
        """The reason of `own_labels`, else that of `other_networks`."""
        return self.other_networks if self.own_labels is None else self.own_labels
