"""A claim as it stands in its file: what a paper says, under which settings it is run here, and by which rules it is
judged; and its quick version. `reading` makes it from its file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError

OTHERS = "others"
"""The key of a tuning space that holds for all methods without one of their own."""
RELATIONS = ("higher", "lower", "equal")
QUICK = {"rounds": 2, "eval_every": 1}
"""Settings of the quick version of a claim, before its own."""
QUICK_SEEDS, QUICK_VALUES = 2, 2


@dataclass(frozen=True)
class Operand:
    """One side of a comparison: a method in a case, or a number."""

    method: str = ""
    case: str = ""
    number: float | None = None

    def __str__(self) -> str:
        if self.number is not None:
            return f"{self.number:g}"
        return f"{self.method} @ {self.case}" if self.case else self.method


@dataclass(frozen=True)
class Rule:
    """What is claimed of the runs in one case: `left` is higher (lower, equal) than every one of `right`.

    Attributes:
        says: the claim in a sentence.
        relation: `higher`, `lower`, or `equal`, which also needs `within`.
        measure: which number of a run is compared.
        theirs: the paper's numbers, by the names of the sides.
        within: how far apart equal ones may be.
    """

    says: str
    relation: str
    left: Operand
    right: tuple[Operand, ...]
    measure: str = "score"
    theirs: Mapping[str, float] = field(default_factory=dict)
    within: float = 0.0


@dataclass(frozen=True)
class Space:
    """How methods are tuned: the values that each tries one after another, the learning rate among them, on a
    federation with a seed of its own; or as another claim's methods were.

    Attributes:
        values: what a method tries, as in `lr=0.01,0.1,1`, or `others`.
        seed: that of the federation that is tuned on.
        settings: what else is different there.
        case: the case that is tuned on, for all; by default each case is.
        of: the claim whose tuning is taken over.
        like: the methods there that methods here follow, where these have other names.
        without: options that are not taken over, since the claim is about them.
    """

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seed: int = 1000
    settings: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""
    case: str = ""
    like: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def of_method(self, method: str) -> tuple[str, ...]:
        """What a method tries."""
        return self.values.get(method, self.values.get(OTHERS, ()))


@dataclass(frozen=True)
class Case:
    """One setting in which all methods of a claim run."""

    name: str
    settings: Mapping[str, Any]
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Claim:
    """A paper's claim and how it is run here.

    Attributes:
        name: the name of its file.
        paper, where: whose claim, and which table or figure.
        says: the claim in a sentence.
        setup: the paper's data, partition, network and optimiser.
        scaled: what is smaller here, and why.
        methods: the expressions, as they are before tuning.
        tuning: how they are tuned; None where they run as they are.
        seeds: those of the runs that count.
        cases: the settings, each with its rules; empty where the claim is not run.
        not_runnable: why it is not run here.
        kind: what the clients differ in, for presets; empty where nothing is tuned.
        budget: what all methods get alike: `rounds`, or as many `gradients` as FedAvg takes in these rounds.
        minutes: how long all of it takes on one core, as it was estimated before it ran; NaN where nobody did.
        is_quick: whether this is the quick version, whose numbers mean nothing.
    """

    name: str
    paper: str
    where: str
    says: str
    setup: str = ""
    scaled: str = ""
    methods: tuple[str, ...] = ()
    tuning: Space | None = None
    seeds: tuple[int, ...] = ()
    cases: tuple[Case, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)
    not_runnable: str = ""
    kind: str = ""
    budget: str = "rounds"
    minutes: float = math.nan
    is_quick: bool = False

    def case(self, name: str) -> Case:
        """The case of a name; the only one where there is one."""
        found = [case for case in self.cases if case.name == name]
        if not found and len(self.cases) == 1:
            return self.cases[0]
        if not found:
            names = ", ".join(case.name for case in self.cases)
            raise InputError(f"{self.name} has no case {name!r}; it has {names}")
        return found[0]

    @property
    def is_table(self) -> bool:
        """Whether it claims nothing and only lets methods compete, as one federation of the grand table."""
        return not self.not_runnable and not self.rules

    @property
    def rules(self) -> list[tuple[Case, Rule]]:
        """All rules, each with its case."""
        return [(case, rule) for case in self.cases for rule in case.rules]

    def shrink(self) -> Claim:
        """The quick version: two rounds, two seeds, two learning rates, and what the file says."""
        small = QUICK | dict(self.quick)
        cases = tuple(dataclasses.replace(case, settings={**case.settings, **small}) for case in self.cases)
        tuning = self.tuning
        if tuning is not None:
            values = {
                method: tuple(_first_values(text) for text in texts[:1]) for method, texts in tuning.values.items()
            }
            tuning = dataclasses.replace(tuning, values=values, settings={})
        seeds = self.seeds[:QUICK_SEEDS]
        return dataclasses.replace(self, cases=cases, tuning=tuning, seeds=seeds, is_quick=True)


def _first_values(text: str) -> str:
    name, _, values = text.partition("=")
    return f"{name}={','.join(values.split(',')[:QUICK_VALUES])}"
