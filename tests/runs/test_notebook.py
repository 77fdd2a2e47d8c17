"""What a notebook shows: results, comparisons, advice and tunings as tables, and a bar while they are made."""

import sys
import types

import pytest

import idiolect
from idiolect.core.errors import InputError
from idiolect.runs.notebook import reporting
from idiolect.runs.progress import Reporter

HOSTILE = "<b>ward</b> 1"


@pytest.fixture(scope="module")
def clients():
    x = [[0.0], [1.0]] * 10
    return {HOSTILE: (x, [0, 1] * 10), "ward 2": (x, [1, 0] * 10)}


@pytest.fixture
def shown(monkeypatch):
    """Everything that a notebook would show, newest last."""
    drawn = []
    handle = types.SimpleNamespace(update=drawn.append)

    def display(content, display_id):
        drawn.append(content)
        return handle

    class ZMQInteractiveShell:
        pass

    python = types.ModuleType("IPython")
    python.get_ipython = ZMQInteractiveShell
    python.display = types.ModuleType("IPython.display")
    python.display.display, python.display.HTML = display, str
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", python.display)
    return drawn


def test_a_run_shows_a_bar_in_a_notebook_and_takes_it_away(shown, clients):
    idiolect.run("local", clients, model="linear", rounds=2)
    assert 'value="0" max="2"' in shown[0]
    assert 'value="2" max="2"' in shown[-2]
    assert "local  2/2 rounds" in shown[-2]
    assert shown[-1] == ""


def test_a_reporter_of_the_users_takes_its_place(shown, clients):
    with Reporter() as mine:
        idiolect.run("local", clients, model="linear", rounds=2, reporter=mine)
    assert (mine.rounds_done, shown) == (2, [])


def test_a_comparison_has_one_bar_for_all_runs(shown, clients):
    idiolect.compare("local, fedavg", clients, model="linear", rounds=2, seeds=2)
    assert 'max="8"' in shown[0]
    assert "3/4 runs" in shown[-2]
    assert shown[-1] == ""
    assert shown.count("") == 1


def test_nothing_is_shown_elsewhere(monkeypatch):
    assert type(reporting(None)) is Reporter
    terminal = types.SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert type(reporting(None)) is Reporter


def test_a_bar_goes_away_when_a_run_is_stopped(shown, clients):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        idiolect.run("local", clients, model="linear", rounds=2, watch=stop)
    assert shown[-1] == ""


def test_a_result_is_a_table_with_names_as_data(clients):
    result = idiolect.run("fedavg", clients, model="linear", rounds=2)
    html = result._repr_html_()
    assert html.startswith("<p>fedavg on ")
    assert "<caption>accuracy (%)</caption>" in html
    assert "selected: sample-weighted validation" in html
    with pytest.raises(InputError, match="rounds that have some: 1, 2"):
        result.scores(round=7)
    scores = result.scores()
    assert scores["client"].to_list() == [HOSTILE, "ward 2"]
    assert scores["accuracy"].to_list() == [
        row["value"]
        for row in result.metrics.filter(split="test", point="personal", metric="accuracy").to_dicts()
        if row["round"] == result.summary["accuracy"]["selected"]["round"]
    ]
    assert result.scores(-1, "val").equals(result.scores(2, "val"))


def test_a_comparison_is_short_in_words_and_whole_in_a_notebook(clients):
    comparison = idiolect.compare("local, fedavg", clients, model="linear", rounds=2, seeds=2)
    assert repr(comparison).startswith("Comparison(2 methods on ")
    html = comparison._repr_html_()
    assert "<caption>" in html
    assert "Over 2 seeds" in html or "Nothing can be concluded" in html
    assert "<script" not in html


def test_advice_and_tuning_are_short_in_words_and_whole_in_a_notebook(clients):
    advice = idiolect.advise(clients, model="linear", race=False)
    assert repr(advice).startswith("Advice('Start with")
    assert advice.sentence.split(":")[0] in advice._repr_html_()
    assert "label skew" in advice._repr_html_()
    tuning = idiolect.tune("fedavg", clients, trials=2, model="linear", rounds=1)
    assert repr(tuning) == "Tuning(fedavg; 2 trials)"
    assert "as given" in tuning._repr_html_()
