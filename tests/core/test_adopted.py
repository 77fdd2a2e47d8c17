"""A user's function as a class of a registry: parameters are options, and what the library knows is filled in."""

from dataclasses import dataclass

import pytest

from idiolect.core.adopted import Adopted
from idiolect.core.errors import InputError, OptionError, UnknownNameError
from idiolect.core.options import Options, options_of
from idiolect.core.registry import Registry, describe


@dataclass(frozen=True)
class Thing(Options):
    """What the registry holds."""


@dataclass(frozen=True)
class OwnThing(Adopted, Thing):
    """What a function becomes."""

    given = ("size",)


things = Registry("thing", Thing, adopted=OwnThing)
FILE = """
class Unknown: pass

def make(size, path, count: int = 2, names=("a",), flag: bool = False, scale: "float | None" = None, what: Unknown = 3):
    return size, path, count, names, flag, scale, what

def bare():
    return 1 / 0

number = 7
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "things.py"
    path.write_text(FILE)
    return path


def test_parameters_are_options(file):
    built = things.build(f"{file}:make(path=a/b, count=5, names=[x, y], flag=true, scale=2, what=[1])")
    assert built.call(size=9, colour="red") == (9, "a/b", 5, ("x", "y"), True, 2.0, (1,))
    assert describe(built) == f"{file}:make(path=a/b, count=5, names=[x, y], flag=true, scale=2.0, what=[1])"
    assert things.build(describe(built)) == built
    assert list(options_of(type(built))) == ["path", "count", "names", "flag", "scale", "what"]


def test_wrong_options_are_said(file):
    for text, kind, message in (
        ("make", OptionError, r"needs the option 'path'; write .*make\(path=...\)"),
        ("make(path=x, count=much)", OptionError, "count must be a whole number"),
        ("make(path=x, cuont=1)", UnknownNameError, "Did you mean count"),
        ("make(size=3, path=x)", UnknownNameError, "has no option 'size'"),
        ("number", UnknownNameError, "it is a int, but must be a class derived from Thing or a function"),
    ):
        with pytest.raises(kind, match=message):
            things.build(f"{file}:{text}")


def test_what_the_function_raises_is_one_sentence(file):
    with pytest.raises(InputError, match=r"bare failed: .*things\.py, line 8: ZeroDivisionError: division by zero"):
        things.build(f"{file}:bare").call()


def test_the_same_function_is_the_same_class(file):
    assert things.get(f"{file}:make") is things.get(f"{file}:make")
