"""`idiolect compare`: a leaderboard on the screen and in files."""

import json

import yaml

QUICK = ("--clients", "4", "--rounds", "2", "--model", "linear", "--quiet")


def test_compare_prints_and_writes_a_leaderboard(call, folder):
    code, out, err = call("compare", "--methods", "local, fedavg, ditto", "--seeds", "2", "--out", "x", *QUICK)
    assert (code, err) == (0, "")
    for part in (
        "selected",
        "best",
        "bottom decile",
        "worst",
        "std",
        "difference [95 %]",
        "Holm",
        "MB up/down",
        "2.00*",
    ):
        assert part in out
    for part in ("weighted by samples", "validation", "2 rounds", "participation 1", "(seed 1)", "results: x"):
        assert part in out
    assert out.splitlines()[-1] == "see it: idiolect report x"
    assert json.loads((folder / "x" / "comparison.json").read_text())["protocol"]["baseline"] == "fedavg"


def test_a_comparison_can_be_repeated_from_its_file(call, folder):
    call("compare", "--methods", "local, fedavg", "--seeds", "0,3", "--out", "x", *QUICK)
    code, _, _ = call("compare", "x/comparison.yaml", "--lr", "0.2", "--out", "y", "--quiet")
    assert code == 0
    held = yaml.safe_load((folder / "y" / "comparison.yaml").read_text())
    assert (held["seeds"], held["methods"], held["lr"]) == ([0, 3], ["local", "fedavg"], 0.2)


def test_compare_says_a_line_per_run(call):
    code, _, err = call("compare", "-m", "local,fedavg", "--seeds", "1", *QUICK[:-1], "--out", "x")
    assert code == 0
    assert [line.split("  ")[:2] for line in err.splitlines()] == [["1/2", "local seed 0"], ["2/2", "fedavg seed 0"]]


def test_a_second_comparison_does_not_overwrite_the_first(call, folder):
    for _ in range(2):
        assert call("compare", "-m", "local,fedavg", "--seeds", "1", *QUICK)[0] == 0
    assert {path.name for path in (folder / "results").iterdir()} == {"comparison", "comparison-2"}


def test_a_file_for_one_method_is_not_one_for_several(call, folder):
    (folder / "c.yaml").write_text("method: fedavg\n")
    code, _, err = call("compare", "c.yaml", "-m", "local,fedavg")
    assert code == 2
    assert "'methods:' instead of 'method:'" in err
