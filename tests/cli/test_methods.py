"""`idiolect methods`: all methods, or one in detail."""

import json

import pytest

from idiolect.contract.method import methods


def test_methods_lists_all(call):
    code, out, _ = call("methods")
    assert code == 0
    assert all(f"\n{name} " in out for name in methods)


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
