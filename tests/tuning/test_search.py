"""What a tuning tries next, one option after another."""

import math

import pytest
import torch
from torch import nn

from idiolect.contract import methods
from idiolect.core.errors import InputError, RunFolderError
from idiolect.tuning import tune
from idiolect.tuning.records import Candidate, TrialRecord
from idiolect.tuning.search import count_stepwise, propose_stepwise
from idiolect.tuning.space import make_spaces


def scored(candidate, scores, lr=0.05, higher=True):
    """The values that a stepwise tuning tries, where the trials score as given."""
    records = []
    for score in scores:
        values = propose_stepwise(candidate, records, lr, higher)
        records.append(TrialRecord("fedfac", len(records), values, "", lr, score, 1, 0, 0.0))
    return [tuple(record.values.values()) for record in records]


def test_stepwise_all_values_of_an_option_are_tried_with_the_best_of_those_before():
    """tau 0.5 is given. Of tau, 0.75 scores best; then kappa 0.5 is worse, 0.95 better."""
    asked = ["tau=0.25,0.5,0.75,inf", "kappa=0.5,0.95"]
    space = make_spaces({"fedfac": methods.build("fedfac")}, asked, 0.05, stepwise=True)
    candidate = Candidate("fedfac", methods.build("fedfac"), space["fedfac"])
    assert count_stepwise(candidate, 0.05) == 6
    tried = [(0.5, 0.85), (0.25, 0.85), (0.75, 0.85), (math.inf, 0.85), (0.75, 0.5), (0.75, 0.95)]
    assert scored(candidate, [0.5, 0.4, 0.7, 0.6, 0.5, 0.8]) == tried
    lower = [(0.5, 0.85), (0.25, 0.85), (0.75, 0.85), (math.inf, 0.85), (0.25, 0.5), (0.25, 0.95)]
    assert scored(candidate, [0.5, 0.4, 0.7, 0.6, 0.5, 0.8], higher=False) == lower
    equal = [(0.5, 0.85), (0.25, 0.85), (0.75, 0.85), (math.inf, 0.85), (0.5, 0.5), (0.5, 0.95)]
    assert scored(candidate, [0.5, 0.5, None, 0.5, 0.5, 0.5]) == equal


def test_a_stepwise_tuning_runs_and_goes_on_where_it_stopped(tmp_path):
    clients = {f"c{i}": (torch.randn(12, 3), torch.arange(12) % 2) for i in range(3)}
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    asked = {"model": net, "rounds": 1, "stepwise": True, "out": tmp_path / "t"}
    first = tune("fedfac(estimator=pc)", clients, space=["layers=1,2,[1, 2]", "tau=0.25,inf"], **asked)
    assert [record.number for record in first.trials] == list(range(6))
    assert {str(record.values["layers"]) for record in first.trials[:4]} == {"last hidden", "1", "2", "[1, 2]"}
    (tmp_path / "t" / "trials.jsonl").write_text(
        "".join((tmp_path / "t" / "trials.jsonl").read_text().splitlines(keepends=True)[:4])
    )
    again = tune("fedfac(estimator=pc)", clients, space=["layers=1,2,[1, 2]", "tau=0.25,inf"], **asked)
    assert [record.values for record in again.trials] == [record.values for record in first.trials]
    with pytest.raises(RunFolderError, match="space of"):
        tune("fedfac(estimator=pc)", clients, space=["tau=0.25,inf", "layers=1,2,[1, 2]"], **asked)


def test_a_stepwise_tuning_needs_lists():
    with pytest.raises(InputError, match="needs what to try"):
        tune("fedfac", stepwise=True)
    with pytest.raises(InputError, match="is a range, but stepwise"):
        tune("fedfac", stepwise=True, space=["tau=0.1:0.9"])
