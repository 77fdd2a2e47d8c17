"""What is said while runs go on: bars on a terminal, few lines elsewhere, nothing when quiet."""

import io
import math

import pytest
from rich.console import Console

import idiolect
from idiolect.core.reading import doing, track
from idiolect.report.loggers import Several
from idiolect.report.terminal.progress import Live, Plain, reporter
from idiolect.runs import api, setup
from idiolect.runs.progress import Meter, Reporter, clock
from idiolect.runs.round_loop import Progress, RoundLoop


def round_(number, rounds=10, seconds=0.5, score=0.8, loss=0.25, samples=30):
    return Progress(number, rounds, clients=4, loss=loss, score=score, seconds=seconds, samples=samples)


def summary(score=0.875):
    return {"metric": "accuracy", "headline": "weighted", "accuracy": {"selected": {"weighted": score}}, "seconds": 2.0}


@pytest.fixture
def screen():
    text = io.StringIO()
    return Console(file=text, width=100), text


def test_time_left_follows_the_newest_rounds():
    meter = Meter(rounds=100)
    assert math.isnan(meter.left)
    for number in range(40):
        meter.add(round_(number, 100, seconds=9.0 if number < 20 else 0.5))
    assert meter.left == pytest.approx(60 * 0.5)


def test_facts_leave_out_what_is_unknown():
    meter = Meter(rounds=10)
    assert meter.facts() == ""
    meter.add(round_(0, score=math.nan, loss=math.nan))
    assert meter.facts() == "4 clients  60 samples/s"
    meter.add(round_(1))
    assert meter.facts() == "4 clients  60 samples/s  loss 0.250  val 0.800"


@pytest.mark.parametrize("rounds", [1, 7, 20, 50, 1000])
def test_a_run_says_at_most_about_twenty_lines_and_the_last(screen, rounds):
    console, text = screen
    with Plain(console) as told:
        told.start("fedavg", rounds)
        for number in range(rounds):
            told.step("fedavg", round_(number, rounds))
    lines = text.getvalue().splitlines()
    assert 1 <= len(lines) <= 21
    assert lines[-1].startswith(f"round {rounds}/{rounds}  4 clients")


def test_set_up_rounds_are_not_counted(screen):
    console, text = screen
    told = Plain(console)
    told.start("fedfac", 2, done=-1)
    for number in (-1, 0, 1):
        told.step("fedfac", round_(number, 2))
    assert [line.split()[1] for line in text.getvalue().splitlines()] == ["1/2", "2/2"]


def test_the_time_left_of_several_runs_ends_at_zero():
    """Set-up rounds are not among the rounds to do, and what a failed run leaves undone is not waited for."""
    told = Reporter()
    told.begin(3, 6)
    for label in ("fedavg", "fedfac", "apple"):
        told.start(label, 2, done=-2 if label == "fedfac" else 0)
        for number in {"fedavg": (0, 1), "fedfac": (-2, -1, 0, 1), "apple": (0,)}[label]:
            told.step(label, round_(number, 2))
            assert told.left >= 0
        told.fail(label, "why") if label == "apple" else told.end(label, summary())
    assert told.rounds_done == 5
    assert told.left == 0


def test_a_comparison_says_a_line_per_run_and_counts_anew_after_its_tuning(screen):
    console, text = screen
    told = Plain(console)
    for kind in ("trial", "seed"):
        told.begin(2, rounds=4)
        for label in (f"local {kind} 0", f"fedavg {kind} 0"):
            told.start(label, 2)
            for number in range(2):
                told.step(label, round_(number, 2))
            told.end(label, summary())
    lines = text.getvalue().splitlines()
    assert len(lines) == 4
    for kind, (first, last) in {"trial": lines[:2], "seed": lines[2:]}.items():
        assert first.startswith(f"1/2  local {kind} 0  accuracy 87.50 %, 2.0 s")
        assert last.endswith("0:00 left")


def test_bars_fit_on_one_line_of_a_terminal():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    label = "finetune(fedlag(ditto(lam=0.5)), epochs=2) seed 3"
    with Live(console) as told:
        told.start(label, 50)
        told.step(label, round_(24, 50))
        lines = console.render_lines(told.bars.get_renderable())
    shown = "".join(segment.text for segment in lines[0])
    assert len(lines) == 1
    for part in ("fine… seed 3", "━", "25/50", "4 clients", "60 samples/s", "loss 0.250", "val 0.800", "0:12 left"):
        assert part in shown


def test_bars_of_a_comparison_come_and_go():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Live(console) as told:
        told.begin(3, rounds=9)  # of a tuning before it
        told.begin(2, rounds=20)
        told.start("a", 10)
        told.start("b", 10, done=4)
        told.step("a", round_(0))
        assert [task.description for task in told.bars.tasks] == ["all runs", "a", "b"]
        assert told.bars.tasks[2].completed == 4
        told.end("a", summary())
        assert [task.description for task in told.bars.tasks] == ["all runs", "b"]
        assert told.bars.tasks[0].fields["count"] == "1/2"


def test_the_console_decides():
    assert type(reporter(Console(force_terminal=True))) is Live
    assert type(reporter(Console(force_terminal=False))) is Plain
    assert type(reporter(Console(force_terminal=True), quiet=True)) is Reporter


def test_clock():
    assert [clock(each) for each in (0, 59.6, 3600, math.nan)] == ["0:00", "1:00", "1:00:00", "-:--"]


def test_reading_data_is_shown_while_it_goes_on(screen):
    console, text = screen
    with Several([Plain(console)]):
        list(track(range(3), 3, "looking through the images"))
        assert not text.getvalue()  # it was quick
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("idiolect.core.reading.EVERY", -1)
            list(track(range(3), 3, "looking through the images"))
    assert text.getvalue().splitlines() == ["looking through the images: 0 of 3", "looking through the images: 3 of 3"]


def test_a_bar_of_reading_goes_when_all_is_read():
    live = Live(Console(file=io.StringIO(), force_terminal=True, width=100))
    with live:
        live.reading("reading [a]", 3, 10)
        (task,) = live.bars.tasks
        assert (task.completed, task.total) == (3, 10)
        live.reading("reading [a]", 10, 10)
        assert not live.bars.tasks


def test_what_goes_on_before_the_first_round_is_said_before_it_begins(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text, heard = io.StringIO(), []
    for owner, name, words in (
        (setup, "load_data", "reading the data"),
        (api, "resolve", "choosing the engine"),
        (RoundLoop, "do_round", "first round"),
    ):
        original = getattr(owner, name)

        def tell(*arguments, original=original, words=words, **named):
            heard.append((words, words in text.getvalue()))
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, tell)
    with Several([Live(Console(file=text, force_terminal=True, width=80))]) as told:
        idiolect.run("fedavg", "digits", clients=3, rounds=1, model="linear", engine="loop", reporter=told)
    assert heard == [(words, True) for words in ("reading the data", "choosing the engine", "first round")]


def test_what_has_no_known_length_is_left_out_of_plain_lines(screen):
    console, text = screen
    with Several([Plain(console)]), doing("reading the data"):
        pass
    assert text.getvalue() == ""
