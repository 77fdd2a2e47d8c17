"""What is loaded when: `import idiolect` costs nothing, a run needs no tables or pictures, help needs no PyTorch."""

import subprocess
import sys
from pathlib import Path

import pytest

import idiolect

SHOWN = ["flwr", "matplotlib", "numba", "optuna", "PIL", "polars", "rich", "scipy", "sklearn", "typer"]
"""Packages that show, tune, compile or deploy: loaded where they are used."""
ROOT = Path(idiolect.__file__).parent
HELP = "from idiolect.cli import main; main([*{arguments!r}, '--help'])"


def loaded(code: str) -> set[str]:
    """The top-level modules that a new process has loaded after running some code."""
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", f"{report}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stderr.split()} | set(done.stderr.split())


def test_importing_the_package_loads_nothing():
    modules = loaded("import idiolect")
    assert "idiolect" in modules
    assert modules.isdisjoint([*SHOWN, "torch", "numpy", "yaml"])


@pytest.mark.parametrize("code", ["import idiolect.runs.api", "import idiolect; idiolect.run"])
def test_a_run_can_be_imported_without_what_shows_it(code):
    modules = loaded(code)
    assert {"torch", "idiolect.runs.api"} <= modules
    assert modules.isdisjoint(SHOWN)


def test_the_settings_of_a_run_can_be_imported_without_pytorch():
    assert "torch" not in loaded("import idiolect; idiolect.Config(rounds=3)")


@pytest.mark.parametrize("arguments", [["methods"], ["methods", "--json"], ["--version"]])
def test_methods_are_listed_without_pytorch(arguments):
    modules = loaded(f"from idiolect.cli import main; main({arguments!r})")
    assert modules.isdisjoint({*SHOWN, "torch"} - {"typer", "rich"})


@pytest.mark.parametrize("arguments", [[], ["run"], ["compare"], ["advise"], ["export"], ["deploy"], ["methods"]])
def test_help_is_shown_without_pytorch(arguments):
    modules = loaded(HELP.format(arguments=arguments))
    assert "typer" in modules
    assert modules.isdisjoint({*SHOWN, "torch"} - {"typer", "rich"})
