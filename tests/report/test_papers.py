"""Several comparisons in one table: what stands where, what is marked, and that all forms have the same numbers."""

import csv
import io
import math

import pytest

import idiolect
from idiolect.core.errors import InputError, OptionError
from idiolect.report import paper_table, read_study
from idiolect.report.papers import find_standing

SMALL = {"clients": 4, "rounds": 1, "model": "linear", "engine": "loop"}


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    """A comparison on another partition, with another method."""
    folder = tmp_path_factory.mktemp("papers") / "ü & co"
    idiolect.compare("local, fedprox, fedavg", "digits", seeds=3, out=folder, partition="iid", **SMALL)
    return folder


def test_methods_stand_below_data_and_partitions_and_who_is_missing_has_a_dash(originals, second):
    made = paper_table([originals, second], ranks=True)
    texts = {row[0].text: [cell.text for cell in row[1:]] for row in made.table.rows}
    assert set(texts) == {"local", "fedavg", "ditto", "fedprox"}
    assert texts["ditto"][1] == texts["fedprox"][0] == "–"
    assert [column.group for column in made.table.columns] == ["", "digits, dirichlet(alpha=0.1)", "digits, iid", ""]
    assert set(made.ranks) == {"local", "fedavg"}
    assert made.table.rows[0][3].value == made.ranks[made.table.rows[0][0].text]
    assert math.isfinite(made.critical)
    assert "critical difference" in made.diagram()


def test_numbers_are_those_of_the_leaderboard_with_the_spread_that_is_asked_for(originals):
    row = read_study([originals]).comparison.rows[0]
    cells = {}
    for spread in ("std", "se", "interval", "none"):
        made = paper_table([originals], spread=spread, methods=[row.method])
        ((_, cells[spread]),) = made.table.rows
        assert cells[spread].value == pytest.approx(100 * row.selected.mean)
    assert cells["interval"].half == pytest.approx(100 * row.selected.half)
    assert cells["std"].half == pytest.approx(cells["se"].half * math.sqrt(2))
    assert cells["none"].half is None


def test_all_forms_have_the_same_numbers(second, tmp_path):
    made = paper_table(
        [second], columns="selected, worst, mb_up", names=["A_1"],
        labels={"fedprox": "FedProx & we"}, digits=1,
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(made.table.csv())))
    row = next(row for row in rows if row["method"] == "FedProx & we")
    shown = next(row for row in made.table.rows if row[0].text == "FedProx & we")
    assert shown[1].text == f"{float(row['A_1: selected (%)']):.1f} ± {float(row['std A_1: selected (%)']):.1f}"
    tex = made.write(tmp_path / "t.tex").read_text()
    assert r"\multicolumn{3}{c}{A\_1}" in tex
    assert r"FedProx \& we & " + shown[1].text.replace("±", r"$\pm$") in tex
    assert shown[1].text in made.write(tmp_path / "t.md").read_text()
    assert made.write(tmp_path / "t.svg").read_text().startswith("<svg")


def test_only_what_stands_is_marked():
    apart, near = [[0.9, 0.91, 0.92], [0.5, 0.52, 0.51], [0.1, 0.12, 0.11]], [[0.9, 0.8, 0.7], [0.7, 0.8, 0.85]]
    assert find_standing(apart, 1.0) == ([0], [1])
    assert find_standing(apart, -1.0) == ([2], [1])
    assert find_standing(near, 1.0) == ([], [])
    assert find_standing([[0.9], [0.1]], 1.0) == ([], [])
    assert find_standing([[0.9, 0.91], []], 1.0) == ([], [])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"columns": "wurst"}, "there is no column 'wurst'. Did you mean worst"),
        ({"methods": ["fedprox(mu=3)"]}, r"fedprox\(mu=3.0\) is in no comparison"),
        ({"labels": {"local": "x", "fedavg": "x"}}, "two methods are called 'x'"),
        ({"names": ["a", "b"]}, "2 names are given for 1 comparisons"),
        ({"spread": "sd"}, "spread='sd' is not allowed"),
    ],
)
def test_what_is_not_there_is_named(originals, wrong, words):
    with pytest.raises((InputError, OptionError), match=words):
        paper_table([originals], **wrong)


def test_on_the_command_line(originals, second, tmp_path, call):
    code, out, _ = call("table", originals, second, "--label", "fedprox=FedProx", "--name", f"{second}=Even")
    assert (code, "FedProx" in out, "Even" in out or "accuracy" in out) == (0, True, True)
    code, out, _ = call("table", originals, "--out", tmp_path / "a.tex", "--out", tmp_path / "a.csv")
    assert code == 0
    assert (tmp_path / "a.csv").read_text().startswith("method,")
    code, _, err = call("table", originals, "--label", "ditto")
    assert (code, "write it as in --label" in err) == (2, True)
    code, _, err = call("table", originals, "--out", tmp_path / "a.pdf")
    assert (code, "the ending says the form" in err) == (2, True)
