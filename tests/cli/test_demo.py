"""`idiolect demo`: a small comparison, shown again from its folder."""

from idiolect.cli import demo


def test_demo_runs_and_is_shown_again(call, monkeypatch):
    monkeypatch.setattr("idiolect.cli.demo.MORE", ())
    monkeypatch.setattr("idiolect.cli.demo.SETTINGS", {"clients": 3, "rounds": 1, "model": "linear"})
    code, out, err = call("demo", "--jobs", "1")
    assert code == 0
    assert len(err.splitlines()) == 3 * len(demo.METHODS)
    code, again, err = call("demo")
    assert (code, err) == (0, "")
    assert again == out
    assert "results: results/demo" in out
