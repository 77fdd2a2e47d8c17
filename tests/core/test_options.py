"""Options: what a type hint admits."""

from dataclasses import dataclass
from typing import Any

import pytest

from idiolect.core.errors import OptionError
from idiolect.core.options import Options, make, option, options_of


@dataclass(frozen=True)
class Lists(Options):
    open: tuple[Any, ...] | None = option(None, min=0)
    numbers: tuple[float, ...] = option(())


def test_a_list_of_anything_holds_anything_within_the_limits() -> None:
    assert options_of(Lists)["open"].items == ()
    assert make(Lists, {"open": [1, [2, 3], "a"]}).open == (1, [2, 3], "a")
    with pytest.raises(OptionError, match=r"open must lie in \[0, inf\)"):
        make(Lists, {"open": [-1]})


def test_a_list_of_numbers_holds_nothing_else() -> None:
    assert make(Lists, {"numbers": [1, 0.5]}).numbers == (1.0, 0.5)
    with pytest.raises(OptionError, match="numbers must be a list of numbers"):
        make(Lists, {"numbers": ["a"]})
