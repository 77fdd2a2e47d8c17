"""What follows from the numbers: thresholds that turn a number into a level, and rules that give methods points for
levels. Both are data, so that every recommendation can be read off; nothing is measured or run here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LEVELS = ("none", "some", "strong")


class Scale(NamedTuple):
    """A number's thresholds and its meaning; where `strong` is below `some`, small numbers are strong."""

    name: str
    some: float
    strong: float
    meaning: str

    def level(self, value: float) -> str:
        """The level of a value; what could not be measured is none.

        >>> Scale("label skew", 0.1, 0.4, "").level(0.5), Scale("few samples", 200, 50, "").level(120)
        ('strong', 'some')
        """
        if math.isnan(value):
            return "none"
        sign = 1 if self.strong >= self.some else -1
        return LEVELS[(sign * value >= sign * self.some) + (sign * value >= sign * self.strong)]


SCALES = (
    Scale("label skew", 0.1, 0.4, "share of samples that would have to change class, beyond chance"),
    Scale(
        "feature shift",
        0.02,
        0.15,
        "share of the spread of inputs, within classes and as a whole, that lies between clients",
    ),
    Scale("concept shift", 0.1, 0.3, "how much more often what looks alike has another label elsewhere"),
    Scale("quantity skew", 0.25, 0.5, "Gini coefficient of training samples"),
    Scale("head conflict", 0.1, 0.3, "share of pairs of clients whose updates of the output layer oppose"),
    Scale("body conflict", 0.1, 0.3, "the same for the layers before it, on average"),
    Scale("few samples", 200, 50, "training samples of the median client"),
    Scale("few steps", 200, 50, "local steps of a client in the whole run"),
    Scale("many clients", 50, 200, "clients that train"),
    Scale("natural clients", 0.5, 1, "1 where clients are the data's own groups, 0 where the data are dealt to them"),
    Scale("absence", 0.5, 0.8, "share of clients that a round leaves out"),
    Scale("unseen clients", 0.01, 0.3, "share of clients that never train"),
    Scale("hidden layers", 1, 4, "layers before the output layer"),
    Scale("normalisation", 1, 4, "normalisation layers"),
    Scale("tight budgets", 0.05, 0.5, "share of the model that a client cannot compute, on average"),
)
"""What each number means exactly is in docs/guide.md."""


class Finding(NamedTuple):
    """A measured number and its level."""

    scale: Scale
    value: float

    @property
    def level(self) -> str:
        """none, some or strong."""
        return self.scale.level(self.value)


class Rule(NamedTuple):
    """A method gets points where all conditions hold: `some` and `strong` mean at least that, `none` exactly."""

    method: str
    points: int
    when: Mapping[str, str]
    reason: str

    def applies(self, levels: Mapping[str, str]) -> bool:
        """Whether all conditions hold."""
        return all(
            levels[name] == "none" if wanted == "none" else LEVELS.index(levels[name]) >= LEVELS.index(wanted)
            for name, wanted in self.when.items()
        )


