"""`advise`: measure a federation, recommend methods, and let them race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Unpack

from ..comparison.budget import check_budget
from ..comparison.conditions import choose_engine
from ..contract import Method
from ..contract import methods as registry
from ..core.errors import IdiolectError, InputError
from ..core.expressions import write
from ..core.options import options_of
from ..core.registry import describe, override
from ..core.tables import formatter, write_html
from ..engines import Plan
from ..engines.cluster.tasks import find_place
from ..methods.fedavg import FedAvg
from ..runs.arguments import RaceArguments
from ..runs.notebook import reporting
from ..runs.progress import Reporter
from ..runs.settings import Config
from ..runs.setup import check_needs, make_plan, separate
from ..runs.trial import without_test
from .presets import Preset, find_kind, find_presets
from .profile import find_conflicts, measure_federation, split_conflicts
from .race import Race, RaceSchedule, plan_race, run_race
from .rules import Finding, Recommendation, findings, rank_families, recommend
from .tables import findings_table, race_table, recommended_table

CHOSEN = 3
"""How many methods are recommended."""
REFERENCES = ("local", "fedavg", "finetune(fedavg)")
PROBE = 3
"""Rounds of FedAvg after which conflicts are measured."""
LONGEST = 24
"""Most rounds of a race, unless more are asked for."""


@dataclass(frozen=True, repr=False)
class Advice:
    """What a federation is like, which methods suit it and, if they raced, which won.

    Attributes:
        findings: the measured numbers with their levels.
        recommended: three methods, with the rules that speak for them.
        conflicts: for each layer the share of pairs of clients whose updates oppose each other.
        skipped: methods with more points that cannot run here, and why.
        race: how the race ended; None if there was none.
        tuned: of recommended methods, what tuning found on clients that differ alike.
    """

    findings: tuple[Finding, ...]
    recommended: tuple[Recommendation, ...]
    conflicts: Mapping[str, float]
    skipped: Mapping[str, str]
    race: Race | None = None
    tuned: Mapping[str, Preset] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The method to use: the winner of the race, or the first by the rules where nobody won."""
        return self.winner or next((choice.method for choice in self.recommended), "local")

    @property
    def winner(self) -> str | None:
        """The method that won the race; None without a race, or where no score is defined."""
        first = self.race.places[0] if self.race else None
        return first.method if first is not None and math.isfinite(first.score) else None

    @property
    def sure(self) -> bool:
        """Whether a race was won by more than chance; rules alone are never sure."""
        return self.race is not None and self.winner is not None and not self.race.rivals

    def __repr__(self) -> str:
        return f"Advice({self.sentence!r})"

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        """The advice in a notebook: the sentence, the race, and what it rests on."""
        race = [race_table(self.race)] if self.race else []
        skipped = [f"left out {method}: {why}" for method, why in self.skipped.items()]
        return write_html([*race, recommended_table(self), findings_table(self)], [self.sentence, *skipped])

    @property
    def sentence(self) -> str:
        """The advice in one sentence."""
        names = ", ".join(choice.method for choice in self.recommended)
        if not names and self.winner is None:
            return "Start with local: none of the methods that suit these clients by the rules can run here."
        if self.race is None:
            return f"Start with {names}: they suit these clients by the rules, which no race has verified."
        if self.winner is None:
            return (
                f"Start with {names}: they suit these clients by the rules; nobody won the race, since the validation"
                f" {self.race.metric} is undefined for every client, so race them by another metric."
            )
        first, *others = self.race.places
        show = formatter(self.race.metric)
        unit = " %" if self.race.metric == "accuracy" else ""
        text = f"Use {first.method}: it won with a validation {self.race.metric} of {show(first.score)}{unit}"
        rival = next((place for place in others if place.rung == first.rung), None)
        if rival is None:
            return f"{text}."
        text += f", {show(abs(first.score - rival.score))}{' points' * bool(unit)} ahead of {rival.method}"
        if self.sure:
            return f"{text}."
        names = ", ".join(place.method for place in self.race.rivals)
        return (
            f"{text}. This is not sure: over these clients it cannot be told from {names}; compare with several seeds."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "findings": [
                {"name": finding.scale.name, "value": finding.value, "level": finding.level, **finding.scale._asdict()}
                for finding in self.findings
            ],
            "conflicts": dict(self.conflicts),
            "recommended": [
                {"method": choice.method, "points": choice.points, "reason": choice.reason}
                for choice in self.recommended
            ],
            "skipped": dict(self.skipped),
            "tuned": {name: {"method": each.method, "lr": each.lr} for name, each in self.tuned.items()},
            "race": None
            if self.race is None
            else {
                **vars(self.race),
                "places": [{k: v for k, v in vars(place).items() if k != "by_client"} for place in self.race.places],
            },
            "best": self.best,
            "sure": self.sure,
            "sentence": self.sentence,
        }


