"""Curves of runs, read beside a running writer and never written to."""

import io
import sqlite3
import threading

import polars as pl
import pytest
from rich.console import Console

import idiolect
from idiolect.core.errors import InputError, RunFolderError
from idiolect.core.tables import formatter
from idiolect.report.terminal import watch
from idiolect.runs.store import Store

QUICK = {"clients": 3, "rounds": 4, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "a"
    result = idiolect.run("fedavg", out=folder, **QUICK)
    result.store.close()
    return result


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "a"
    idiolect.compare("local, finetune(fedavg)", out=folder, seeds=2, **QUICK)
    return folder


def drawn(folder, width=80, **named):
    text = io.StringIO()
    watch.follow(folder, Console(file=text, width=width), **named)
    return text.getvalue()


def test_the_curve_is_the_validation_score_of_every_round(run):
    (seen,) = watch.find(run.folder)
    seen.look()
    rows = pl.read_parquet(run.folder / "metrics.parquet").filter(point="personal", split="val", metric="accuracy")
    for number, part in rows.group_by("round"):
        mean = (part["value"] * part["samples"]).sum() / part["samples"].sum()
        assert seen.score("accuracy")[number[0]] == pytest.approx(mean)
    assert (seen.done, seen.rounds, seen.complete) == (4, 4, True)


def test_nothing_is_left_beside_what_is_watched(run):
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    assert "round 4/4" in drawn(run.folder)
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def row(round, value):
    return (round, 0, "seen", "personal", "val", "accuracy", value, 10)


def test_a_writer_at_work_is_seen_round_by_round_and_not_disturbed(tmp_path):
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 3\n")
    (seen,) = watch.find(tmp_path)
    seen.look()
    assert seen.done == 0
    store = Store(tmp_path / "state.sqlite")
    for number in range(3):
        store.commit(number, {}, {}, [row(number, number / 10)], {"next_round": number + 1, "seconds": number + 1.0})
        seen.look()
        assert seen.score("accuracy") == {n + 1: n / 10 for n in range(number + 1)}
    assert seen.complete
    store.close()


def test_a_round_that_is_being_committed_is_not_yet_seen(tmp_path):
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 3\n")
    store = Store(tmp_path / "state.sqlite")
    store.commit(0, {}, {}, [row(0, 0.5)], {"next_round": 1, "seconds": 1.0})
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO metrics VALUES (1, 0, 'seen', 'personal', 'val', 'accuracy', 0.9, 10)")
    (seen,) = watch.find(tmp_path)
    seen.look()
    assert seen.score("accuracy") == {1: 0.5}
    other.execute("COMMIT")
    seen.look()
    assert seen.score("accuracy") == {1: 0.5, 2: 0.9}
    other.close()
    store.close()


def test_a_comparison_has_a_line_per_method(comparison):
    text = drawn(comparison)
    assert text.startswith("4/4 runs done  round 16/16 of all")
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["local", "finetune(fedavg)"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_fits(run, comparison, width):
    for folder in (run.folder, comparison):
        assert max(map(len, drawn(folder, width).splitlines())) <= width


def test_without_a_terminal_it_ends_after_one_look(tmp_path):
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 3\n")
    assert "not begun" in drawn(tmp_path)


def test_on_a_terminal_it_ends_when_the_run_does(tmp_path):
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 2\n")
    store = Store(tmp_path / "state.sqlite")
    store.commit(0, {}, {}, [row(0, 0.5)], {"next_round": 1, "seconds": 1.0})
    store.close()

    def finish():
        late = Store(tmp_path / "state.sqlite")
        late.commit(1, {}, {}, [row(1, 0.75)], {"next_round": 2, "seconds": 2.0})
        late.close()

    text = io.StringIO()
    later = threading.Timer(0.3, finish)
    later.start()
    watch.follow(tmp_path, Console(file=text, width=80, force_terminal=True), every=0.1)
    later.join()
    assert "round 1/2" in text.getvalue()
    assert "round 2/2  0:02  done" in text.getvalue()


def test_ctrl_c_ends_it_cleanly(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 2\n")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", interrupt)
    watch.follow(tmp_path, Console(file=io.StringIO(), force_terminal=True))


def test_another_metric_may_be_shown(run):
    assert "validation loss:" in drawn(run.folder, metric="loss")
    with pytest.raises(InputError, match="there is no metric 'f1'"):
        drawn(run.folder, metric="f1")


def test_what_cannot_be_watched_gets_a_sentence(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run and no comparison"):
        watch.find(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("method: fedavg\nrounds: 2\n")
    with pytest.raises(RunFolderError, match=r"watch one of those inside: .*/a$"):
        watch.find(tmp_path)
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: 2\n")
    (tmp_path / "state.sqlite").write_text("nonsense")  # not a database
    with pytest.raises(RunFolderError, match="cannot be read"):
        drawn(tmp_path)
    (tmp_path / "config.yaml").write_text("method: fedavg\nrounds: many\n")
    with pytest.raises(RunFolderError, match="rounds='many'"):
        watch.find(tmp_path)


def test_a_chart_rises_from_left_to_right():
    lines = [str(line) for line in watch.chart({1: 0.0, 2: 0.5, 3: 1.0}, 20, 4, formatter("loss"))]
    assert len(lines) == 5
    assert lines[0].startswith("1┤")
    assert lines[3].startswith("0┤")
    blank = "\u2800"
    firsts = [next(at for at, mark in enumerate(line.partition("┤")[2]) if mark != blank) for line in lines[:4]]
    assert firsts == sorted(firsts, reverse=True)
    assert lines[4].endswith("3")


def test_rounds_to_come_are_blank():
    assert watch.spark({}, 10, 5, 0, 1) == "     "
    assert watch.spark({1: 0.0, 5: 1.0}, 10, 10, 0.0, 1.0).rstrip() == "▁▃▅▇█"
