"""`idiolect methods`: all methods, or one in detail."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from idiolect.cli.methods import group_methods
from idiolect.contract.method import methods


def test_methods_lists_all_a_line_each(call, monkeypatch):
    """Even on a terminal of 80 columns; what no other library has comes first."""
    monkeypatch.setattr("idiolect.cli.screen.OUT", Console(highlight=False, width=80))
    code, out, _ = call("methods")
    assert code == 0
    lines = out[: out.index(f"\n{len(list(methods))} methods")].splitlines()
    listed = [line.split()[0].removesuffix("(...)") for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(methods)
    assert listed[:5] == ["fedlag", "flayer", "lgmix", "pfedgate", "fedfac"]
    assert {"in no other library", "private layers", "masks and sub-models"} < set(lines)


def test_a_method_without_a_family_is_listed_among_others():
    mine = {"name": "mine", "title": "A method of mine", "family": "", "kind": "wrapper"}
    assert group_methods([mine])["others"] == [("mine(...)", "A method of mine")]


def test_methods_as_json(call):
    code, out, _ = call("methods", "--json")
    held = {each["name"]: each for each in json.loads(out)}
    assert code == 0
    assert list(held) == list(methods)
    ditto = held["ditto"]
    assert ditto["paper"]["year"] == 2021
    assert ditto["kind"] == "personalized"
    assert ditto["options"][0] == {
        "name": "lam",
        "type": "number",
        "default": 1.0,
        "range": "[0, inf)",
        "choices": [],
        "help": "pull of the personal model towards the global one",
    }
    assert {"presets", "needs", "title"} <= ditto.keys()


def test_the_catalogue_that_a_new_process_lists_is_what_the_registry_says(call):
    """If not, run `make pages`."""
    code = "from idiolect.cli import main; main(['methods', '--json'])"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(listed) == json.loads(call("methods", "--json")[1])


def test_one_method_in_detail(call):
    code, out, _ = call("methods", "Fed-Prox")
    assert code == 0
    for part in ("mu", "0.1", "number in [0, inf)", "weight of the proximal term", "MLSys 2020", "μ", "‖w - w^t‖²"):
        assert part in out
    assert "\\" not in out


@pytest.mark.parametrize("name", list(methods))
def test_every_method_can_be_shown(call, name):
    code, out, _ = call("methods", name)
    assert code == 0
    assert ".. math" not in out
    assert ":math:" not in out


def test_methods_of_other_packages_are_listed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from idiolect.contract import About, Method, register\n\n\n"
        '@register("mine")\n@dataclass(frozen=True)\nclass Mine(Method):\n    about = About("A method of mine")\n'
    )
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[idiolect.methods]\nmine = mine\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from idiolect.cli import main; main(['methods', '--json'])"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [facts["title"] for facts in json.loads(listed) if facts["name"] == "mine"] == ["A method of mine"]
