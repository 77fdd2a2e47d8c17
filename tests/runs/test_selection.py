"""The selected round: undefined values count for nothing, and rounds are compared on the same clients."""

import json
import math

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import TrainingError
from idiolect.data import load
from idiolect.runs.selection import Selection
from idiolect.runs.settings import SELECTIONS

ONE_CLASS = 2


def clients():
    """Six clients of two classes, one of which has only one of them: its AUC is undefined."""
    made = []
    for k in range(6):
        random = torch.Generator().manual_seed(k)
        x = torch.randn(40, 4, generator=random)
        y = (x[:, 0] + 0.7 * torch.randn(40, generator=random) > 0).long()
        made.append((x, torch.zeros(40, dtype=torch.long) if k == ONE_CLASS else y))
    return load(made)


def run(**settings):
    return idiolect.run("fedavg", clients(), model=initial_model(), **{"metrics": "auc", "rounds": 4, **settings})


def select(rule, rounds, higher=True):
    selection = Selection(rule, higher)
    for round, scores in enumerate(rounds):
        selection.add(round, scores)
    return selection


def test_a_client_whose_metric_is_undefined_is_left_out_and_counted():
    result = run()
    summary = result.summary
    block = summary["auc"]["selected"]
    assert (block["scored"], block["undefined"], block["clients"]) == (5, 1, 6)
    assert math.isfinite(block["weighted"])
    assert summary["selection"] == "sample-weighted validation"
    values = {}
    for round, client, *where, value, samples in result.store.rows(split="val", metric="auc"):
        assert math.isnan(value) == (client == ONE_CLASS), where
        values.setdefault(round, []).append((value, samples))
    means = {r: sum(v * n for v, n in s if v == v) / sum(n for v, n in s if v == v) for r, s in values.items()}
    assert block["round"] - 1 == min(r for r in means if means[r] == max(means.values()))


def test_where_all_are_undefined_the_last_round_is_taken_and_that_is_said():
    summary = run(metrics={"never": lambda outputs, y: math.nan}).summary
    assert summary["never"]["selected"]["round"] == summary["never"]["best"]["round"] == 4
    assert summary["selection"] == "last round, since validation is undefined for every client"
    assert math.isnan(summary["never"]["selected"]["weighted"])


def test_without_validation_data_the_last_round_is_taken_and_that_is_said():
    summary = idiolect.run("fedavg", clients=3, rounds=2, model="linear", split=[0.8, 0.0, 0.2]).summary
    assert summary["selection"] == "last round, since validation is missing"


@pytest.mark.parametrize("rule", SELECTIONS)
def test_a_resumed_run_selects_as_an_uninterrupted_one(rule, tmp_path):
    settings = {"metrics": "auc", "rounds": 13, "select": rule, "lr": 0.5, "engine": "loop"}
    whole = run(**settings).summary

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.round == 10:
            raise Stop

    with pytest.raises(Stop):
        run(**settings, out=tmp_path / "r", watch=stop)
    resumed = idiolect.resume(tmp_path / "r", data=clients(), model=initial_model())
    assert resumed.summary["auc"] == whole["auc"]
    assert resumed.summary["selection"] == whole["selection"] == SELECTIONS[rule]


def initial_model():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def test_summary_json_is_json_and_comes_back(tmp_path):
    summary = run(metrics={"never": lambda outputs, y: math.nan}, out=tmp_path / "r").summary
    text = (tmp_path / "r" / "summary.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["rounds"] == summary["rounds"]


def test_a_round_that_misses_a_client_is_compared_on_the_others():
    """Without its worst client a round looks better than it is."""
    full, partial = {0: (0.9, 10), 1: (0.3, 10)}, {0: (0.85, 10)}
    assert select("weighted", [full, partial]).round == 0
    assert select("weighted", [full, {0: (0.95, 10)}]).round == 1
    assert select("weighted", [partial, full]).round == 1


def test_a_round_that_few_clients_scored_beats_no_other():
    everybody = dict.fromkeys(range(10), (0.5, 1))
    few = dict.fromkeys(range(2), (0.9, 1))
    assert select("weighted", [everybody, few]).round == 0
    assert select("weighted", [few, everybody]).round == 1


def test_the_plain_mean_and_the_weighted_one_may_select_different_rounds():
    rounds = [{0: (0.9, 9), 1: (0.1, 1)}, {0: (0.8, 9), 1: (0.6, 1)}]
    assert select("weighted", rounds).round == 0
    assert select("mean", rounds).round == 1
    assert select("last", rounds[::-1]).round == 1


def test_ten_rounds_on_end_are_judged_by_their_mean():
    scores = [0.5] * 10 + [0.9] + [0.1] * 3 + [0.8] * 10 + [0.2] * 5
    selection = select("last10", [{0: (score, 1)} for score in scores])
    assert (selection.round, selection.score) == (23, pytest.approx(0.8))
    assert select("last10", [{0: (score, 1)} for score in (0.9, 0.5, 0.1)]).round == 2


def test_the_plain_mean_is_the_headline_where_it_selects():
    assert run(select="mean").summary["headline"] == "mean"
    assert run().summary["headline"] == "weighted"


def test_a_run_whose_uploads_are_all_refused_ends_with_the_reason():
    with pytest.raises(TrainingError, match="is not finite; a smaller learning rate may help"):
        idiolect.run("fedavg", clients=3, rounds=2, model="linear", lr=1e38, local_epochs=5)
