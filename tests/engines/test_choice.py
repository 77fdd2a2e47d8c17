"""Which engine `auto` takes, what it measures for that, and what it remembers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from idiolect.contract import Training
from idiolect.core.files import home
from idiolect.engines import choice, resolve
from idiolect.engines.measured import name_kind, recall, remember
from idiolect.task.task import Task
from idiolect.testing import tiny_plan

TIMES = {"workers(count=2)": 0.3, "vector(chunk=32, count=2)": 0.2}


@pytest.fixture
def long_runs(monkeypatch):
    """Every run is worth several processes; measuring is pretended, and counted."""
    counted = []
    monkeypatch.setattr(choice, "WORTHWHILE", 0.0)
    monkeypatch.setattr(choice, "cores", lambda: 2)
    monkeypatch.setattr(choice, "time_one_client", lambda plan: counted.append(1) or 1.0)
    monkeypatch.setattr(choice, "measure", lambda plan, clients, cluster: counted.append(clients) or dict(TIMES))
    return counted


def test_short_runs_stay_with_the_loop_and_what_is_named_is_taken():
    assert resolve("auto", tiny_plan("fedavg"))[0] == "loop"
    assert resolve("workers(count=1)", tiny_plan("fedavg")) == ("workers(count=1)", {})


def test_long_ones_are_measured(monkeypatch):
    monkeypatch.setattr(choice, "WORTHWHILE", 0.0)
    plan = replace(tiny_plan("fedavg"), rounds=10**4)
    chosen, seconds = choice.calibrate(plan)
    assert chosen == min(seconds, key=lambda text: seconds[text])
    assert any(text.startswith("vector") for text in seconds)
    assert recall(plan).keys() == {"loop", *seconds}


def test_the_second_run_of_a_kind_measures_nothing(long_runs):
    plan = replace(tiny_plan("fedavg"), rounds=1000)
    assert choice.calibrate(plan) == ("vector(chunk=32, count=2)", TIMES)
    assert long_runs == [1, 5]
    assert choice.calibrate(replace(plan, rounds=2000)) == ("vector(chunk=32, count=2)", TIMES)
    assert long_runs == [1, 5]


def test_measuring_costs_at_most_a_tenth_of_the_run(long_runs):
    """Two candidates train their clients twice; where that is too much, a rule decides."""
    plan = tiny_plan("fedavg")
    for rounds in (1, 3, 20, 25, 50, 400):
        long_runs.clear()
        (home() / "engines.json").unlink(missing_ok=True)
        plan = replace(plan, rounds=rounds)
        chosen, _ = choice.calibrate(plan)
        visits = 5 * rounds
        cost = sum(1 if number == 0 else 4 * clients for number, clients in enumerate(long_runs))
        assert cost <= 0.1 * visits
        assert chosen.startswith("vector")


def test_the_rule_takes_stacks_for_dense_networks_and_workers_for_others(long_runs):
    dense, normed = (replace(tiny_plan("fedavg", norm=norm), rounds=1) for norm in (False, True))
    assert choice.calibrate(dense)[0] == "vector(chunk=32, count=2)"
    assert choice.calibrate(normed)[0] == "workers(count=2)"
    assert long_runs == []


def test_a_damaged_file_or_none_changes_nothing(long_runs, monkeypatch, tmp_path):
    plan = replace(tiny_plan("fedavg"), rounds=1000)
    home().mkdir(parents=True, exist_ok=True)
    for text in ("{", "[]", '{"a": 3}', "\x00"):
        (home() / "engines.json").write_text(text)
        assert recall(plan) == {}
        assert choice.calibrate(plan)[0] == "vector(chunk=32, count=2)"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IDIOLECT_HOME", str(tmp_path / "file"))
    assert choice.calibrate(plan)[0] == "vector(chunk=32, count=2)"
    assert recall(plan) == {}


def test_a_kind_is_structure_method_shapes_and_training():
    def of(module, method="fedavg", **training):
        plan = replace(tiny_plan(method), rounds=3)
        x, y = plan.tasks[0].example
        task = Task(module, (x, y), classes=plan.data.classes)
        return name_kind(replace(plan, tasks=(task,), training=replace(plan.training, **training)))

    x = tiny_plan("fedavg").tasks[0].example[0]
    make = lambda width: nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), width), nn.ReLU(), nn.Linear(width, 9))  # noqa: E731
    usual = of(make(4))
    torch.manual_seed(1)
    assert of(make(4)) == usual == of(make(4), lr=0.5)
    others = [
        of(make(5)),
        of(make(4), "ditto"),
        of(make(4), batch_size=Training().batch_size + 1),
        of(make(4), epochs=3),
    ]
    assert len({usual, *others}) == 5


def test_only_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr("idiolect.engines.measured.MOST", 2)
    plans = [replace(tiny_plan(method), rounds=3) for method in ("fedavg", "ditto", "fedper")]
    for plan in plans:
        remember(plan, {"loop": 1.0})
    assert [recall(plan) for plan in plans] == [{}, {"loop": 1.0}, {"loop": 1.0}]
