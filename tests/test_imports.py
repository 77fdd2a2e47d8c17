"""What is loaded when: `import idiolect` costs nothing, a run needs no tables or pictures, help needs no PyTorch."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import idiolect

SHOWN = ["flwr", "matplotlib", "numba", "optuna", "PIL", "polars", "rich", "scipy", "sklearn", "typer"]
"""Packages that show, tune, compile or deploy: loaded where they are used."""
ROOT = Path(idiolect.__file__).parent
FORKS = """import os, sys
{first}
for code in sys.argv[1:]:
    if os.fork() == 0:
        try:
            exec(code)
        except SystemExit:
            pass
        print(*sys.modules, file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()"""
COMMANDS = [(), ("run",), ("compare",), ("advise",), ("export",), ("deploy",), ("methods",)]
LISTS = [("methods",), ("methods", "--json"), ("--version",)]


@cache
def loaded(*codes: str, first: str = "") -> list[set[str]]:
    """The modules that a new process has loaded after each of some codes, and their packages; what all of them do
    `first` is done once, and each has a process of its own from there on."""
    command = [sys.executable, "-c", FORKS.format(first=first), *codes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listed = [line.split() for line in done.stderr.splitlines()]
    assert len(listed) == len(codes), done.stderr
    return [{part for name in names for part in (name, name.partition(".")[0])} for names in listed]


def loaded_by_command(*arguments: str) -> set[str]:
    """The modules that a new process has loaded after a command."""
    calls = [*LISTS, *((*command, "--help") for command in COMMANDS)]
    modules = loaded(*(f"main({list(call)})" for call in calls), first="from idiolect.cli import main")
    return modules[calls.index(arguments)]


def test_importing_the_package_loads_nothing():
    modules = loaded("import idiolect")[0]
    assert "idiolect" in modules
    assert modules.isdisjoint([*SHOWN, "torch", "numpy", "yaml"])


def test_a_run_can_be_imported_without_what_shows_it():
    for modules in loaded("import idiolect.runs.api", "import idiolect; idiolect.run", first="import torch"):
        assert {"torch", "idiolect.runs.api"} <= modules
        assert modules.isdisjoint(SHOWN)


def test_the_settings_of_a_run_can_be_imported_without_pytorch():
    modules = loaded("import idiolect; idiolect.Config(rounds=3)")[0]
    assert "idiolect" in modules
    assert "torch" not in modules


@pytest.mark.parametrize("arguments", LISTS)
def test_methods_are_listed_without_pytorch(arguments):
    modules = loaded_by_command(*arguments)
    assert "idiolect.cli" in modules
    assert modules.isdisjoint({*SHOWN, "torch"} - {"typer", "rich"})


@pytest.mark.parametrize("arguments", COMMANDS)
def test_help_is_shown_without_pytorch(arguments):
    modules = loaded_by_command(*arguments, "--help")
    assert "typer" in modules
    assert modules.isdisjoint({*SHOWN, "torch"} - {"typer", "rich"})
