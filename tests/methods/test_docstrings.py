"""A method's docstring says how to run it, and the command is one that a user can type."""

import re
import shlex

import pytest

from idiolect.contract import methods


@pytest.mark.parametrize("name", sorted(methods))
def test_the_docstring_says_how_to_run_it(name: str) -> None:
    command = re.search(r"Run it: ``(.+?)``\.", " ".join((methods.get(name).__doc__ or "").split()))
    assert command, f"{name}: the docstring of {methods.get(name).__name__} has no 'Run it: ``idiolect run ...``.'"
    program, verb, expression = shlex.split(command[1])[:3]
    assert (program, verb) == ("idiolect", "run")
    assert methods.build(expression).name == name