_ALIKE = {"label skew": "none", "feature shift": "none", "concept shift": "none"}
_HEAD = {"label skew": "some", "concept shift": "none", "hidden layers": "some"}
_MANY = {"natural clients": "some", "many clients": "some", "concept shift": "none", "hidden layers": "some"}
RULES = (
    # Clients that are alike: one model for all.
    Rule("fedavg", 6, _ALIKE, "clients are alike, so one model serves all"),
    Rule("scaffold", 4, _ALIKE, "one model for all, and drift between clients is corrected"),
    Rule("fedprox", 2, _ALIKE, "one model serves all"),
    # Clients with classes of their own: one's own head, or the layers in which clients pull apart.
    Rule("fedper", 3, _HEAD, "clients hold different classes, which a head of one's own learns"),
    Rule("fedala", 3, _HEAD, "own and global head are mixed as far as the global one helps"),
    Rule(
        "fedlag(fedavg)",
        3,
        {"body conflict": "some", "hidden layers": "some"},
        "updates conflict in some layers, which become personal",
    ),
    Rule("fedlag(fedavg)", 1, {"head conflict": "strong"}, "the conflicts are strong"),
    Rule("fedrep", 2, _HEAD, "clients hold different classes, and head and body are trained in turn"),
    Rule("fedper", 1, {**_HEAD, "head conflict": "some"}, "updates conflict in the head, which stays private"),
    Rule("fedala", 1, {**_HEAD, "label skew": "strong"}, "the skew is strong, so the mixture matters"),
    Rule("fedrep", 2, {**_HEAD, "few steps": "none"}, "there are steps enough for two parts"),
    Rule("fedbabu", 2, {**_HEAD, "few samples": "some"}, "a shared body under a fixed head needs few samples"),
    Rule("lgmix", 2, _HEAD, "each client follows its own update as far as its features differ"),
    Rule("flayer(fedavg)", 3, _HEAD, "own and global head are mixed as far as the own one is right"),
    Rule("flayer(fedavg)", 2, {**_HEAD, "hidden layers": "strong"}, "a deep model, with a learning rate per layer"),
    Rule(
        "fedfac",
        5,
        {**_MANY, "label skew": "some"},
        "with many natural clients it can be seen which units they have in common; the others are personal",
    ),
    # Inputs that look different.
    Rule(
        "fedbn",
        6,
        {"feature shift": "some", "normalisation": "some"},
        "inputs differ, and private normalisation layers take that up",
    ),
    Rule(
        "lgfedavg",
        3,
        {"feature shift": "strong", "label skew": "none", "hidden layers": "some"},
        "inputs differ and labels do not: a body of one's own under a common head",
    ),
    Rule(
        "fedalt(personal=input)",
        2,
        {"feature shift": "some", "hidden layers": "some"},
        "inputs differ, and a first layer of one's own translates them",
    ),
    Rule(
        "lgmix",
        4,
        {"feature shift": "some", "hidden layers": "some"},
        "inputs differ, and each client follows its own update as far as its features differ",
    ),
    Rule(
        "fedfac",
        4,
        {**_MANY, "label skew": "none", "feature shift": "some"},
        "with many natural clients it can be seen which units they have in common; the others are personal",
    ),
    Rule("ditto", 5, {"feature shift": "some"}, "inputs differ, which a model of one's own near the global one learns"),
    Rule("fedamp", 2, {"feature shift": "strong", "many clients": "none"}, "similar clients find each other"),
    # The same inputs, other labels.
    Rule("ditto", 3, {"concept shift": "some"}, "the same input means different things, so models must differ whole"),
    Rule("fedamp", 4, {"concept shift": "some", "many clients": "none"}, "clients that agree attract each other"),
    Rule("fedem", 4, {"concept shift": "some"}, "several concepts are learnt, and each client mixes them"),
    Rule("apfl", 2, {"concept shift": "some"}, "each client learns how far the global model serves it"),
    # Devices that cannot compute the whole model.
    Rule("pfedgate", 9, {"tight budgets": "some"}, "each client computes the blocks that suit it, within its budget"),
    Rule("heterofl", 7, {"tight budgets": "some"}, "each client trains a slice of the model that fits its budget"),
    # What always may be said, and what speaks for or against.
    Rule("ditto", 3, {"label skew": "some"}, "clients differ, and a model of one's own stays near the global one"),
    Rule("finetune(fedavg)", 2, {}, "a short tuning of the global model is cheap and hard to beat"),
    Rule("perfedavg", 1, {}, "a model made for one step of adaptation"),
    Rule("fedprox", 1, {}, "clients are held near the global model, which costs nothing"),
    Rule("finetune(fedavg)", 2, {"few samples": "strong"}, "with few samples the shared model carries most"),
    Rule("finetune(fedavg)", 1, {"unseen clients": "some"}, "unseen clients are tuned like all others"),
    Rule("fedbabu", 2, {"unseen clients": "some", "hidden layers": "some"}, "made to be tuned by clients it never saw"),
    Rule("perfedavg", 2, {"unseen clients": "some"}, "unseen clients adapt by one step"),
    Rule("apfl", 2, {"quantity skew": "strong"}, "large clients rely on themselves, small ones on the others"),
    Rule("apfl", 1, {"label skew": "some"}, "each client learns how far the global model serves it"),
    Rule("ditto", -2, {"absence": "strong"}, "most clients are absent from a round, and their own models grow old"),
    Rule("apfl", -2, {"absence": "strong"}, "most clients are absent from a round, and their own models grow old"),
    Rule("fedala", -1, {"absence": "strong"}, "most clients are absent from a round, and their own heads grow old"),
    Rule("scaffold", -2, {"absence": "some"}, "absent clients' corrections grow old"),
    Rule("fedbabu", 2, {**_HEAD, "absence": "strong"}, "nothing personal grows old while clients are absent"),
    Rule("fedem", -2, {"few steps": "some"}, "several models share few steps"),
    Rule("fedrep", -2, {"few steps": "strong"}, "few steps for two parts"),
)


