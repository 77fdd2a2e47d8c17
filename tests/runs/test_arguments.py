"""The types of `run`'s arguments are those of the settings, so that editors and type checkers say what is true."""

import inspect
from collections.abc import Sequence
from typing import get_type_hints

import pytest

import idiolect
from idiolect.core.options import options_of
from idiolect.runs.arguments import Arguments, Known, Objects, Settings
from idiolect.runs.setup import NETWORKS, OBJECTS


def test_every_setting_has_the_type_that_it_has_in_the_configuration():
    hints, typed = get_type_hints(idiolect.Config), get_type_hints(Settings)
    hints["split"] = Sequence[float] | None  # a list is as good as a tuple
    hints["unseen"] = float | str | Sequence[str]  # one name, or any list of them
    assert typed == {name: hints[name] for name in options_of(idiolect.Config) if name not in {*OBJECTS, "method"}}


def test_objects_are_those_that_may_be_given_and_given_again():
    assert set(get_type_hints(Known)) == {"method", *OBJECTS, *NETWORKS}
    assert set(get_type_hints(Objects)) == {*OBJECTS, *NETWORKS} - {"data"}


@pytest.mark.parametrize("function", [idiolect.run, idiolect.compare, idiolect.tune, idiolect.advise])
def test_public_functions_take_every_setting_by_name(function):
    """Those that a function writes out itself (`rounds` of advise, `model` of run) come on top."""
    written = set(inspect.signature(function).parameters) - {"settings"}
    taken = get_type_hints(function)["settings"].__args__[0]
    assert set(get_type_hints(Arguments)) <= written | set(get_type_hints(taken))
    assert not written & set(get_type_hints(taken))
