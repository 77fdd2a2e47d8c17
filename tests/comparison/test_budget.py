"""Equal budgets in gradients."""

import pytest
import yaml

import idiolect
from idiolect import comparison
from idiolect.comparison.api import resume_comparison
from idiolect.comparison.budget import RoundCost
from idiolect.core.errors import InputError
from idiolect.core.registry import describe
from idiolect.report.folders import read_study

SETTINGS = {"data": "digits", "clients": 4, "rounds": 8, "seeds": 1, "engine": "loop"}


@pytest.mark.parametrize(("first", "later", "rounds"), [(20, 10, 8), (40, 20, 4), (100, 20, 2), (2, 1, 8), (0, 0, 8)])
def test_rounds_fit_into_the_gradients_of_fedavg(first, later, rounds):
    assert RoundCost(first, later, 0.0, 0.0).fit_rounds(allowed=80, rounds=8) == rounds


def test_every_method_stops_at_the_same_number(tmp_path):
    board = idiolect.compare(
        "fedavg, ditto, apfl, pfedme(inner_steps=4)", budget="gradients", out=tmp_path / "a", **SETTINGS
    )
    assert board.protocol["rounds_of"] == {"fedavg": 8, "ditto": 4, "apfl": 4, "pfedme(inner_steps=4)": 2}
    assert {row.method: row.relative_gradients for row in board.rows} == dict.fromkeys(board.protocol["rounds_of"], 1.0)
    assert "pfedme(inner_steps=4) 2" in str(board)


def test_a_comparison_goes_on_with_the_rounds_it_began_with(tmp_path):
    before = idiolect.compare("fedavg, ditto", budget="gradients", out=tmp_path / "a", **SETTINGS)
    spec = yaml.safe_load((tmp_path / "a" / "comparison.yaml").read_text())
    assert (spec["budget"], spec["rounds_of"]) == ("gradients", {"fedavg": 8, "ditto": 4})
    after = resume_comparison(tmp_path / "a")
    assert [row.scores for row in after.rows] == [row.scores for row in before.rows]


def test_what_was_measured_is_not_measured_again_but_for_what_is_added_or_run_anew(tmp_path, monkeypatch):
    measured, fit = [], comparison.api.fit_methods

    def watch(methods, *rest):
        measured.append([describe(method) for method in methods])
        return fit(methods, *rest)

    monkeypatch.setattr(comparison.api, "fit_methods", watch)
    few = {**SETTINGS, "rounds": 3}
    for names, rerun in (("fedavg", ()), ("fedavg, ditto", ()), ("fedavg, ditto", "ditto")):
        board = idiolect.compare(names, budget="gradients", out=tmp_path / "a", rerun=rerun, **few)
    assert measured == [["fedavg"], ["ditto"], ["ditto"]]
    assert board.protocol["rounds_of"] == {"fedavg": 3, "ditto": 2}


def test_a_report_accepts_rounds_that_differ_by_budget(tmp_path):
    idiolect.compare("fedavg, ditto", budget="gradients", out=tmp_path / "a", **SETTINGS)
    study = read_study([tmp_path / "a"])
    assert study.comparison.protocol["rounds_of"] == {"fedavg": 8, "ditto": 4}
    assert study.comparison.protocol["rounds"] == 8


def test_what_is_no_budget_is_refused(tmp_path):
    with pytest.raises(InputError, match="budget='euros' is not allowed; it must be one of gradients, rounds"):
        idiolect.compare("fedavg, ditto", budget="euros", out=tmp_path / "a", **SETTINGS)
    with pytest.raises(InputError, match="rounds_of: ditto is not among the methods"):
        idiolect.compare("fedavg, local", rounds_of={"ditto": 3}, out=tmp_path / "a", **SETTINGS)
    assert not (tmp_path / "a").exists()