class Family(NamedTuple):
    """Methods that personalise in one way, of which one takes part in every race where the conditions hold: the one
    with the most points, or else the first that can run."""

    name: str
    members: tuple[str, ...]
    when: Mapping[str, str] = {}


FAMILIES = (
    Family("one global model", ("fedavg", "scaffold", "fedprox", "finetune(fedavg)", "perfedavg")),
    Family("a private head", ("fedper", "fedrep", "fedrod", "fedbabu"), {"hidden layers": "some"}),
    Family("a personal model", ("ditto", "pfedme")),
    Family("mixing", ("apfl", "fedala", "flayer(fedavg)", "lgmix", "l2sgd")),
    Family("normalisation", ("fedbn",), {"normalisation": "some"}),
    Family("clusters", ("fedem", "fedamp", "heurfedamp")),
)
"""The ways to personalise. A rule may be wrong about what suits some clients, so no way is left out of a race."""


@dataclass(frozen=True)
class Recommendation:
    """A method, its points, and the rules that gave them."""

    method: str
    rules: tuple[Rule, ...] = field(default_factory=tuple)

    @property
    def points(self) -> int:
        """All points, those against it included."""
        return sum(rule.points for rule in self.rules)

    @property
    def reason(self) -> str:
        """Why, in words: what speaks for it and, after `but`, what against."""
        said = dict.fromkeys(rule.reason for rule in sorted(self.rules, key=lambda rule: -rule.points))
        against = {rule.reason for rule in self.rules if rule.points < 0}
        pros = "; ".join(reason for reason in said if reason not in against)
        cons = "; ".join(reason for reason in said if reason in against)
        return f"{pros}; but {cons}" if cons else pros


def find_levels(measured: Iterable[Finding]) -> dict[str, str]:
    """The level of every scale; what was not measured is none."""
    known = {finding.scale.name: finding.level for finding in measured}
    return dict.fromkeys((scale.name for scale in SCALES), "none") | known


def rank_families(measured: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Of each family that there can be, the members, those with most points first.

    >>> [members[0] for members in rank_families(findings({"label skew": 0.5, "hidden layers": 2}))]
    ['finetune(fedavg)', 'fedrep', 'ditto', 'fedala', 'fedem']
    """
    levels, points = find_levels(measured), {choice.method: choice.points for choice in recommend(measured)}
    return [
        tuple(sorted(family.members, key=lambda method: -points.get(method, 0)))
        for family in FAMILIES
        if Rule("", 0, family.when, "").applies(levels)
    ]


def findings(numbers: Mapping[str, float]) -> tuple[Finding, ...]:
    """The numbers with their scales, in the order of `SCALES`; what was not measured is left out."""
    return tuple(Finding(scale, numbers[scale.name]) for scale in SCALES if scale.name in numbers)


def recommend(measured: Iterable[Finding]) -> tuple[Recommendation, ...]:
    """All methods that the rules speak for, most points first, equal ones in the order of the rules.

    >>> alike = {scale.name: math.nan for scale in SCALES}
    >>> [choice.method for choice in recommend(findings(alike))]
    ['fedavg', 'scaffold', 'fedprox', 'finetune(fedavg)', 'perfedavg']
    """
    levels = find_levels(measured)
    applying: dict[str, list[Rule]] = {}
    for rule in RULES:
        if rule.applies(levels):
            applying.setdefault(rule.method, []).append(rule)
    ranked = [Recommendation(method, tuple(rules)) for method, rules in applying.items()]
    return tuple(sorted((choice for choice in ranked if choice.points > 0), key=lambda choice: -choice.points))
