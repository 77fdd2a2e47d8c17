"""A metric that is undefined for some clients, or for all, through every command: what is left out is counted and said,
nothing wins by a number that it does not have, and nothing breaks."""

import csv
import json
import math
import random

import pytest

ALL = {"anna": (0, 1), "bo": (0, 1), "one class": (1,), "d": (0, 1)}
NONE = {"anna": (1,), "bo": (1,), "c": (0,), "d": (0,)}
SETTINGS = ["--data", "csv:table.csv", "--metrics", "auc,accuracy", "--rounds", "2", "--eval-every", "1"]
SETTINGS += ["--engine", "loop", "--quiet"]


def write_table(folder, labels_of):
    """A table of clients, each with the labels that it may have."""
    draw = random.Random(0)
    with (folder / "table.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["client", "a", "b", "target"])
        for client, labels in labels_of.items():
            for place in range(40):
                label = labels[place % len(labels)]
                lines.writerow([client, draw.gauss(label, 1), draw.gauss(0, 1), label])


@pytest.fixture
def some(folder):
    """One of four clients has a single class."""
    write_table(folder, ALL)


@pytest.fixture
def none(folder):
    """Every client has a single class, so no AUC is defined."""
    write_table(folder, NONE)


def test_what_is_left_out_is_counted_in_summary_table_page_and_files(call, folder, some):
    _, ran, _ = call("run", *SETTINGS, "--out", "run")
    assert "selected round: the auc of 1 of 4 clients is undefined and left out" in ran
    selected = json.loads((folder / "run/summary.json").read_text())["auc"]["selected"]
    assert (selected["scored"], selected["undefined"], selected["clients"]) == (3, 1, 4)
    _, compared, _ = call("compare", "--methods", "fedavg, local", *SETTINGS, "--seeds", "2", "--out", "both")
    assert "the auc of 2 of 8 clients is undefined and left out over all seeds" in " ".join(compared.split())
    assert call("report", "both", "--out", "page.html")[0] == call("figures", "both", "--out", "files")[0] == 0
    assert "2 of 8 clients is undefined" in (folder / "page.html").read_text()
    scores = (folder / "files/leaderboard.csv").read_text().splitlines()[1:]
    assert all(math.isfinite(float(score)) for line in scores for score in line.split(",")[1:])


def test_where_all_are_undefined_that_is_said_and_nothing_breaks(call, folder, none):
    _, ran, _ = call("run", *SETTINGS, "--out", "run")
    assert "selected: last round, since validation is undefined for every client" in ran
    _, compared, _ = call("compare", "--methods", "fedavg, local", *SETTINGS, "--seeds", "2", "--out", "both")
    assert "the auc of 8 of 8 clients is undefined" in compared
    assert "(one seed)" not in compared
    for command in (["report", "both", "--out", "page.html"], ["figures", "both", "--out", "files"]):
        code, _, problems = call(*command)
        assert (code, problems) == (0, "")
    assert ">nan" not in (folder / "page.html").read_text().lower()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_watching_shows_the_headline_also_where_it_is_undefined(call, none, command):
    methods = ["--methods", "fedavg, local", "--seeds", "1"] if command == "compare" else []
    call(command, *methods, *SETTINGS, "--out", "there")
    _, watched, _ = call("watch", "there")
    assert "validation auc" in watched
    assert "undefined or not measured so far" in watched
    assert "accuracy" not in watched


def test_watching_shows_the_first_metric_that_was_asked_for(call, some):
    call("run", *SETTINGS, "--out", "there")
    assert "validation auc: 0." in call("watch", "there")[1]


def test_nobody_wins_a_race_without_a_score(call, none):
    code, said, _ = call("advise", *SETTINGS, "--yes")
    assert code == 0
    assert "it won" not in said
    assert "nobody won the race, since the validation auc is undefined for every client" in " ".join(said.split())


def test_a_tuning_without_a_score_chooses_nothing(call, folder, none):
    code, said, problems = call("tune", "--methods", "fedavg, fedprox", *SETTINGS, "--trials", "2", "--out", "tuned")
    assert code != 0
    assert "no trial has a score, so nothing was chosen" in problems
    assert "nothing for fedavg" in said
    assert not (folder / "tuned/tuned.yaml").exists()
