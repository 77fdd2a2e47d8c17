"""Clients, classes and data with hostile names, through every command that shows or writes them."""

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import idiolect
from idiolect.core.errors import DataError, InputError

HOSTILE = [
    "a/../../..", "..", "ward $\\frac$ 1", "x" * 300, "\x1b[31mred\x07", "two\nlines\r", "[bold]b[/bold]",
    "=cmd|' /C calc'!A0", "<script>alert(1)</script>", "\u202egnp", "~^\\%&|`", "ü" * 300, "A", "a", "", " ",
]  # fmt: skip
SETTINGS = ("--rounds", "2", "--model", "linear", "--engine", "loop")


@pytest.fixture
def table(folder):
    """A table of clients with such names; that of the data is no better."""
    path = folder / "data $x$ [red].csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "x", "target"])
        for place, name in enumerate(name for name in HOSTILE if name.strip()):
            writer.writerows([[name, 0.1 * at + place, f"class $\\{at % 2}\x1b"] for at in range(10)])
    return path


def files():
    return {path for path in Path().rglob("*") if path.is_file()}


def is_clean(text):
    return all(char.isprintable() or char == "\n" for char in text)


def test_names_of_clients_are_only_text(call, table, folder):
    source, outside = f"csv('{table.name}')", set(folder.parent.iterdir())

    def do(*words):
        status, out, err = call(*words)
        assert status == 0, err
        assert is_clean(out), out
        assert is_clean(err), err
        assert "Traceback" not in err
        return out

    do("run", "fedavg", "--data", source, *SETTINGS, "--save-models", "--out", "a")
    models = sorted(Path("a/models").iterdir())
    assert len(models) == len([name for name in HOSTILE if name.strip()])
    do("compare", "-m", "fedavg, ditto", "--data", source, *SETTINGS, "--seeds", "1", "--out", "c")
    do("watch", "a", "--once")
    do("watch", "c", "--once")
    do("report", "c", "--out", "r.html")
    do("figures", "c", "--out", "f", "--format", "svg,pdf")
    do("partition", "--data", source, "--picture", "p.svg")
    for path in (*Path("f").glob("*.svg"), Path("p.svg")):
        ElementTree.parse(path)
    page = Path("r.html").read_text()
    assert "<script>alert" not in page
    assert "ward $\\frac$ 1" in page
    clients = list(csv.reader(Path("f/clients.csv").read_text().splitlines()))
    assert not any(re.match("[=+@]", row[0]) for row in clients)
    for name in ("ward $\\frac$ 1", "two\nlines\r", "a/../../..", "x" * 300, "\x1b[31mred\x07"):
        do("export", "a", "--client", name)
    do("export", "a", "--client", "..", "--out", "m")
    card = Path("m/card.md").read_text()
    assert is_clean(card)
    assert {path.parts[0] for path in files()} <= {
        table.name, "a", "c", "r.html", "f", "p.svg", "m",
        *(path.name for path in Path().iterdir() if path.name.startswith("model-")),
    }  # fmt: skip
    assert set(folder.parent.iterdir()) == outside


def test_an_unknown_client_with_a_hostile_name_is_one_line(call, table):
    assert call("run", "--data", f"csv('{table.name}')", *SETTINGS, "--out", "a")[0] == 0
    status, _, err = call("export", "a", "--client", "\x1b[31m\nred")
    assert status == 2
    assert is_clean(err)
    assert err.count("\n") == 1


def test_names_of_clients_are_only_text_in_python(folder):
    torch.manual_seed(0)
    clients = {name: (torch.randn(12, 3), torch.arange(12) % 2) for name in HOSTILE}
    result = idiolect.run("ditto", clients, model="linear", rounds=1, engine="loop", out="a", save_models=True)
    assert len(list(Path("a/models").iterdir())) == len(HOSTILE)
    again = idiolect.load("a", data=clients)
    for name in HOSTILE:
        assert result.clients()[again.index(name)] == name
        again.model(name)
    idiolect.report.write_report(["a"], "r.html")


def test_a_name_that_is_no_text_is_refused():
    clients = {"a": ([[0.0]], [0]), "b\udc80": ([[1.0]], [1])}
    with pytest.raises(DataError, match="name"):
        idiolect.data.load(clients)


@pytest.fixture
def numbered(folder):
    """A run whose clients are called by numbers, in an order in which none is at the position that it is called."""
    torch.manual_seed(0)
    clients = {name: (torch.randn(12, 3), torch.arange(12) % 2) for name in ("1", "10", "101", "2", "3")}
    Path("sites.csv").write_text(
        "client,x,target\n"
        + "".join(f"{name},{at / 3 + place},{at % 2}\n" for place, name in enumerate(clients) for at in range(9))
    )
    return idiolect.run("ditto", "csv:sites.csv", model="linear", rounds=2, engine="loop", out="a")


def test_a_client_is_first_of_all_its_name(call, numbered):
    names = numbered.clients()
    assert names == ["1", "2", "3", "10", "101"]
    assert [numbered.index(name) for name in names] == [0, 1, 2, 3, 4]
    assert [numbered.index(at) for at in range(5)] == [0, 1, 2, 3, 4]
    for name in names:
        assert call("export", "a", "--client", name)[0] == 0
        assert f"client: {name}\n" in Path(f"model-{name}/card.md").read_text()
    assert call("export", "a", "--position", "1", "--out", "m")[0] == 0
    assert "client: 2\n" in Path("m/card.md").read_text()


def test_a_position_is_not_taken_for_a_name_and_no_name_for_a_position(call, numbered):
    status, _, err = call("export", "a", "--client", "4")
    assert status == 2
    assert "--position 4" in err
    assert call("export", "a", "--position", "5")[0] == call("export", "a", "--position", "-1")[0] == 2
    assert call("export", "a", "--client", "1", "--position", "1")[0] == 2
    with pytest.raises(InputError, match="no client is called '4'"):
        numbered.model("4")
    for wrong in (5, -1, None, 1.5):
        with pytest.raises(InputError, match="no client at position"):
            numbered.model(wrong)


def test_a_report_without_data_names_the_clients(numbered):
    Path("sites.csv").unlink()
    idiolect.report.write_figures(["a"], "f", ["svg"])
    assert [row[0] for row in csv.reader(Path("f/clients.csv").read_text().splitlines())][1:] == [
        *("1", "2", "3", "10", "101")
    ]
