"""Options: what a type hint admits."""

import re
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


@dataclass(frozen=True)
class Numbers(Options):
    plain: float = option(1.0)
    pull: float = option(1.0, min=0.0)
    level: float = option(1.0, above=0.0, max=float("inf"))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("pull", float("inf"), "[0, inf)"),
        ("pull", float("nan"), "[0, inf)"),
        ("plain", float("-inf"), "(-inf, inf)"),
        ("pull", 10**400, "[0, inf)"),
        ("level", 0, "(0, inf]"),
    ],
)
def test_no_number_is_infinite_unless_its_limits_say_so(name: str, value: float, allowed: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{name} must lie in {allowed}")):
        make(Numbers, {name: value})
    assert make(Numbers, {"level": "inf"}).level == float("inf")


def test_plain_fields_of_a_users_class_are_options_too(tmp_path):
    from idiolect.contract import methods
    from idiolect.core.registry import describe

    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom idiolect.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Paced(FedAvg):\n    pace: float = 1.0\n    name_of_it: str = 'a'\n"
    )
    paced = methods.build(f"{tmp_path}/own.py:Paced(pace=2)")
    assert describe(paced) == f"{tmp_path}/own.py:Paced(pace=2.0)"
    with pytest.raises(OptionError, match="pace must be a number"):
        methods.build(f"{tmp_path}/own.py:Paced(pace=fast)")