class Study:
    """A federation that is looked at step by step: `advice`, then `schedule`, then `run_race`.

    Everything that is wrong with what is given is found when it is built.
    """

    def __init__(
        self,
        config: Config,
        objects: Mapping[str, Any],
        rounds: int | None = None,
        budget: str = "gradients",
        budgets: Sequence[float] = (),
        on: str | None = None,
    ) -> None:
        check_budget(budget)
        if wrong := [share for share in budgets if not 0 < share <= 1]:
            raise InputError(
                f"budgets={wrong[0]!r} is not allowed; a budget is the share of the model that a client can compute, "
                "above 0 and at most 1, as in 0.3,0.5,1"
            )
        self.budgets = tuple(float(share) for share in budgets)
        if rounds is not None and rounds < 1:
            raise InputError(f"a race of {rounds} rounds cannot be run; give at least 1")
        self.config, self.objects, self.place = config, objects, find_place(on)
        self.rounds, self.budget = rounds or min(LONGEST, config.rounds), budget
        plan = make_plan(replace(config, method="fedavg"), {**objects, "method": FedAvg()})
        self.plan: Plan = replace(plan, data=without_test(plan.data))

    @cached_property
    def engine(self) -> str:
        """The engine of all runs, resolved once."""
        return choose_engine(self.config.engine, replace(self.plan, rounds=self.rounds), place=self.place)

    @cached_property
    def advice(self) -> Advice:
        """The numbers, and what the rules make of them."""
        task = self.plan.tasks[0]
        shares = find_conflicts(self.plan, self.engine, PROBE) if len(self.plan.tasks) == 1 else {}
        missing = {"tight budgets": 1 - sum(self.budgets) / len(self.budgets)} if self.budgets else {}
        measured = findings(measure_federation(self.plan) | split_conflicts(shares, task.head_unit.name) | missing)
        chosen: list[Recommendation] = []
        skipped: dict[str, str] = {}
        for choice in recommend(measured):
            if len(chosen) == CHOSEN:
                break
            try:
                choice = replace(choice, method=self.keep_to_budgets(choice.method))
                self.build(choice.method)
            except IdiolectError as error:
                skipped[choice.method] = str(error)
            else:
                chosen.append(choice)
        expressions = {choice.method: describe(registry.build(choice.method)) for choice in chosen}
        tuned = find_presets(expressions, find_kind(measured), self.config)
        return Advice(measured, tuple(chosen), shares, skipped, tuned=tuned)

    def keep_to_budgets(self, method: str) -> str:
        """A method's expression with the clients' budgets, if it can keep to them and does not say otherwise."""
        options = options_of(registry.get(method.partition("(")[0]))
        name = next((name for name, info in options.items() if info.tuned == "budget"), None)
        if not self.budgets or name is None:
            return method
        return describe(override(registry.build(method), name, write(list(self.budgets))))

    def build(self, method: str) -> Method:
        """A method that can run here, or the error why it cannot."""
        built = registry.build(method)
        objects = {**self.objects, "data": self.plan.data, "method": built}
        check_needs(make_plan(replace(self.config, method=describe(built)), objects))
        return built

    def try_build(self, method: str) -> Method | None:
        """A method, if it can run here."""
        with suppress(IdiolectError):
            return self.build(method)
        return None

    def choose_families(self, there: Sequence[str]) -> list[str]:
        """One method of each family of which none is there yet; families that cannot run here are left out."""
        known, chosen = {name.partition("(")[0] for name in (*there, *REFERENCES)}, list[str]()
        for members in rank_families(self.advice.findings):
            if not known & {name.partition("(")[0] for name in members}:
                chosen += [method for method in members if self.try_build(method) is not None][:1]
        return chosen

    @cached_property
    def schedule(self) -> RaceSchedule:
        """The race as planned, timed by a few rounds: the recommended methods, one of each family, and references."""
        recommended = [choice.method for choice in self.advice.recommended]
        names = dict.fromkeys([*recommended, *self.choose_families(recommended), *REFERENCES])
        methods = [method for name in names if (method := self.try_build(name))]
        return plan_race(methods, self.plan, self.engine, self.rounds, self.budget, self.config.select)

    def run_race(self, reporter: Reporter | None = None) -> Advice:
        """The advice after the race."""
        return replace(self.advice, race=run_race(self.schedule, reporter, self.place))


def advise(
    data: Any = "digits",
    *,
    race: bool = True,
    rounds: int | None = None,
    budget: str = "gradients",
    budgets: Sequence[float] = (),
    on: str | None = None,
    reporter: Reporter | None = None,
    **settings: Unpack[RaceArguments],
) -> Advice:
    """Say what kind of heterogeneity a federation has, and which methods suit it.

    Args:
        data: as for `run`. Training data are measured, validation data judge the race, test data are not touched.
        race: whether the recommended methods, one of each family of methods, `local`, `fedavg` and `finetune(fedavg)`
            run against each other.
        rounds: FedAvg's rounds in the race; by default those of a run, at most 24.
        budget: what all methods get alike in the race: `gradients`, or `rounds`.
        budgets: the share of the model that a client can compute, where devices cannot compute all of it; clients take
            the values in turn.
        on: `ray`, or as in `ray(cpus=2)`, lets the methods of the race run beside each other on the nodes of a cluster;
            by default if RAY_ADDRESS names one.
        reporter: receives how the race goes on.
        settings: any other argument of `run`: settings such as partition or lr, or own objects.

    >>> advice = advise("digits", partition="pathological:2", clients=5, race=False)
    >>> {finding.scale.name: finding.level for finding in advice.findings}["label skew"]
    'strong'
    """
    if "method" in settings:
        raise InputError("the methods of a race are chosen by the rules; leave out method=...")
    config, objects = separate({"data": data, **settings})
    study = Study(config, objects, rounds, budget, budgets, on)
    if not race:
        return study.advice
    with reporting(reporter) as shown:
        return study.run_race(shown)
