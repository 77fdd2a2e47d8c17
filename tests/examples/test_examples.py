"""Every example runs, says something, and is what the documents show of it."""

import runpy
import sys
from pathlib import Path

import pytest

from idiolect.contract import methods

ROOT = Path(__file__).parents[2]
SHORT = {name: ["--rounds", "2"] for name in ("bring_your_own", "own_method", "own_server", "photographs")}
"""Examples that run here, and how to make them short; the others are run by tests of their own."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", SHORT)
def test_it_runs_and_says_something(name, monkeypatch, capsys):
    monkeypatch.setattr(methods, "_classes", dict(methods._classes))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SHORT[name]])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "fedper" in said or "fedavg" in said
    assert "nan" not in said


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_tested(path):
    tests = (test.read_text() for test in (ROOT / "tests").rglob("test_*.py") if test != Path(__file__))
    assert path.stem in SHORT or any(path.stem in each for each in tests)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_says_what_it_is(path):
    source = path.read_text()
    assert source.startswith('"""')
    assert f"python examples/{path.name}" in source


def test_contributing_shows_the_example_as_it_is():
    shown, source = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "examples" / "own_method.py").read_text()
    assert source[source.index("@register") : source.index("\n\n\ndef main")] in shown
    tests = (Path(__file__).parent / "test_own_method.py").read_text()
    for block in shown.split("```python\n")[1:]:
        code = block.partition("```")[0]
        for function in code.split("\n\n\n"):
            if function.startswith(("def test_", "@pytest")):
                assert function.strip() in tests
