"""Trials see no test data, stop and go on anywhere, and are judged by validation."""

import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.runs.settings import configure
from idiolect.runs.setup import make_plan
from idiolect.runs.trial import Trial, without_test

DATA = load([(torch.rand(30, 4, generator=torch.Generator().manual_seed(k)), torch.arange(30) % 3) for k in range(3)])


def plan(method="fedavg", **settings):
    return make_plan(configure({"method": method, "rounds": 4, "lr": 0.3, **settings}), {"data": without_test(DATA)})


def test_test_data_are_taken_away_and_nothing_else():
    blind = without_test(DATA)
    for before, after in zip(DATA.clients, blind.clients, strict=True):
        assert (len(before.test), len(after.test)) == (6, 0)
        assert torch.equal(before.train, after.train)
        assert torch.equal(before.val, after.val)


def test_without_validation_data_there_is_nothing_to_judge_by():
    with pytest.raises(InputError, match="no validation data"):
        without_test(load([(torch.rand(10, 2), torch.arange(10) % 2)], split=[0.8, 0.0, 0.2]))


def test_bit_by_bit_is_the_same_as_at_once():
    whole, parts = Trial(plan("ditto"), "loop"), Trial(plan("ditto"), "loop")
    whole.advance(4)
    for rounds in (1, 1, 3, 4):
        parts.advance(rounds)
        assert parts.rounds == rounds
    assert parts.score() == whole.score()
    assert parts.gradients == whole.gradients


def test_the_score_is_that_of_the_validation_data_after_adaptation():
    trial = Trial(plan("finetune(fedavg)"), "loop", eval_every=1)
    trial.advance(4)
    rows = [row for row in trial.store.rows() if row[0] == 3 and row[3:6] == ("adapted", "val", "accuracy")]
    assert trial.score() == pytest.approx(sum(row[6] * row[7] for row in rows) / sum(row[7] for row in rows))
    assert {row[4] for row in trial.store.rows()} == {"train", "val"}


def test_the_best_round_is_kept():
    trial = Trial(plan(), "loop", eval_every=1)
    trial.advance(4)
    score, at = trial.best
    assert 1 <= at <= 4
    assert score >= trial.score()
