"""Tuning: equal trials, judged by validation; recorded, resumable, and ready for a comparison."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from idiolect import compare
from idiolect.comparison.api import resume_comparison
from idiolect.core.errors import InputError, MissingExtraError, RunFolderError, UnknownNameError
from idiolect.core.names import slug
from idiolect.data import load
from idiolect.runs.progress import Reporter
from idiolect.tuning import tune

pytest.importorskip("optuna")
DATA = load([(torch.rand(30, 4, generator=torch.Generator().manual_seed(k)), torch.arange(30) % 3) for k in range(3)])
QUICK = {"rounds": 2, "engine": "loop", "model": "linear"}


def tried(tuning):
    return [(each.method, each.number, each.expression, each.lr, each.score) for each in tuning.trials]


def test_every_method_gets_the_same_number_of_trials_the_first_as_it_is():
    tuning = tune("fedavg, fedprox, finetune(ditto)", DATA, trials=4, **QUICK)
    assert [each.trials for each in tuning.methods] == [4, 4, 4]
    for name in ("fedavg", "fedprox", "finetune(ditto)"):
        first, *others = [each for each in tuning.trials if each.method == name]
        assert (first.expression, first.lr) == (name, 0.05)
        assert all(each.lr != 0.05 for each in others)
        assert tuning[name].score == max(each.score for each in (first, *others)) >= tuning[name].before


def test_values_stay_within_the_space():
    tuning = tune("fedprox", DATA, trials=6, space=["mu=0.5:0.6", "lr=0.2"], **QUICK)
    assert {each.lr for each in tuning.trials} == {0.2}
    assert all(0.5 <= each.values["mu"] <= 0.6 for each in tuning.trials)
    assert len({each.values["mu"] for each in tuning.trials}) > 1


def test_it_is_repeatable_and_an_interruption_changes_nothing(tmp_path):
    class Stop(Reporter):
        def end(self, label, summary):
            super().end(label, summary)
            if self.runs_done == 4:
                raise KeyboardInterrupt

    named = {"trials": 4, "methods": "fedavg, fedprox", "data": "digits", "clients": 3, **QUICK}
    whole = tune(**named)
    with pytest.raises(KeyboardInterrupt):
        tune(**named, out=tmp_path / "t", reporter=Stop())
    assert len((tmp_path / "t" / "trials.jsonl").read_text().splitlines()) == 3
    assert tried(tune(**named, out=tmp_path / "t")) == sorted(tried(whole), key=lambda each: each[1])
    again = tune(**named, out=tmp_path / "t", reporter=Stop())
    assert tried(again) == tried(whole)


def test_trials_and_methods_may_be_added(tmp_path):
    named = {"data": DATA, "out": tmp_path, **QUICK}
    tune("fedavg", trials=2, **named)
    tuning = tune("fedavg, local", trials=3, **named)
    assert [each.trials for each in tuning.methods] == [3, 3]
    assert [each.trials for each in tune("local", trials=1, **named).methods] == [1]


def test_the_choice_is_a_comparison(tmp_path):
    tuning = tune("fedavg, fedprox", trials=3, out=tmp_path / "t", clients=3, **QUICK)
    held = yaml.safe_load((tmp_path / "t" / "tuned.yaml").read_text())
    assert held["methods"] == [each.expression for each in tuning.methods]
    assert held["rates"] == {each.expression: each.lr for each in tuning.methods}
    assert (held["rounds"], held["clients"], "method" in held) == (2, 3, False)


def test_one_rate_for_all_is_a_setting_that_a_comparison_takes(tmp_path):
    tuning = tune("fedprox, ditto", trials=2, space=["lr=0.2"], out=tmp_path / "t", clients=3, **QUICK)
    held = yaml.safe_load((tmp_path / "t" / "tuned.yaml").read_text())
    assert (held["lr"], "rates" in held) == (0.2, False)
    board = compare(**held, seeds=1)
    assert {each.method for each in board.rows} == {each.expression for each in tuning.methods}


def test_a_comparison_takes_a_rate_for_each_method(tmp_path):
    tuning = tune("fedavg, fedprox", trials=3, out=tmp_path / "t", clients=3, **QUICK)
    held = yaml.safe_load((tmp_path / "t" / "tuned.yaml").read_text())
    compare(**held, seeds=1, out=tmp_path / "c")
    for each in tuning.methods:
        run = yaml.safe_load((tmp_path / "c" / slug(each.expression) / "seed-0" / "config.yaml").read_text())
        assert run["lr"] == each.lr
    assert resume_comparison(tmp_path / "c").protocol["rates"] == held["rates"]
    with pytest.raises(InputError, match="not among the methods"):
        compare("fedavg", rates={"ditto": 0.1}, seeds=1, **QUICK)


def test_test_data_change_nothing():
    other = [
        replace(each, y=each.y.index_fill(0, each.test.long(), 0), x=each.x.index_fill(0, each.test.long(), 9.0))
        for each in DATA.clients
    ]
    first, second = (tune("fedavg", each, trials=2, **QUICK) for each in (DATA, replace(DATA, clients=tuple(other))))
    assert tried(first) == tried(second)


def test_a_trial_that_cannot_run_counts_and_says_why():
    tuning = tune("fedper", DATA, trials=6, space=["layers=1,5", "lr=0.1"], **QUICK)
    failed = [each for each in tuning.trials if each.values["layers"] == 5]
    assert failed
    assert all(each.score is None and "the head cannot have 5" in each.error for each in failed)
    assert (tuning["fedper"].trials, tuning["fedper"].failed) == (6, len(failed))
    assert tuning["fedper"].expression == "fedper"


def test_every_trial_is_recorded(tmp_path):
    tune("fedprox", DATA, trials=2, out=tmp_path, **QUICK)
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [each["number"] for each in rows] == [0, 1]
    assert {"method", "values", "expression", "lr", "score", "round", "gradients", "seconds", "error"} <= set(rows[0])


def test_other_settings_are_refused_and_nothing_is_changed(tmp_path):
    tune("fedprox", DATA, trials=1, out=tmp_path / "t", **QUICK)
    before = {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()}
    with pytest.raises(RunFolderError, match="rounds: 2 there, 3 now"):
        tune("fedprox", DATA, trials=1, out=tmp_path / "t", **{**QUICK, "rounds": 3})
    with pytest.raises(RunFolderError, match="the space of fedprox"):
        tune("fedprox", DATA, trials=1, space=["mu=0:1"], out=tmp_path / "t", **QUICK)
    assert {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()} == before
    (tmp_path / "t" / "trials.jsonl").write_text("{")
    with pytest.raises(RunFolderError, match="damaged"):
        tune("fedprox", DATA, trials=1, out=tmp_path / "t", **QUICK)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    with pytest.raises(RunFolderError, match="holds no tuning"):
        tune("fedprox", DATA, trials=1, out=tmp_path / "other", **QUICK)


def test_trials_of_other_code_or_other_data_are_not_mixed(tmp_path):
    """A loss that was edited, or data that are other ones, need a folder of their own."""

    def loss(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets)

    def edited(outputs, targets):
        return 2 * torch.nn.functional.cross_entropy(outputs, targets)

    tune("fedavg", DATA, trials=1, out=tmp_path / "t", loss=loss, **QUICK)
    before = (tmp_path / "t" / "trials.jsonl").read_text()
    with pytest.raises(RunFolderError, match="fedavg: the code of the loss has changed"):
        tune("fedavg", DATA, trials=2, out=tmp_path / "t", loss=edited, **QUICK)
    first = DATA.clients[0]
    others = replace(DATA, clients=(replace(first, x=first.x + 1), *DATA.clients[1:]))
    with pytest.raises(RunFolderError, match=r"fedavg: data: .* there, .* now"):
        tune("fedavg", others, trials=2, out=tmp_path / "t", loss=loss, **QUICK)
    assert (tmp_path / "t" / "trials.jsonl").read_text() == before
    assert len(tune("fedavg", DATA, trials=2, out=tmp_path / "t", loss=loss, **QUICK).trials) == 2


def test_bad_input_gets_a_sentence(tmp_path):
    with pytest.raises(InputError, match="at least 1"):
        tune("fedavg", DATA, trials=0)
    with pytest.raises(UnknownNameError, match="Did you mean"):
        tune("fedporx", DATA, trials=1, out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install idiolect\[tune\]"):
        tune("fedavg", DATA)
