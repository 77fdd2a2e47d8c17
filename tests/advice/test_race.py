"""A race under an equal budget: the worse half drops out after every leg, and validation alone decides."""

from dataclasses import replace

import pytest
import torch

from idiolect.advice import race
from idiolect.advice.api import Study
from idiolect.advice.race import Course, Place, Runner
from idiolect.contract.method import methods
from idiolect.data import load
from idiolect.runs.progress import Reporter
from idiolect.runs.settings import configure


@pytest.fixture(scope="module")
def study():
    draw = torch.Generator().manual_seed(0)
    data = load([(torch.rand(40, 5, generator=draw), torch.arange(40) % 3) for _ in range(3)])
    return Study(configure({"rounds": 6, "lr": 0.2, "engine": "loop"}), {"data": data})


def course(study, *names, rounds=6, budget="steps"):
    return race.set_out([methods.build(name) for name in names], study.plan, "loop", rounds, budget)


def test_a_method_that_takes_more_steps_gets_fewer_rounds(study):
    planned = {each.method: each.rounds for each in course(study, "fedavg", "ditto", "fedper").runners}
    assert planned == {"fedavg": 6, "ditto": 3, "fedper": 6}


def test_the_budget_may_be_rounds(study):
    assert {each.rounds for each in course(study, "fedavg", "ditto", budget="rounds").runners} == {6}


@pytest.mark.parametrize(("methods", "left"), [(6, (6, 3, 2)), (5, (5, 3, 2)), (3, (3, 2, 1)), (1, (1, 1, 1))])
def test_half_of_them_go_on(study, methods, left):
    runner = Runner(study.plan, 1, 1, 0.1, 0.1)
    assert Course((runner,) * methods, "loop").left == left


def test_the_time_is_that_of_all_legs(study):
    # Three methods of six rounds: legs of two rounds for 3, 2 and 1 methods; 12 rounds and 6 evaluations.
    runner = Runner(replace(study.plan, rounds=6), 1, 1, seconds=0.5, judged=0.25)
    planned = Course((runner,) * 3, "loop")
    assert planned.rounds == 12
    assert planned.seconds == pytest.approx(12 * 0.5 + 6 * 0.25)


def test_the_winner_ran_all_legs_and_nobody_exceeds_the_budget(study):
    planned = course(study, "fedavg", "local", "ditto", "finetune(fedavg)")
    ended = race.run(planned)
    assert sorted(each.method for each in ended.places) == sorted(each.method for each in planned.runners)
    assert [each.leg for each in ended.places] == [2, 1, 0, 0]
    allowed = race.steps_of_fedavg(replace(study.plan, rounds=6))
    assert all(each.steps <= allowed for each in ended.places)
    assert ended.places[0].rounds == next(e.rounds for e in planned.runners if e.method == ended.places[0].method)


def test_a_race_is_repeatable(study):
    names = "fedavg", "local", "ditto"
    first, second = (race.run(course(study, *names)).places for _ in range(2))
    assert [(e.method, e.score, e.steps) for e in first] == [(e.method, e.score, e.steps) for e in second]


def test_places_are_ordered_by_score_and_what_is_no_number_comes_last():
    places = [Place(name, score, 0, 1, 1, 1.0) for name, score in (("a", 0.5), ("b", float("nan")), ("c", 0.7))]
    assert [each.method for each in race.ordered(places, higher=True)] == ["c", "a", "b"]
    assert [each.method for each in race.ordered(places, higher=False)] == ["a", "c", "b"]


def test_progress_is_told_leg_by_leg(study):
    class Told(Reporter):
        ended: tuple = ()

        def end(self, label, summary):
            super().end(label, summary)
            self.ended += (label,)

    told = Told()
    planned = course(study, "fedavg", "local")
    race.run(planned, told)
    assert told.ended[:2] == ("fedavg leg 1", "local leg 1")
    assert told.runs_done == told.runs == sum(planned.left)
    assert told.rounds_done == told.rounds
