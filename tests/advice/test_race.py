"""A race under an equal budget: the worse half drops out after every rung, and validation alone decides."""

from dataclasses import replace

import pytest
import torch

from idiolect.advice import race
from idiolect.advice.api import Study
from idiolect.advice.race import Contender, Place, RaceSchedule
from idiolect.comparison.budget import RoundCost
from idiolect.contract.method import methods
from idiolect.data import load
from idiolect.runs.progress import Reporter
from idiolect.runs.settings import configure


@pytest.fixture(scope="module")
def study():
    draw = torch.Generator().manual_seed(0)
    data = load([(torch.rand(40, 5, generator=draw), torch.arange(40) % 3) for _ in range(3)])
    return Study(configure({"rounds": 6, "lr": 0.2, "engine": "loop"}), {"data": data})


def schedule(study, *names, rounds=6, budget="gradients"):
    return race.plan_race([methods.build(name) for name in names], study.plan, "loop", rounds, budget)


def test_a_method_that_takes_more_gradients_gets_fewer_rounds(study):
    planned = {each.method: each.rounds for each in schedule(study, "fedavg", "ditto", "apfl", "fedper").contenders}
    assert planned == {"fedavg": 6, "ditto": 3, "apfl": 3, "fedper": 6}


def test_the_budget_may_be_rounds(study):
    assert {each.rounds for each in schedule(study, "fedavg", "ditto", budget="rounds").contenders} == {6}


@pytest.mark.parametrize(("methods", "left"), [(6, (6, 3, 2)), (5, (5, 3, 2)), (3, (3, 2, 1)), (1, (1, 1, 1))])
def test_half_of_them_go_on(study, methods, left):
    runner = Contender(study.plan, RoundCost(1, 1, 0.1, 0.1))
    assert RaceSchedule((runner,) * methods, "loop").counts == left


def test_the_time_is_that_of_all_rungs(study):
    # Three methods of six rounds: rungs of two rounds for 3, 2 and 1 methods; 12 rounds and 6 evaluations.
    runner = Contender(replace(study.plan, rounds=6), RoundCost(1, 1, seconds=0.5, eval_seconds=0.25))
    planned = RaceSchedule((runner,) * 3, "loop")
    assert planned.rounds == 12
    assert planned.seconds == pytest.approx(12 * 0.5 + 6 * 0.25)


def test_the_winner_ran_all_rungs_and_nobody_exceeds_the_budget(study):
    planned = schedule(study, "fedavg", "local", "ditto", "finetune(fedavg)")
    ended = race.run_race(planned)
    assert sorted(each.method for each in ended.places) == sorted(each.method for each in planned.contenders)
    assert [each.rung for each in ended.places] == [2, 1, 0, 0]
    allowed = race.count_fedavg_gradients(replace(study.plan, rounds=6))
    assert all(each.gradients <= allowed for each in ended.places)
    assert ended.places[0].rounds == next(e.rounds for e in planned.contenders if e.method == ended.places[0].method)


def test_a_race_is_repeatable(study):
    names = "fedavg", "local", "ditto"
    first, second = (race.run_race(schedule(study, *names)).places for _ in range(2))
    assert [(e.method, e.score, e.gradients) for e in first] == [(e.method, e.score, e.gradients) for e in second]


def test_places_are_ordered_by_score_and_what_is_no_number_comes_last():
    places = [Place(name, score, 0, 1, 1, 1.0) for name, score in (("a", 0.5), ("b", float("nan")), ("c", 0.7))]
    assert [each.method for each in race.sort_places(places, higher=True)] == ["c", "a", "b"]
    assert [each.method for each in race.sort_places(places, higher=False)] == ["a", "c", "b"]


def test_progress_is_told_rung_by_rung(study):
    class Told(Reporter):
        ended: tuple = ()

        def end(self, label, summary):
            super().end(label, summary)
            self.ended += (label,)

    told = Told()
    planned = schedule(study, "fedavg", "local")
    race.run_race(planned, told)
    assert told.ended[:2] == ("fedavg rung 1", "local rung 1")
    assert told.runs_done == told.runs == sum(planned.counts)
    assert told.rounds_done == told.rounds
