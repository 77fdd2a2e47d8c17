"""`idiolect demo`: a small comparison, shown again from its folder."""

import yaml

from idiolect.cli import demo
from idiolect.contract import methods


def test_demo_runs_and_is_shown_again(call, monkeypatch, tmp_path):
    small = {"methods": ["fedavg", "local", "fedper"], "rates": {"local": 0.1}, "seeds": 2, "data": "digits"}
    settings = tmp_path / "demo.yaml"
    settings.write_text(yaml.safe_dump(small | {"clients": 3, "rounds": 1, "model": "linear"}))
    monkeypatch.setattr(demo, "SETTINGS", settings)
    code, out, err = call("demo", "--jobs", "1")
    assert code == 0
    assert len(err.splitlines()) == 2 * 3
    assert out.startswith("3 methods x 2 seeds on digits: 3 clients, 1 rounds")
    assert out.splitlines()[-1] == "written: results/demo/report.html"
    assert "Over 2 seeds, fedavg has" in out
    code, again, err = call("demo")
    assert (code, err) == (0, "")
    assert again == out


def test_every_method_of_the_demo_has_a_rate_of_its_own():
    settings = demo.read_settings()
    assert list(settings["rates"]) == settings["methods"]
    assert all(methods.build(method) for method in settings["methods"])
